"""What code a process runs, read from the process itself (spec/travelling.md §4).

Two parts. *Files*: every file that the kernel has mapped executable, by the kernel's own list. A
file is hashed again when its device, inode, size or times differ; a mapping whose file was removed
or replaced, or whose pages were written to in memory, has a word in place of a digest.
*Program*: the code objects that the functions of the device program have now, so that a function
that was replaced in memory shows although no file changed.
"""

from __future__ import annotations

import hashlib
import os
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import file_sha256, sha256_hex

__all__ = ["MappedCode", "mapped_files"]

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
"""Bits of an entry of ``/proc/PID/pagemap``."""
_MAX_MAPS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    end: int
    path: str


_digests: dict[tuple[object, ...], str] = {}
"""Of files, by what the file system says of them."""


class MappedCode:
    """Measures the code of this process.

    Args:
        settings: Of the program; part of what is measured.
        owners: Modules and classes of the device program: their functions are measured.
    """

    def __init__(
        self, settings: dict[str, JsonValue], owners: Iterable[types.ModuleType | type]
    ) -> None:
        self._settings = settings
        self._owners = tuple(owners)
        self._functions: list[tuple[str, types.CodeType]] = []
        self._program = ""

    def digest(self) -> str:
        """SHA-256 of settings, mapped files and functions as they are now, hex."""
        functions = list(_functions(self._owners))
        if not _same(functions, self._functions):
            self._functions = functions
            self._program = _digest_of(functions)
        files: dict[str, JsonValue] = dict(mapped_files())
        return sha256_hex(
            canonical_json({"settings": self._settings, "files": files, "program": self._program})
        )


def mapped_files() -> dict[str, str]:
    """Every file that this process has mapped executable: its SHA-256 in hex, by path.

    ``replaced`` stands where the file is no longer at its path, ``patched`` where a page of the
    mapping was written to.
    """
    files: dict[str, str] = {}
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pages:
        for one in _executable():
            word = _state_of(one, pages.fileno())
            if files.get(one.path, word) != word:  # the worst of its mappings counts
                word = min(word, files[one.path], key=len)
            files[one.path] = word
    return files


def _state_of(one: _Mapping, pages: int) -> str:
    try:
        found = Path(
            one.path
        ).stat()  # the kernel writes "(deleted)" behind the path of a lost file
    except OSError:
        return "replaced"
    if _patched(one, pages):
        return "patched"
    name = (
        one.path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )  # fmt: skip
    if name not in _digests:
        _digests[name] = file_sha256(Path(one.path))
    return _digests[name]


def _executable() -> Iterator[_Mapping]:
    with Path("/proc/self/maps").open("rb") as file:
        lines = file.read(_MAX_MAPS_BYTES).decode(errors="surrogateescape").splitlines()
    for line in lines:
        span, rights, _offset, _device, _inode, *path = line.split(maxsplit=5)
        if "x" in rights and path and path[0].startswith("/"):
            start, end = (int(one, 16) for one in span.split("-"))
            yield _Mapping(start, end, path[0])


def _patched(one: _Mapping, pages: int) -> bool:
    """Whether a page of a mapping is no longer its file's."""
    import numpy as np

    count = (one.end - one.start) // _PAGE
    entries = np.frombuffer(os.pread(pages, 8 * count, one.start // _PAGE * 8), dtype="<u8")
    held = entries & np.uint64(_PRESENT | _SWAPPED) != 0
    return bool((held & (entries & np.uint64(_OF_FILE) == 0)).any())


def _functions(
    owners: Iterable[types.ModuleType | type],
) -> Iterator[tuple[str, types.CodeType]]:
    """Functions of modules and classes, and of the classes that modules define."""
    for owner in owners:
        prefix = owner.__name__ if isinstance(owner, types.ModuleType) else _path_of(owner)
        for name, value in list(vars(owner).items()):
            if isinstance(value, type) and isinstance(owner, types.ModuleType):
                if value.__module__ == owner.__name__:
                    yield from _functions((value,))
                continue
            for function in _inside(value):
                yield f"{prefix}.{name}", function.__code__


def _inside(value: object) -> Iterator[types.FunctionType]:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    candidates = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)
    for candidate in candidates:
        while candidate is not None:
            if isinstance(candidate, types.FunctionType):
                yield candidate
            candidate = getattr(candidate, "__wrapped__", None)


def _path_of(owner: type) -> str:
    return f"{owner.__module__}.{owner.__qualname__}"


def _same(now: list[tuple[str, types.CodeType]], before: list[tuple[str, types.CodeType]]) -> bool:
    """Whether they are the same objects; a code object never changes."""
    return len(now) == len(before) and all(
        name == known and code is kept
        for (name, code), (known, kept) in zip(now, before, strict=True)
    )


def _digest_of(functions: Iterable[tuple[str, types.CodeType]]) -> str:
    digest = hashlib.sha256()
    for name, code in sorted(functions, key=lambda one: one[0]):
        digest.update(f"{name}\n".encode())
        for part in _parts(code):
            digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()


def _parts(code: types.CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _parts(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()
