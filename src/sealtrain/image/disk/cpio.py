"""Archives in cpio's ``newc`` form: the initrd, and what an operator hands in by a config drive.

The form is that of Linux's *Documentation/driver-api/early-userspace/buffer-format.rst*. The reader
takes files with plain names alone: the archive is a stranger's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Final

from sealtrain.errors import ImageRefused
from sealtrain.image.cpio_member import HEADER_BYTES, MAGIC, TRAILER, member_head, pad

FOLDER: Final = 0o040755
FILE: Final = 0o100644
PROGRAM: Final = 0o100755
_LINK: Final = 0o120777
_FIELD: Final = re.compile(rb"[0-9A-Fa-f]{8}")
_KIND: Final = 0o170000
_REGULAR: Final = 0o100000


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link of an archive.

    Attributes:
        mode: With its type, such as ``FILE``.
        data: The file's bytes, or the link's target.
    """

    mode: int
    data: bytes = b""


def link(target: str) -> Entry:
    """A symbolic link."""
    return Entry(_LINK, target.encode())


def write_archive(entries: Mapping[str, Entry]) -> bytes:
    """An archive in the order of its names, with the folders above them; times and owners are 0."""
    found = dict(entries)
    for name in entries:
        for above in PurePosixPath(name).parents:
            if str(above) != ".":
                found.setdefault(str(above), Entry(FOLDER))
    parts = []
    for number, (name, entry) in enumerate(sorted(found.items()), 1):
        links = 2 if entry.mode == FOLDER else 1
        parts += [
            member_head(
                name.encode(), entry.mode, len(entry.data), number=number, links=links, upper=True
            ),
            pad(entry.data),
        ]
    return b"".join([*parts, member_head(TRAILER.encode(), 0, 0, number=0, upper=True)])


def read_entries(archive: bytes) -> Iterator[tuple[str, Entry]]:
    """Entries of an archive in memory, up to its trailer; a malformed one ends the reading.

    What is read is shown to people, and nothing of it is used otherwise.
    """
    at = 0
    while len(header := archive[at : at + HEADER_BYTES]) == HEADER_BYTES:
        fields = [header[place : place + 8] for place in range(len(MAGIC), HEADER_BYTES, 8)]
        if header[: len(MAGIC)] != MAGIC or not all(map(_FIELD.fullmatch, fields)):
            return
        mode, size, name_bytes = (int(fields[number], 16) for number in (1, 6, 11))
        start = at + HEADER_BYTES + name_bytes
        start += -start % 4
        name = archive[at + HEADER_BYTES : at + HEADER_BYTES + name_bytes - 1]
        if name == TRAILER.encode():
            return
        yield name.decode("ascii", "replace"), Entry(mode, archive[start : start + size])
        at = start + size + -size % 4


def read_files(archive: BinaryIO, limits: Mapping[str, int]) -> dict[str, bytes]:
    """Files of a stranger's archive, of which only some names are expected.

    What follows the trailer is not read: a disk is larger than the archive on it.

    Args:
        archive: Read from where it stands, never behind the trailer.
        limits: Each name that may occur, and how many bytes its file has at most.

    Raises:
        ImageRefused: Another form; another name, one twice, a link or device; a file too long.
    """
    found: dict[str, bytes] = {}
    for _ in range(len(limits) + 1):
        header = _exactly(archive, HEADER_BYTES)
        fields = [header[at : at + 8] for at in range(len(MAGIC), HEADER_BYTES, 8)]
        if header[: len(MAGIC)] != MAGIC or not all(map(_FIELD.fullmatch, fields)):
            raise _refusal("is no cpio archive of the form newc")
        mode, size, name_bytes = (int(fields[number], 16) for number in (1, 6, 11))
        if not 2 <= name_bytes <= 256:
            raise _refusal("has a name that is too long")
        pad = name_bytes + -(HEADER_BYTES + name_bytes) % 4
        name = _exactly(archive, pad)[: name_bytes - 1].decode("ascii", "replace")
        if name == TRAILER:
            return found
        if name not in limits or mode & _KIND != _REGULAR:
            raise _refusal("has something else than the expected files", got=name, names=limits)
        if name in found:
            raise _refusal("has a file twice", got=name)
        if size > limits[name]:
            raise _refusal(f"has a file of more than {limits[name]} bytes", got=name)
        found[name] = _exactly(archive, size + -size % 4)[:size]
    raise _refusal("has more than the expected files", names=limits)


def _exactly(archive: BinaryIO, size: int) -> bytes:
    data = archive.read(size)
    if len(data) != size:
        raise _refusal("ends within a file")
    return data


def _refusal(
    problem: str, *, got: object = None, names: Iterable[str] | None = None
) -> ImageRefused:
    return ImageRefused(
        f"the archive {problem}",
        check="cpio",
        got=got,
        expected=None if names is None else ", ".join(sorted(names)),
    )
