"""Large files that travel in pieces: each piece has its digest, and a transfer continues.

What a store delivers is written only beside its place, and takes the place once every piece is
right. A process that starts again goes on after the pieces that it already has.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Final, Self

from pydantic import Field, model_validator

from sealtrain.base.files import TEMPORARY_SUFFIX, open_regular
from sealtrain.base.models import Hex64, StrictModel
from sealtrain.errors import SealtrainError
from sealtrain.storage.errors import OutputStoreInvalid
from sealtrain.storage.folder import MAX_FILE_BYTES, RemoteFolder

PIECE_BYTES: Final = 64 << 20
_MAX_PIECES: Final = MAX_FILE_BYTES // PIECE_BYTES
_READ_BYTES: Final = 8 << 20
_TRIES: Final = 2

Progress = Callable[[int], None]


class Pieces(StrictModel):
    """What a file must be, whichever store delivers it.

    Attributes:
        size: Bytes, at most 1 TiB.
        sha256: SHA-256 of each 64 MiB of it, the last piece shorter; empty for an empty file.
    """

    size: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]
    sha256: Annotated[tuple[Hex64, ...], Field(max_length=_MAX_PIECES)]

    @model_validator(mode="after")
    def _covers_it(self) -> Self:
        if len(self.sha256) != -(-self.size // PIECE_BYTES):
            raise ValueError("not one digest for each 64 MiB")
        return self

    def spans(self) -> Iterator[tuple[int, int, str]]:
        """First byte, byte after the last, and digest of each piece."""
        for number, digest in enumerate(self.sha256):
            start = number * PIECE_BYTES
            yield start, min(start + PIECE_BYTES, self.size), digest


def measure_pieces(source: Path | BinaryIO) -> Pieces:
    """Read a file and return what it is.

    Args:
        source: Its path, or the file at its beginning, which stays open.

    Raises:
        DataInvalid: There is no such regular file.
    """
    if isinstance(source, Path):
        with os.fdopen(open_regular(source), "rb") as file:
            return measure_pieces(file)
    digests, size = [], 0
    while piece := _digest(source, PIECE_BYTES):
        digests.append(piece[0])
        size += piece[1]
    return Pieces(size=size, sha256=tuple(digests))


def fetch(
    folder: RemoteFolder,
    name: str,
    pieces: Pieces,
    target: Path,
    *,
    refused: type[SealtrainError] = OutputStoreInvalid,
    progress: Progress = lambda _: None,
) -> None:
    """Bring a file here, unless it is here already.

    Args:
        folder: That holds it.
        name: Of the file there.
        pieces: What it must be.
        target: Where it is to lie; its folder is made.
        refused: Class of the refusal of other bytes.
        progress: Called with the number of bytes that were added to the file.

    Raises:
        SealtrainError: An instance of ``refused``: a piece is another one, after a second try too.
        StorageUnreachable: The store does not deliver; what came is kept for the next try.
        DataInvalid: The store has no such file.
        StorageFailed: The disk refuses it.
    """
    if (
        target.is_file()
        and target.stat().st_size == pieces.size
        and measure_pieces(target) == pieces
    ):
        progress(pieces.size)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}{TEMPORARY_SUFFIX}")
    with os.fdopen(open_regular(part, changed=True), "r+b") as file:
        for start, end, digest in pieces.spans():
            file.seek(start)
            had = _digest(file, end - start)
            if had is None or had[0] != digest:
                _bring(folder, name, file, (start, end, digest), refused)
            progress(end - start)
        file.truncate(pieces.size)
        file.flush()
        os.fsync(file.fileno())
    part.replace(target)


def _bring(
    folder: RemoteFolder,
    name: str,
    file: BinaryIO,
    span: tuple[int, int, str],
    refused: type[SealtrainError],
) -> None:
    start, end, digest = span
    found = "nothing"
    for _ in range(_TRIES):
        seen, at = hashlib.sha256(), start
        file.seek(start)
        while at < end:
            stop = min(at + _READ_BYTES, end)
            data = folder.fetch(name, at, stop, around=(at, stop))
            if not data:
                break
            file.write(data)
            seen.update(data)
            at += len(data)
        if at == end and seen.hexdigest() == digest:
            return
        found = seen.hexdigest() if at == end else f"{at} bytes"
        folder.forget(name)
    with contextlib.suppress(OSError):
        file.truncate(start)
    raise refused(
        f"the store delivers another {name} than was left there",
        check="pieces",
        got=found,
        expected=digest,
        hint="name a store that holds the right file",
    )


def _digest(file: BinaryIO, size: int) -> tuple[str, int] | None:
    """Digest and length of the next at most ``size`` bytes; ``None`` at the file's end."""
    seen, left = hashlib.sha256(), size
    while left and (data := file.read(min(_READ_BYTES, left))):
        seen.update(data)
        left -= len(data)
    return None if left == size else (seen.hexdigest(), size - left)
