"""Layers of images: a tar that can be written in one way only (spec/images.md §2).

A reader takes entries out of a layer, writes the tar anew and compares digests. So no two programs
that read tar can see different files in it.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Final, Literal

from sealtrain.errors import ImageRefused

_MAX_FILE_BYTES: Final = 8 << 30
_MAX_LINK_BYTES: Final = 1024
_MAX_NAME_BYTES: Final = 1024
_MAX_LONG_BYTES: Final = 1026
_READ_BYTES: Final = 1 << 20
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")

Kind = Literal["folder", "file", "link"]

_KINDS: Final[dict[bytes, Kind]] = {
    tarfile.DIRTYPE: "folder",
    tarfile.REGTYPE: "file",
    tarfile.SYMTYPE: "link",
}
_TYPES: Final = {kind: type_ for type_, kind in _KINDS.items()}
_MODES: Final = {"folder": (0o755, 0o1777), "file": (0o644, 0o755), "link": (0o777,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEntry:
    """One entry of a layer.

    Attributes:
        name: Relative path without a slash at its end (``usr/bin/python3.11``).
        kind: What it is.
        mode: Permission bits, one of those that its kind may have.
        size: Bytes of a file, else 0.
        target: Of a link, else empty.
        sha256: Of a file's bytes in hex, else empty.
        program: Whether a file begins as Linux's programs do (``is_program``).
    """

    name: str
    kind: Kind
    mode: int
    size: int = 0
    target: str = ""
    sha256: str = ""
    program: bool = field(default=False, compare=False)

    def describe(self) -> str:
        """``0644 HEX``, ``link TARGET`` or ``folder 0755``: equal for equal entries."""
        if self.kind == "link":
            return f"link {self.target}"
        return f"{self.mode:04o} {self.sha256}" if self.kind == "file" else f"folder {self.mode:o}"


def is_program(begin: bytes) -> bool:
    """Whether a file with this beginning is one that Linux starts: ELF, or a script."""
    return begin.startswith((b"\x7fELF", b"#!"))


def layer_error(
    problem: str, *, check: str, got: object = None, expected: object = None
) -> ImageRefused:
    """The refusal of an image."""
    return ImageRefused(
        problem,
        check=check,
        got=got,
        expected=expected,
        hint="make the image from the source yourself and compare digests: make images",
    )


def write_layer(
    entries: Iterable[LayerEntry],
    open_file: Callable[[LayerEntry], BinaryIO],
    into: BinaryIO | None,
) -> str:
    """Write a layer; returns its ``diff_id``, 64 hex digits.

    Args:
        entries: In any order.
        open_file: Opens the bytes of a file.
        into: Gets the tar; ``None`` computes the ``diff_id`` alone.

    Raises:
        ImageRefused: A file has another length than its entry says.
    """
    twin = _Tar(into)
    for entry in sorted(entries, key=_order):
        twin.begin(entry)
        if entry.kind == "file":
            with open_file(entry) as file:
                while data := file.read(_READ_BYTES):
                    twin.add(data)
        twin.finish()
    return twin.close()


def read_layer(
    layer: BinaryIO, diff_id: str, into: Callable[[LayerEntry], BinaryIO | None]
) -> Iterator[LayerEntry]:
    """The entries of a layer, each once its bytes were read.

    Nothing of it may be used before the iteration has ended: only then is the digest compared.

    Args:
        layer: The uncompressed tar.
        diff_id: SHA-256 of the tar, 64 hex digits.
        into: Called with each entry, still without its digest; gives what gets a file's bytes.

    Raises:
        ImageRefused: It is no tar, or another than its entries give.
    """
    twin = _Tar(None)
    last = ""
    try:
        while (entry := _next_entry(layer)) is not None:
            if (place := _order(entry)) <= last:
                raise layer_error("a layer is not sorted", check="layer", got=entry.name[:200])
            last = place
            twin.begin(entry)
            digest, kept = hashlib.sha256(), into(entry)
            left, begin = entry.size, b""
            while left:
                data = _exactly(layer, min(left, _READ_BYTES))
                left -= len(data)
                twin.add(data)
                digest.update(data)
                begin = begin or data
                if kept is not None:
                    kept.write(data)
            twin.finish()
            _exactly(layer, -entry.size % tarfile.BLOCKSIZE)
            if entry.kind == "file":
                entry = replace(entry, sha256=digest.hexdigest(), program=is_program(begin))
            yield entry
    except (tarfile.TarError, ValueError) as error:
        raise layer_error(
            f"a layer is not readable: {type(error).__name__}", check="layer"
        ) from error
    if (got := twin.close()) != diff_id:
        raise layer_error(
            "a layer is not the tar that its entries give",
            check="layer",
            got=got,
            expected=diff_id,
        )


def _next_entry(layer: BinaryIO) -> LayerEntry | None:
    """The entry at this place of a layer; ``None`` at its end.

    Of what tar can say only the headers of §2 are read, so none of them can ask for much memory.
    """
    long: dict[bytes, str] = {}
    while True:
        block = _exactly(layer, tarfile.BLOCKSIZE)
        if not any(block):
            return None
        head = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        if head.type not in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            head.name = long.get(tarfile.GNUTYPE_LONGNAME, head.name).removesuffix("/")
            head.linkname = long.get(tarfile.GNUTYPE_LONGLINK, head.linkname)
            return _entry(head)
        if not 0 <= head.size <= _MAX_LONG_BYTES or head.type in long:
            raise layer_error("a layer has a name that is too long", check="layer", got=head.size)
        text = _exactly(layer, head.size + -head.size % tarfile.BLOCKSIZE)[: head.size]
        long[head.type] = text.removesuffix(b"\0").decode()


def _exactly(layer: BinaryIO, size: int) -> bytes:
    data = layer.read(size) if size else b""
    while len(data) < size and (more := layer.read(size - len(data))):
        data += more
    if len(data) < size:
        raise layer_error("a layer ends early", check="layer")
    return data


def _order(entry: LayerEntry) -> str:
    return f"{entry.name}/" if entry.kind == "folder" else entry.name


def _entry(member: tarfile.TarInfo) -> LayerEntry:
    name = member.name
    kind = _KINDS.get(member.type)
    target = member.linkname if kind == "link" else ""
    parts = name.split("/")
    if (
        len(name.encode()) > _MAX_NAME_BYTES
        or _CONTROL.search(name)
        or any(part in ("", ".", "..") or part.startswith(".wh.") for part in parts)
    ):
        raise layer_error(
            "a layer has a name that is not allowed", check="layer", got=ascii(name)[:200]
        )
    if kind is None or len(target.encode()) > _MAX_LINK_BYTES or _CONTROL.search(target):
        raise layer_error("a layer has an entry that is not allowed", check="layer", got=name[:200])
    if member.mode not in _MODES[kind] or not 0 <= member.size <= _MAX_FILE_BYTES:
        raise layer_error(
            "a layer has an entry of another mode or size than is allowed",
            check="layer",
            got=f"{name[:200]}: {member.mode:o}, {member.size} bytes",
            expected=" or ".join(f"{mode:o}" for mode in _MODES[kind]),
        )
    size = member.size if kind == "file" else 0
    return LayerEntry(name=name, kind=kind, mode=member.mode, size=size, target=target)


class _Tar:
    """Writes the one form of a tar, if anywhere, and hashes it."""

    def __init__(self, into: BinaryIO | None) -> None:
        self._into = into
        self._digest = hashlib.sha256()
        self._written = 0
        self._left = 0

    def begin(self, entry: LayerEntry) -> None:
        head = tarfile.TarInfo(entry.name)
        head.type = _TYPES[entry.kind]
        head.mode, head.size, head.linkname = entry.mode, entry.size, entry.target
        self._left = entry.size
        self._put(head.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict"))

    def add(self, data: bytes) -> None:
        self._left -= len(data)
        self._put(data)

    def finish(self) -> None:
        if self._left:
            raise layer_error("a file has another length than its entry says", check="layer")
        self._put(bytes(-self._written % tarfile.BLOCKSIZE))

    def close(self) -> str:
        self._put(bytes(2 * tarfile.BLOCKSIZE))
        self._put(bytes(-self._written % tarfile.RECORDSIZE))
        return self._digest.hexdigest()

    def _put(self, data: bytes) -> None:
        self._written += len(data)
        self._digest.update(data)
        if self._into is not None:
            self._into.write(data)
