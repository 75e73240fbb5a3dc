"""Products of pads made while there was time, in a file (spec/one-time-pads.md §7).

The file holds U only, sealed under the pad secret, which never leaves the memory of the guest that
began: it is of no use to the next one. It does not say which rows were used, so setting it back
changes nothing. When it is used up, there is nothing else.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
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
from sealtrain.errors import DataInvalid, PadsRefused, UsageError
from sealtrain.keys.derive import derive
from sealtrain.sealing.errors import FileTruncated, WrongKey
from sealtrain_together.pads.exact_products import ExactProduct
from sealtrain_together.pads.masks import Masks, draw_secret
from sealtrain_together.pads.matrix import DIRECTIONS, MAX_SIDE, Direction, PublicMatrix
from sealtrain_together.pads.tensors import Later, octets

MAGIC: Final = b"SEALOTP\x01"
MAX_HEADER: Final = 1 << 20
MAX_STREAMS: Final = 1 << 12
MAX_BLOCK_ROWS: Final = 1 << 16
TAG_BYTES: Final = 16
BLOCK_ROWS: Final = 64


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
class _PoolLayout:
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


_Name = tuple[bytes, Direction]


def write_pool(  # noqa: PLR0913
    path: Path,
    *,
    secret: Secret,
    matrices: Sequence[PublicMatrix],
    rows: int | Mapping[_Name, int],
    exact: ExactProduct,
    first: Mapping[_Name, int] | None = None,
    left: LeftRows | None = None,
    masks: Masks | None = None,
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
        left: Rows from ``first`` on that were made before, by an earlier file; ``None`` for none.
        masks: Streams that stand behind ``left``; those of the secret are read from their beginning
            where ``None``.
        block_rows: Read and opened together.
        overwrite: Replace a file.

    Raises:
        AlreadyExists: There is such a file.
    """
    first = first or {}
    streams = tuple(
        PoolStream(
            matrix=matrix.digest.hex(),
            direction=direction,
            columns=matrix.widths(direction)[1],
            first=first.get((matrix.digest, direction), 0),
            rows=rows if isinstance(rows, int) else rows[matrix.digest, direction],
        )
        for matrix in matrices
        for direction in DIRECTIONS
    )
    header = PoolHeader(id=secrets.token_hex(16), block_rows=block_rows, streams=streams)
    layout = _PoolLayout(header)
    key = layout.key(secret)
    by_digest = {matrix.digest.hex(): matrix for matrix in matrices}
    with atomic_writer(path, mode=0o600, overwrite=overwrite) as file:
        file.write(layout.front)
        for number, stream in enumerate(streams):
            making = _Making(by_digest[stream.matrix], stream, masks or Masks(secret), exact, left)
            if masks is None:
                making.pass_over(block_rows)
            for block in range(-(-stream.rows // block_rows)):
                product = making.product(block * block_rows, layout.rows_of(number, block))
                nonce = layout.nonce(number, block)
                file.write(key.encrypt(nonce, octets(product), layout.associated))


@dataclass(frozen=True, slots=True)
class LeftRows:
    """Rows of an earlier file that were not used.

    Attributes:
        pool: The file.
        counts: Of each matrix and direction.
    """

    pool: Pool
    counts: Mapping[_Name, int]


@dataclass(frozen=True, slots=True)
class _Making:
    """U of one stream for a new file: what an earlier file has of it, and then new rows."""

    matrix: PublicMatrix
    stream: PoolStream
    masks: Masks
    exact: ExactProduct
    left: LeftRows | None

    @property
    def kept(self) -> int:
        name = self.matrix.digest, self.stream.direction
        return 0 if self.left is None else self.left.counts[name]

    def pass_over(self, at_a_time: int) -> None:
        """Come to the first row that is made, in streams that stand at their beginning."""
        rows = self.stream.first + self.kept
        for begin in range(0, rows, at_a_time):
            self.masks.rows(self.matrix, self.stream.direction, min(at_a_time, rows - begin))

    def product(self, begin: int, count: int) -> torch.Tensor:
        """Rows ``begin`` … ``begin + count`` of the file."""
        old = max(0, min(count, self.kept - begin))
        direction, parts = self.stream.direction, []
        if old and self.left is not None:
            place = self.stream.first + begin
            parts.append(self.left.pool.product(self.matrix, direction, place, old))
        if count > old:
            first, mask = self.masks.rows(self.matrix, direction, count - old)
            if first != self.stream.first + begin + old:
                raise PadsRefused("the streams of a pool do not stand where its rows end")
            parts.append(self.exact.product(mask, self.matrix.factor(direction)))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


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
            self._layout = _PoolLayout(_header(self._file))
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
        found = torch.empty(count, stream.columns, dtype=torch.int32)
        for block in range(begin // size, -(-end // size)):
            whole = slice(block * size, block * size + self._layout.rows_of(number, block))
            wanted = slice(max(begin, whole.start), min(end, whole.stop))
            rows = found[wanted.start - begin : wanted.stop - begin]
            if wanted == whole:
                self._open(number, block, rows)
            else:
                rows.copy_(self._block(number, block)[wanted.start - whole.start :][: len(rows)])
        return found

    def _block(self, number: int, block: int) -> torch.Tensor:
        """Rows of a block, which are kept for the next request: it may want the others."""
        if self._last is None or self._last[:2] != (number, block):
            columns = self._layout.header.streams[number].columns
            rows = torch.empty(self._layout.rows_of(number, block), columns, dtype=torch.int32)
            self._open(number, block, rows)
            self._last = number, block, rows
        return self._last[2]

    def _open(self, number: int, block: int, rows: torch.Tensor) -> None:
        """Read and open a block."""
        self._file.seek(self._layout.place(number, block))
        sealed = self._file.read(4 * rows.numel() + TAG_BYTES)
        try:
            nonce = self._layout.nonce(number, block)
            self._key.decrypt_into(nonce, sealed, self._layout.associated, octets(rows))
        except (InvalidTag, ValueError) as error:  # ValueError: the file was cut meanwhile
            raise WrongKey(
                "a block of the pool does not open",
                check="pads",
                hint="it was made for another beginning, or altered; make a new one",
            ) from error


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
        self._next: dict[_Name, int] = {}
        self._ends: dict[_Name, int] = {}
        # Stands where the file's rows end, so that no filling makes again what an earlier one made.
        self._maker: Masks | None = None
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close and remove the file."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()
            self._path.unlink(missing_ok=True)

    def begin(self) -> Secret:
        """As ``Supplier.begin``."""
        if self._secret is not None:
            raise UsageError("a pool serves one beginning", hint="make another pool")
        self._secret = draw_secret()
        self._maker = Masks(self._secret)
        return self._secret

    def admit(self, matrix: PublicMatrix) -> None:
        """As ``Supplier.admit``."""
        with self._lock:
            self._matrices[matrix.digest] = matrix

    def fill(self, rows: int) -> None:
        """Have at least so many rows of every matrix that was admitted, in both directions.

        Rows that the last filling left are among them: they are taken over, not made again.

        Args:
            rows: A forward or backward pass takes one for each token.
        """
        with self._lock:
            self._fill(rows)

    def _fill(self, rows: int) -> None:
        if self._secret is None or not self._matrices:
            raise UsageError("a pool is filled for a model that is protected with it")
        names = [(digest, way) for digest in self._matrices for way in DIRECTIONS]
        first = {name: self._next.get(name, 0) for name in names}
        left = {name: max(0, self._ends.get(name, 0) - first[name]) for name in names}
        ends = {name: first[name] + max(rows, left[name]) for name in names}
        # What fails leaves the streams anywhere: the next filling then begins them anew.
        maker, self._maker = self._maker or self._begin(), None
        write_pool(
            self._path,
            secret=self._secret,
            matrices=list(self._matrices.values()),
            rows={name: ends[name] - first[name] for name in names},
            exact=self._exact,
            first=first,
            left=None if self._pool is None else LeftRows(self._pool, left),
            masks=maker,
            block_rows=self._block_rows,
            overwrite=True,
        )
        if self._pool is not None:
            self._pool.close()
        self._pool = Pool(self._path, self._secret)
        for matrix in self._matrices.values():
            self._pool.admit(matrix)
        self._ends, self._maker = ends, maker

    def product(
        self, matrix: PublicMatrix, direction: Direction, first: int, mask: torch.Tensor
    ) -> Later:
        """As ``Supplier.product``.

        Raises:
            PadsRefused: It is used up, or was not filled.
        """
        name, end = (matrix.digest, direction), first + mask.shape[0]
        with self._lock:
            if self._lot is not None and end > self._ends.get(name, 0):
                self._fill(max(mask.shape[0], self._fitting(self._lot)))
            if self._pool is None:
                raise PadsRefused(
                    "the pool of pads was not filled", check="pads", hint="fill it first"
                )
            rows = self._pool.product(matrix, direction, first, mask.shape[0])
            self._next[name] = end
            return lambda: rows

    def _begin(self) -> Masks:
        """The streams, read to where the file's rows end."""
        if self._secret is None:
            raise UsageError("a pool is filled for a model that is protected with it")
        masks = Masks(self._secret)
        for (digest, direction), rows in self._ends.items():
            for begin in range(0, rows, self._block_rows):
                masks.rows(self._matrices[digest], direction, min(self._block_rows, rows - begin))
        return masks

    def _fitting(self, rows: int) -> int:
        """So many rows of every stream, or as many as there is room for."""
        widths = (matrix.widths(way)[1] for matrix in self._matrices.values() for way in DIRECTIONS)
        return min(rows, self._room // (4 * sum(widths)))


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
