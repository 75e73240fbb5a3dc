"""Account for a guest's disk: written again from its files it has the same bytes.

Where a byte differs, the part that it is in is named: a partition, a section of the UKI, a file of
the initrd.
"""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import BinaryIO, Final

from sealtrain.errors import ImageRefused
from sealtrain.image.disk.cpio import read_entries
from sealtrain.image.disk.guest_disk import SYSTEM_NAME, GuestFiles, write_guest_disk
from sealtrain.image.disk.partitions import Partition, read_partitions
from sealtrain.image.machine.pe_file import Portable

_CHUNK: Final = 1 << 20
_MAX_NAMED: Final = 20


def verify_disk(disk: BinaryIO, files: GuestFiles) -> None:
    """Compare a disk with the one that its files give.

    Args:
        disk: A stranger's, which can be moved in.
        files: What it ought to be made of.

    Raises:
        ImageRefused: A byte differs; names where.
    """
    with TemporaryFile() as expected:
        uki = write_guest_disk(files, expected)
        if (at := first_difference(disk, expected)) is None:
            return
        parts = read_partitions(expected)
        if read_partitions(disk) != parts:
            raise _refusal("has other partitions", "partition table")
        part = next((each for each in parts if each.start <= at < each.start + each.size), None)
        if part is None:
            raise _refusal("differs outside of its partitions", f"byte {at}")
        if part.name == SYSTEM_NAME and (named := list(_in_uki(disk, part, uki))):
            raise _refusal("has another unified kernel image", ", ".join(named[:_MAX_NAMED]))
        raise _refusal(f"differs in its partition {part.name}", f"byte {at - part.start}")


def first_difference(one: BinaryIO, other: BinaryIO) -> int | None:
    """Where two files differ first, or where one of them ends; ``None`` where they are equal."""
    for file in (one, other):
        file.seek(0)
    at = 0
    while True:
        ours, theirs = one.read(_CHUNK), other.read(_CHUNK)
        if ours != theirs:
            both = zip(ours, theirs, strict=False)
            return at + next(
                (place for place, (left, right) in enumerate(both) if left != right),
                min(len(ours), len(theirs)),
            )
        if not ours:
            return None
        at += len(ours)


def _in_uki(disk: BinaryIO, part: Partition, expected: bytes) -> Iterator[str]:
    """Names of what differs in the UKI, as far as a UKI is where it ought to be."""
    disk.seek(part.start)
    data = disk.read(part.size)
    start = data.find(expected[: 4 * 1024])
    if start < 0:
        yield "its headers"
        return
    found = Portable(data[start : start + len(expected)], "the disk's UKI")
    wanted = Portable(expected, "the UKI")
    for section in wanted.sections:
        ours, theirs = wanted.content(section.name), found.content(section.name)
        if theirs is None or ours is None or bytes(ours) != bytes(theirs):
            if section.name == ".initrd" and ours is not None and theirs is not None:
                yield from _in_initrd(bytes(theirs), bytes(ours))
            else:
                yield section.name


def _in_initrd(found: bytes, expected: bytes) -> Iterator[str]:
    wanted, there = dict(read_entries(expected)), dict(read_entries(found))
    for name in sorted(wanted.keys() | there.keys()):
        if wanted.get(name) != there.get(name):
            yield f".initrd {name}"


def _refusal(problem: str, got: str) -> ImageRefused:
    return ImageRefused(
        f"the disk {problem}",
        check="disk",
        got=got,
        expected="the bytes that its files give",
        hint="make the disk again from the source, and take that one",
    )
