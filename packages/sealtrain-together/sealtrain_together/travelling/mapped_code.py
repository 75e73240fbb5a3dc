"""What code a process runs, read from the process itself (spec/travelling.md §4).

Two parts. *Files*: every file that the kernel has mapped executable, by the kernel's own list. A
file is hashed again when its device, inode, size or times differ; a mapping whose file was removed
or replaced, or whose pages were written to in memory, has a word in place of a digest.
*Program*: the code objects that the functions of the device program have now, so that a function
that was replaced in memory shows although no file changed.
"""

from __future__ import annotations

import hashlib
import operator
import os
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import file_sha256, sha256_hex
from sealtrain_together.travelling.mappings import AddressSpace, Mapping

_digests: dict[tuple[object, ...], str] = {}
"""Of files, by what the file system says of them."""
_CODE: Final = operator.attrgetter("__code__")


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
        self._functions = _Functions(self._owners)
        self._measured: dict[str, JsonValue] = {}
        self._digest = ""

    def digest(self) -> str:
        """SHA-256 of settings, mapped files and functions as they are now, hex."""
        if not self._functions.same():
            self._functions = _Functions(self._owners)
        measured: dict[str, JsonValue] = {
            "settings": self._settings,
            "files": dict(hash_mapped()),
            "program": self._functions.digest,
        }
        if measured != self._measured:
            self._measured, self._digest = measured, sha256_hex(canonical_json(measured))
        return self._digest


def hash_mapped(*, asks: bool = True) -> dict[str, str]:
    """Every file that this process has mapped executable: its SHA-256 in hex, by path.

    ``replaced`` stands where the file is no longer at its path, ``patched`` where a page of the
    mapping was written to.

    Args:
        asks: As ``AddressSpace``.
    """
    files: dict[str, str] = {}
    with AddressSpace(asks=asks) as space:
        for mapping in space.executable():
            word = _state_of(mapping, space)
            if files.get(mapping.path, word) != word:  # the worst of its mappings counts
                word = min(word, files[mapping.path], key=len)
            files[mapping.path] = word
    return files


def release_pages() -> None:
    """Let go of the pages of mapped code that loading brought in, so that later looks are shorter.

    Most of them are of libraries that do no part of the training. Mappings with a page that is not
    their file's keep all of them.
    """
    with AddressSpace() as space:
        for mapping in space.executable():
            if not space.is_patched(mapping):
                space.release(mapping)


def _state_of(one: Mapping, space: AddressSpace) -> str:
    try:
        found = os.stat(one.path)  # noqa: PTH116 - for every mapping at every boundary
    except OSError:
        return "replaced"
    if space.is_patched(one):
        return "patched"
    name = (
        one.path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )  # fmt: skip
    if name not in _digests:
        _digests[name] = file_sha256(Path(one.path))
    return _digests[name]


class _Functions:
    """Functions of the device program as they are when this is made, and their digest.

    A code object never changes. So functions are the same as long as every name of every owner has
    the object that it had, and every function the code object that it had.
    """

    def __init__(self, owners: tuple[types.ModuleType | type, ...]) -> None:
        named = list(_functions(owners))
        self.digest = _digest_of((name, function.__code__) for name, function in named)
        self._functions = [function for _, function in named]
        self._codes = [function.__code__ for function in self._functions]
        self._spaces = [
            (owner, tuple(vars(owner)), tuple(vars(owner).values())) for owner in _owners(owners)
        ]

    def same(self) -> bool:
        """Whether nothing was replaced since."""
        return all(map(operator.is_, map(_CODE, self._functions), self._codes)) and all(
            len(vars(owner)) == len(names)
            and all(map(operator.is_, vars(owner).values(), values))
            and tuple(vars(owner)) == names
            for owner, names, values in self._spaces
        )


def _functions(
    owners: Iterable[types.ModuleType | type],
) -> Iterator[tuple[str, types.FunctionType]]:
    """Functions of modules and classes, and of the classes that modules define."""
    for owner in _owners(owners):
        prefix = owner.__name__ if isinstance(owner, types.ModuleType) else _path_of(owner)
        for name, value in list(vars(owner).items()):
            if isinstance(value, type) and isinstance(owner, types.ModuleType):
                continue
            for function in _inside(value):
                yield f"{prefix}.{name}", function


def _owners(owners: Iterable[types.ModuleType | type]) -> Iterator[types.ModuleType | type]:
    """The owners, and the classes that modules among them define."""
    for owner in owners:
        yield owner
        if isinstance(owner, types.ModuleType):
            for value in list(vars(owner).values()):
                if isinstance(value, type) and value.__module__ == owner.__name__:
                    yield value


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
