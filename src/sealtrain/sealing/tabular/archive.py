"""Members of a tar file, in order and in bounded memory; every member but a plain file is refused.

Nothing is extracted: a name is only a name here, yet the reader refuses a name that would leave its
folder, and links, devices, sparse files and all other members that are not plain files. No header
can fill memory (``base.tarheaders``), and the archive must end as the format says: a damaged header
in the middle would otherwise pass for its end.
"""

from __future__ import annotations

import shlex
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from sealtrain.base.tarheaders import MAX_HEADER_BYTES, PLAIN, headers
from sealtrain.base.visible_text import is_visible
from sealtrain.sealing.errors import RecordInvalid

__all__ = ["MAX_HEADER_BYTES", "Member", "members", "show_member"]

_BLOCK: Final = 512
_END: Final = 2 * _BLOCK
_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """A plain file in a tar file.

    Attributes:
        number: Position among all members, from 1.
        name: Relative path with ``/``, without ``.`` and ``..``.
        size: Bytes.
        read: Its first bytes, as many as asked for; valid until the next member is taken.
    """

    number: int
    name: str
    size: int
    read: Callable[[int], bytes]


def members(path: Path) -> Iterator[Member]:
    """Plain files of an uncompressed tar file, in order.

    Args:
        path: ustar, pax or GNU format.

    Raises:
        RecordInvalid: The archive is damaged or cut short, or a member is not a plain file below
            its folder.
        LimitExceeded: A member's headers are larger than ``MAX_HEADER_BYTES``.
    """
    with path.open("rb") as file:
        end, number = 0, 0
        for found in _headers(path, file):
            number += 1
            where = f"{path.name}: member {number}"
            if found.size < 0 or found.offset < end:
                _refuse(f"{where} has another size than its header says")
            end = found.offset_data + (0 if found.isdir() else -(-found.size // _BLOCK) * _BLOCK)
            try:
                name = _safe_name(found.name, where)
                if not found.isdir() and (found.type not in PLAIN or found.issparse()):
                    _refuse(
                        f"{where} is not a plain file, but a link, a device or the like",
                        hint="put the file itself in its place (tar --dereference)",
                    )
            except RecordInvalid as error:
                raise show_member(error, path, number) from None
            if found.isdir():
                continue
            yield Member(number, name, found.size, _reader(file, found, where))
        _check_end(path, file, end)


def show_member(error: RecordInvalid, path: Path, number: int) -> RecordInvalid:
    """A refusal of a member, whose hint says how its owner sees which file it is.

    Args:
        error: The refusal, which numbers the member and does not name it.
        path: The archive.
        number: Of the member, from 1.
    """
    seen = f"its name: tar -tf {shlex.quote(path.name)} | sed -n {number}p"
    return error.with_message(error.message, hint=f"{error.hint}; {seen}" if error.hint else seen)


def _headers(path: Path, file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    number = 0
    try:
        for found in headers(file, path.name):
            number += 1
            yield found
    except tarfile.TarError:
        _refuse(
            f"{path.name}: no readable tar header after member {number}",
            hint="write it as an uncompressed tar file; check that it is complete",
        )


def _reader(file: BinaryIO, found: tarfile.TarInfo, where: str) -> Callable[[int], bytes]:
    def read(size: int) -> bytes:
        file.seek(found.offset_data)
        wanted = min(size, found.size)
        data = file.read(wanted)
        if len(data) != wanted:
            _refuse(f"{where} is cut short")
        return data

    return read


def _safe_name(name: str, where: str) -> str:
    name = name.removeprefix("./").rstrip("/")
    # Not by pathlib, which interns each part of a name: as many as an archive has members.
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if (
        not is_visible(name)
        or name.startswith("/")
        or "\\" in name
        or any(part.startswith(".") for part in parts)
    ):
        _refuse(
            f"{where} has a name that is hidden or leaves its folder",
            hint="write plain relative names: folder/0001.jpg",
        )
    return "/".join(parts) or "."


def _check_end(path: Path, file: BinaryIO, end: int) -> None:
    """Two blocks of zeros, and nothing but zeros to the end of the file."""
    file.seek(end)
    rest = 0
    while piece := file.read(_PIECE):
        rest += len(piece)
        if piece.count(0) != len(piece):
            _refuse(
                f"{path.name} has data after the last readable member",
                hint="write the archive again: a header is damaged, or tar files were joined",
            )
    if rest < _END:
        _refuse(f"{path.name} ends before its end mark", hint="check that it is complete")


def _refuse(message: str, hint: str | None = None) -> None:
    raise RecordInvalid(message, check="archive", hint=hint) from None
