"""Frames between a keeper and its opener: closed types, each with a descriptor at most.

What the opener says is a stranger's word, as what a workload says: it read what owners sealed. Both
sides bound what they read, and the keeper takes no descriptor. See spec/workload-channel.md §5.
"""

from __future__ import annotations

import socket
import struct
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, StringConstraints

from sealtrain.base.canonical import parse_canonical
from sealtrain.base.models import ErrorCode, StrictModel, load_model
from sealtrain.errors import DataInvalid

MAX_RANGE_BYTES: Final = 4 << 20
_LENGTH: Final = struct.Struct("!I")
_MAX_KEYS_BYTES: Final = 16 << 20
_MAX_SMALL_BYTES: Final = 4096
_Frame = TypeVar("_Frame", bound=StrictModel)

_Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
_Few = Annotated[int, Field(ge=0, le=1 << 16)]
_Word = Annotated[str, StringConstraints(max_length=256)]


class DataPlaces(StrictModel):
    """Keeper: folders of sealed data on this machine."""

    places: tuple[str, ...]


class BorderClosed(StrictModel):
    """Opener: how far the kernel enforces its border."""

    landlock: _Few
    seccomp: bool
    unbound: _Few


class GivenDataset(StrictModel):
    """A dataset that the opener opens; its folder is null where it lies elsewhere."""

    folder: str | None
    key: str
    root: str
    owner: str
    name: str
    columns: dict[str, str]
    missing: dict[str, float | str | None]
    """What stands for a missing value; null for not a number, which JSON has no word for."""


class DatasetsGiven(StrictModel):
    """Keeper: what to open, and the recipe's columns."""

    columns: tuple[str, ...]
    datasets: tuple[GivenDataset, ...]


class SlotsGiven(StrictModel):
    """Keeper: the memory that goes along has slots of so many bytes."""

    slot_bytes: _Count


class BatchWanted(StrictModel):
    """Keeper: lay this batch into this slot."""

    dataset: _Count
    batch: _Count
    slot: _Count


class BatchLaid(StrictModel):
    """Opener: the length of what it laid, 0 for nothing; or why a batch does not open."""

    length: _Count = 0
    refused: ErrorCode | None = None
    column: _Word | None = None


class RangeWanted(StrictModel):
    """Opener: so many bytes of a file elsewhere, whose size is given; or with none, its size."""

    dataset: _Count
    file: _Word
    size: _Count | None = None
    offset: _Count = 0
    length: Annotated[int, Field(ge=0, le=MAX_RANGE_BYTES)] = 0


class RangeRead(StrictModel):
    """Keeper: a size, or how many bytes follow the frame; null where the store failed."""

    size: _Count | None


def send_frame(end: socket.socket, frame: StrictModel, descriptor: int | None = None) -> None:
    """Send a frame. Raises ``OSError`` where the other process is gone."""
    body = frame.to_bytes()
    data, sent = _LENGTH.pack(len(body)) + body, 0
    if descriptor is not None:
        sent = socket.send_fds(end, [data[: _LENGTH.size]], [descriptor])
    end.sendall(data[sent:])


def receive_frame(
    end: socket.socket, kind: type[_Frame], *, descriptors: int = 0
) -> tuple[_Frame | None, int | None]:
    """The next frame and its descriptor; no frame where the other end was closed before one.

    Args:
        end: This side's.
        kind: Type that it must have.
        descriptors: How many to take along.

    Raises:
        EOFError: It was closed within a frame, or the frame is too long.
        DataInvalid, LimitExceeded: It is of another type.
    """
    taken: list[int] = []
    if descriptors:
        head, taken, _flags, _peer = socket.recv_fds(end, _LENGTH.size, descriptors)
    else:
        head = end.recv(_LENGTH.size)  # descriptors that come along are not received
    if not head:
        return None, None
    rest = bytearray(_LENGTH.size - len(head))
    exactly_into(end, memoryview(rest))
    (length,) = _LENGTH.unpack(head + rest)
    most = _MAX_KEYS_BYTES if kind in (DataPlaces, DatasetsGiven) else _MAX_SMALL_BYTES
    if length > most:
        raise EOFError("a frame is too long")
    body = bytearray(length)
    exactly_into(end, memoryview(body))
    found = parse_canonical(bytes(body), max_bytes=most)
    return load_model(kind, found, DataInvalid, "a frame"), taken[0] if taken else None


def exactly_into(end: socket.socket, view: memoryview[Any]) -> None:
    """Fill ``view``. Raises ``EOFError`` where the other end is closed before."""
    done = 0
    while done < len(view):
        count = end.recv_into(view[done:])
        if not count:
            raise EOFError("the other end is gone")
        done += count
