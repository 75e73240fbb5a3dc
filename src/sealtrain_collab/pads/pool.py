"""Products of pads made while there was time, in a file (spec/one-time-pads.md §7).

The file holds U only, sealed under the pad secret, which never leaves the memory of the guest that
began: it is of no use to the next one. It does not say which rows were used, so setting it back
changes nothing. When it is used up, there is nothing else.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, BinaryIO, Final, Literal

import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import Field

from sealtrain.base.files import atomic_writer
from sealtrain.base.models import Document, Hex32, Hex64, StrictModel
from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid, FileTruncated, PadsRefused, UsageError, WrongKey
from sealtrain.keys.derive import derive
from sealtrain_collab.pads.exact import ExactProduct
from sealtrain_collab.pads.masks import Masks, drawn_secret
from sealtrain_collab.pads.matrix import DIRECTIONS, MAX_SIDE, Direction, PublicMatrix
from sealtrain_collab.pads.tensors import Later, elements, octets

__all__ = ["OwnPool", "Pool", "write_pool"]

MAGIC: Final = b"SEALOTP\x01"
MAX_HEADER: Final = 1 << 20
MAX_STREAMS: Final = 1 << 12
MAX_BLOCK_ROWS: Final = 1 << 16
TAG_BYTES: Final = 16
BLOCK_ROWS: Final = 256


class PoolStream(StrictModel):
    """U of one matrix and direction."""

    matrix: Hex64
    direction: Literal["forward", "backward"]
    columns: Annotated[int, Field(ge=1, le=MAX_SIDE)]
    first: Annotated[int, Field(ge=0, lt=1 << 48)]
    rows: Annotated[int, Field(ge=1, lt=1 << 40)]


class PoolHeader(Document):
    """What stands before the blocks."""

    what = "pool"
    refusal = DataInvalid
    max_bytes = MAX_HEADER
    form = ("header", None)

    id: Hex32
    block_rows: Annotated[int, Field(ge=1, le=MAX_BLOCK_ROWS)]
    streams: Annotated[tuple[PoolStream, ...], Field(min_length=1, max_length=MAX_STREAMS)]


@dataclass(frozen=True)
class _Layout:
    """Where the blocks of a file are, and how they are sealed."""

    header: PoolHeader

    @cached_property
    def front(self) -> bytes:
        """Everything before the blocks."""
        text = self.header.to_bytes()
        return MAGIC + len(text).to_bytes(4, "big") + text

    @cached_property
    def associated(self) -> bytes:
        return hashlib.sha256(self.front).digest()

    @cached_property
    def starts(self) -> list[int]:
        """Where each stream begins, and where the file ends."""
        places = [len(self.front)]
        for stream in self.header.streams:
            blocks = -(-stream.rows // self.header.block_rows)
            places.append(places[-1] + 4 * stream.rows * stream.columns + TAG_BYTES * blocks)
        return places

    def key(self, secret: Secret) -> AESGCM:
        return AESGCM(derive(secret, "otp-pool", self.header.id).reveal())

    def rows_of(self, stream: int, block: int) -> int:
        begin = block * self.header.block_rows
        return min(self.header.block_rows, self.header.streams[stream].rows - begin)

    def place(self, stream: int, block: int) -> int:
        whole = 4 * self.header.block_rows * self.header.streams[stream].columns + TAG_BYTES
        return self.starts[stream] + block * whole

    @staticmethod
    def nonce(stream: int, block: int) -> bytes:
        return stream.to_bytes(4, "big") + block.to_bytes(8, "big")


def write_pool(
    path: Path,
    *,
    secret: Secret,
    matrices: Sequence[PublicMatrix],
    rows: int,
    exact: ExactProduct,
    first: Mapping[tuple[bytes, Direction], int] | None = None,
    block_rows: int = BLOCK_ROWS,
    overwrite: bool = False,
) -> None:
    """Make U for some rows of each matrix and direction, and a file of them.

    Args:
        path: New file.
        secret: The pad secret of who will use it.
        matrices: Each once.
        rows: For each matrix and direction: a forward or backward pass takes one for each token.
        exact: How to multiply.
        first: Rows of a stream (digest, direction) that are not for this file; 0 if not named.
        block_rows: Read and opened together.
        overwrite: Replace a file.

    Raises:
        AlreadyExists: There is such a file.
    """
    streams = tuple(
        PoolStream(
            matrix=matrix.digest.hex(),
            direction=direction,
            columns=matrix.widths(direction)[1],
            first=(first or {}).get((matrix.digest, direction), 0),
            rows=rows,
        )
        for matrix in matrices
        for direction in DIRECTIONS
    )
    header = PoolHeader(id=secrets.token_hex(16), block_rows=block_rows, streams=streams)
    layout, masks = _Layout(header), Masks(secret)
    key = layout.key(secret)
    by_digest = {matrix.digest.hex(): matrix for matrix in matrices}
    with atomic_writer(path, mode=0o600, overwrite=overwrite) as file:
        file.write(layout.front)
        for number, stream in enumerate(streams):
            matrix = by_digest[stream.matrix]
            _pass_over(masks, matrix, stream.direction, stream.first, block_rows)
            for block in range(-(-rows // block_rows)):
                _, mask = masks.rows(matrix, stream.direction, layout.rows_of(number, block))
                product = exact.product(mask, matrix.factor(stream.direction))
                nonce = layout.nonce(number, block)
                file.write(key.encrypt(nonce, bytes(octets(product)), layout.associated))


def _pass_over(
    masks: Masks, matrix: PublicMatrix, direction: Direction, rows: int, at_a_time: int
) -> None:
    for begin in range(0, rows, at_a_time):
        masks.rows(matrix, direction, min(at_a_time, rows - begin))


class Pool:
    """A file of U, read under the secret that it was made for.

    Args:
        path: Made by ``write_pool``.
        secret: The pad secret.

    Raises:
        DataInvalid: It is not such a file.
        FileTruncated: It is longer or shorter than it says.
    """

    def __init__(self, path: Path, secret: Secret) -> None:
        self._file = path.open("rb")
        try:
            self._layout = _Layout(_header(self._file))
            size = self._file.seek(0, 2)
        except BaseException:
            self._file.close()
            raise
        if size != self._layout.starts[-1]:
            self._file.close()
            raise FileTruncated(
                f"{path.name} has the wrong length",
                got=f"{size} bytes",
                expected=f"{self._layout.starts[-1]} bytes",
                hint="make a new pool",
            )
        streams = self._layout.header.streams
        self._numbers = {
            (stream.matrix, stream.direction): number for number, stream in enumerate(streams)
        }
        self._key = self._layout.key(secret)
        self._last: tuple[int, int, torch.Tensor] | None = None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def admit(self, matrix: PublicMatrix) -> None:
        """See that there are rows of a matrix, and that they open.

        Raises:
            PadsRefused: The pool has none for it.
            DataInvalid: They are of another width.
            WrongKey: It was made for another beginning.
        """
        for direction in DIRECTIONS:
            name = (matrix.digest.hex(), direction)
            number = self._numbers.get(name)
            if number is None:
                raise PadsRefused(
                    "the pool has no pads for a layer", check="pads", hint="make one that has"
                )
            stream = self._layout.header.streams[number]
            if stream.columns != matrix.widths(direction)[1]:
                raise DataInvalid("the pool has rows of another width for a layer")
            self._block(number, 0)

    def product(
        self, matrix: PublicMatrix, direction: Direction, first: int, count: int
    ) -> torch.Tensor:
        """Rows of U from ``first`` on.

        Raises:
            PadsRefused: It is used up, or begins elsewhere in the stream.
            WrongKey: A block does not open.
        """
        number = self._numbers[matrix.digest.hex(), direction]
        stream = self._layout.header.streams[number]
        begin = first - stream.first
        end = begin + count
        if begin < 0 or end > stream.rows:
            raise PadsRefused(
                "the pool of pads is used up" if begin >= 0 else "the pool begins further on",
                check=f"pads {direction}",
                got=f"rows {first} to {first + count}",
                expected=f"rows {stream.first} to {stream.first + stream.rows}",
                hint="make a larger one, or have a dealer",
            )
        size = self._layout.header.block_rows
        parts = [
            self._block(number, block)[max(0, begin - block * size) : end - block * size]
            for block in range(begin // size, -(-end // size))
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _block(self, number: int, block: int) -> torch.Tensor:
        if self._last is not None and self._last[:2] == (number, block):
            return self._last[2]
        rows = self._layout.rows_of(number, block)
        columns = self._layout.header.streams[number].columns
        self._file.seek(self._layout.place(number, block))
        sealed = self._file.read(4 * rows * columns + TAG_BYTES)
        try:
            nonce = self._layout.nonce(number, block)
            plain = self._key.decrypt(nonce, sealed, self._layout.associated)
        except InvalidTag as error:
            raise WrongKey(
                "a block of the pool does not open",
                check="pads",
                hint="it was made for another beginning, or altered; make a new one",
            ) from error
        opened = elements(bytearray(plain), rows, columns)
        self._last = number, block, opened
        return opened


class OwnPool:
    """A pool that the guest fills itself while it has nothing else to do. A ``Supplier``.

    Args:
        path: Of the file; replaced at each filling, of no use to anybody else.
        exact: How to multiply.
        block_rows: Read and opened together.
        lot: Rows to fill it with whenever it is used up; ``None`` for a pool that stops then.
        room: Bytes of a file that it fills itself; a lot is smaller where it has to be.
    """

    def __init__(
        self,
        path: Path,
        *,
        exact: ExactProduct,
        block_rows: int = BLOCK_ROWS,
        lot: int | None = None,
        room: int = 1 << 30,
    ) -> None:
        self._path, self._exact, self._block_rows = path, exact, block_rows
        self._lot, self._room = lot, room
        self._secret: Secret | None = None
        self._pool: Pool | None = None
        self._matrices: dict[bytes, PublicMatrix] = {}
        self._next: dict[tuple[bytes, Direction], int] = {}
        self._ends: dict[tuple[bytes, Direction], int] = {}

    def close(self) -> None:
        """Close and remove the file."""
        if self._pool is not None:
            self._pool.close()
        self._path.unlink(missing_ok=True)

    def begin(self) -> Secret:
        """As ``Supplier.begin``."""
        if self._secret is not None:
            raise UsageError("a pool serves one beginning", hint="make another pool")
        self._secret = drawn_secret()
        return self._secret

    def admit(self, matrix: PublicMatrix) -> None:
        """As ``Supplier.admit``."""
        self._matrices[matrix.digest] = matrix

    def fill(self, rows: int) -> None:
        """Have so many rows more of every matrix that was admitted, in both directions.

        Rows that the last filling left are made again: they were not used.

        Args:
            rows: A forward or backward pass takes one for each token.
        """
        if self._secret is None or not self._matrices:
            raise UsageError("a pool is filled for a model that is protected with it")
        write_pool(
            self._path,
            secret=self._secret,
            matrices=list(self._matrices.values()),
            rows=rows,
            exact=self._exact,
            first=self._next,
            block_rows=self._block_rows,
            overwrite=True,
        )
        if self._pool is not None:
            self._pool.close()
        self._pool = Pool(self._path, self._secret)
        for matrix in self._matrices.values():
            self._pool.admit(matrix)
        streams = ((digest, way) for digest in self._matrices for way in DIRECTIONS)
        self._ends = {name: self._next.get(name, 0) + rows for name in streams}

    def product(
        self, matrix: PublicMatrix, direction: Direction, first: int, mask: torch.Tensor
    ) -> Later:
        """As ``Supplier.product``.

        Raises:
            PadsRefused: It is used up, or was not filled.
        """
        name, end = (matrix.digest, direction), first + mask.shape[0]
        if self._lot is not None and end > self._ends.get(name, 0):
            widths = (one.widths(way)[1] for one in self._matrices.values() for way in DIRECTIONS)
            self.fill(max(mask.shape[0], min(self._lot, self._room // (4 * sum(widths)))))
        self._next[name] = end
        if self._pool is None:
            raise PadsRefused("the pool of pads was not filled", check="pads", hint="fill it first")
        rows = self._pool.product(matrix, direction, first, mask.shape[0])
        return lambda: rows


def _header(file: BinaryIO) -> PoolHeader:
    front = file.read(len(MAGIC) + 4)
    if len(front) != len(MAGIC) + 4 or not front.startswith(MAGIC):
        raise DataInvalid("this is not a pool of pads")
    length = int.from_bytes(front[len(MAGIC) :], "big")
    if length > MAX_HEADER:
        raise DataInvalid("the header of a pool is too long", got=length, expected=MAX_HEADER)
    header = PoolHeader.from_bytes(file.read(length))
    if len({(stream.matrix, stream.direction) for stream in header.streams}) != len(header.streams):
        raise DataInvalid("a pool names a stream twice")
    return header
