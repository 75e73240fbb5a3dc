"""Shards of a checkpoint: each rank seals the pieces that it holds (spec/checkpoint.md §2.2).

The checkpoint itself keeps an index in place of the tensors: of each tensor its pieces, and of each
shard its digest. So the checkpoint's digest, which the brokers anchor, vouches for every shard. A
shard is bound to its run, counter, step, predecessor, number and count besides, and opens only with
the digest that the index names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.shardnames import MAX_SHARDS, ShardRef, shard_named
from sealtrain.training.tensor_types import WIDTHS

if TYPE_CHECKING:
    from sealtrain.training.data.sources import BlobStore

SHARDS: Final = "shards"
"""Where a checkpoint's content has the index."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
File = TypeVar("File", covariant=True)


class ShardStore(Protocol[File]):
    """What ``open_shard`` needs of a store: ``BlobStore`` has it."""

    def read(self, name: str, binding: Mapping[str, str | int], *, root: str | None = None) -> File:
        """As ``BlobStore``."""


_MALFORMED = (LookupError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedShard:
    """A shard as an index vouches for it.

    Attributes:
        digest: File root of its sealed bytes, 64 hex digits.
        size: Bytes of its content.
    """

    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPiece:
    """A box of a tensor, row by row in a shard.

    Attributes:
        offsets: Where it begins in the tensor, by dimension.
        sizes: How far it reaches, by dimension.
        shard: Number of the shard.
        begin: Its first byte there.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    shard: int
    begin: int

    @property
    def volume(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPieces:
    """A tensor in pieces.

    Attributes:
        dtype: As safetensors names it.
        shape: Of the whole.
        pieces: They cover it, and none overlaps another one.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[TensorPiece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIndex:
    """What a checkpoint keeps in place of the tensors that ranks share out.

    Attributes:
        ranks: Number of ranks that made it.
        shards: By number.
        tensors: By path in the state.
        outline: The state with ``{"tensor": path}`` for each tensor (``statefile``).
    """

    ranks: int
    shards: tuple[SealedShard, ...]
    tensors: Mapping[str, TensorPieces]
    outline: Any

    def to_state(self) -> dict[str, Any]:
        """Plain data for the content of a checkpoint."""
        return {
            "ranks": self.ranks,
            "files": [[shard.digest, shard.size] for shard in self.shards],
            "tensors": {
                name: [
                    tensor.dtype,
                    list(tensor.shape),
                    [
                        [list(piece.offsets), list(piece.sizes), piece.shard, piece.begin]
                        for piece in tensor.pieces
                    ],
                ]
                for name, tensor in self.tensors.items()
            },
            "outline": self.outline,
        }

    @classmethod
    def of_state(cls, kept: Any) -> ShardIndex:
        """Inverse of ``to_state``, of a checkpoint's authenticated content.

        Raises:
            CheckpointRefused: Pieces do not cover their tensors, overlap, or do not lie in a shard.
        """
        try:
            index = cls(
                ranks=_count(kept["ranks"]),
                shards=tuple(_shard(*stated) for stated in kept["files"]),
                tensors={str(name): _tensor(*stated) for name, stated in kept["tensors"].items()},
                outline=kept["outline"],
            )
            _require_whole(index)
        except _MALFORMED as error:
            raise CheckpointRefused(
                "the index of a checkpoint does not describe its shards", check="shards"
            ) from error
        return index

    def refs(self, checkpoint: CheckpointRef) -> Iterator[tuple[ShardRef, SealedShard]]:
        """The shards of this checkpoint, in order."""
        for number, shard in enumerate(self.shards):
            ref = ShardRef(
                counter=checkpoint.counter,
                step=checkpoint.step,
                number=number,
                count=len(self.shards),
            )
            yield ref, shard


def write_shard(
    store: BlobStore, run_id: str, ref: ShardRef, previous: str, parts: Iterable[memoryview]
) -> str:
    """Seal the bytes of a shard; returns its digest. It is complete and on disk then.

    Args:
        store: Seals what is written.
        run_id: 32 hex digits, bound.
        ref: The shard, bound.
        previous: Digest of the checkpoint before, bound.
        parts: Its bytes.

    Raises:
        StorageFailed: The disk refuses them.
    """
    with store.write(ref.name, ref.binding(run_id, previous)) as file:
        file.writelines(parts)
    return file.finish().root


def open_shard(
    store: ShardStore[File], run_id: str, checkpoint: CheckpointRef, ref: ShardRef, digest: str
) -> File:
    """Open a shard of a checkpoint as a seekable file; every byte that it gives is authenticated.

    Args:
        store: Holds it.
        run_id: The run it must belong to.
        checkpoint: Whose shard it must be.
        digest: As the index of the checkpoint names it.

    Raises:
        CheckpointRefused: It is missing.
        SealRefused: It was altered, or is another shard, of this checkpoint or any other.
    """
    try:
        return store.read(ref.name, ref.binding(run_id, checkpoint.previous), root=digest)
    except DataInvalid as error:
        raise CheckpointRefused(
            "a shard of the checkpoint is missing",
            check="shards",
            got=f"no shard {ref.number} of {ref.count}",
            expected=f"all shards of checkpoint {ref.counter}",
            hint="restore the run's folder: a checkpoint counts with all its shards",
        ) from error


def retire_orphans(store: BlobStore, newest: int) -> None:
    """Delete shards whose checkpoint is gone, or was never complete.

    Args:
        store: Holds them.
        newest: Counter of the newest complete checkpoint: shards above it are being written.
    """
    names = store.names()
    kept = {name for name in names if "/" not in name}
    for name in names:
        ref = shard_named(name)
        if ref is None or ref.counter > newest:
            continue
        if CheckpointRef(counter=ref.counter, step=ref.step).name not in kept:
            store.retire(name)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("not a count")
    return value


def _shard(digest: Any, size: Any) -> SealedShard:
    if not _DIGEST.fullmatch(digest):
        raise ValueError("not a digest")
    return SealedShard(digest=digest, size=_count(size))


def _tensor(dtype: Any, shape: Any, pieces: Any) -> TensorPieces:
    lengths = tuple(_count(length) for length in shape)
    return TensorPieces(
        dtype=str(dtype), shape=lengths, pieces=tuple(_piece(*stated) for stated in pieces)
    )


def _piece(offsets: Any, sizes: Any, shard: Any, begin: Any) -> TensorPiece:
    return TensorPiece(
        offsets=tuple(_count(offset) for offset in offsets),
        sizes=tuple(_count(size) for size in sizes),
        shard=_count(shard),
        begin=_count(begin),
    )


def _require_whole(index: ShardIndex) -> None:
    """Each byte of each shard is of one piece, and each element of each tensor in one piece."""
    if len(index.shards) > MAX_SHARDS:
        raise ValueError("too many shards")
    laid: list[list[tuple[int, int]]] = [[] for _ in index.shards]
    for tensor in index.tensors.values():
        width = WIDTHS[tensor.dtype]
        _require_cover(tensor)
        for piece in tensor.pieces:
            laid[piece.shard].append((piece.begin, piece.volume * width))
    for spans, shard in zip(laid, index.shards, strict=True):
        end = 0
        for begin, length in sorted(spans):
            if begin != end:
                raise ValueError("pieces of a shard leave a gap or overlap")
            end += length
        if end != shard.size:
            raise ValueError("a shard has another length than its pieces")


def _require_cover(tensor: TensorPieces) -> None:
    shape, pieces = tensor.shape, [piece for piece in tensor.pieces if piece.volume]
    for piece in tensor.pieces:
        if len(piece.offsets) != len(shape) or len(piece.sizes) != len(shape):
            raise ValueError("a piece has another number of dimensions than its tensor")
        ends = (at + size for at, size in zip(piece.offsets, piece.sizes, strict=True))
        if any(end > length for end, length in zip(ends, shape, strict=True)):
            raise ValueError("a piece reaches out of its tensor")
    if sum(piece.volume for piece in pieces) != math.prod(shape):
        raise ValueError("pieces do not cover their tensor")
    pieces.sort(key=lambda piece: piece.offsets)
    if all(_in_rows(piece, shape) for piece in pieces):
        pairs: Iterable[tuple[TensorPiece, TensorPiece]] = pairwise(pieces)
    else:
        pairs = combinations(pieces, 2)
    if any(_overlap(*pair) for pair in pairs):
        raise ValueError("pieces of a tensor overlap")


def _in_rows(piece: TensorPiece, shape: Sequence[int]) -> bool:
    """Whether it is whole in all dimensions but the first."""
    return piece.sizes[1:] == tuple(shape[1:])


def _overlap(first: TensorPiece, other: TensorPiece) -> bool:
    return all(
        at < other_at + other_size and other_at < at + size
        for at, size, other_at, other_size in zip(
            first.offsets, first.sizes, other.offsets, other.sizes, strict=True
        )
    )
