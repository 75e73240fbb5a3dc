"""PyTorch's planner over sealed shards: which rank writes which piece, and which piece goes where.

``torch.distributed.checkpoint`` plans: replicated pieces are written once, by the lowest rank that
holds them, and a rank that loads asks for the boxes that its own shard needs, whatever number of
ranks wrote them. Its storage is ours: ``PieceWriter`` copies a rank's pieces into staging memory,
``PieceReader`` reads ranges of shards through a window of fixed size.

Ranks of guests other than the first have no store. Each sends its pieces to the rank with its own
number in the first guest, after that rank has sealed its own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import RawIOBase
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.shardnames import ShardRef
from sealtrain.training.checkpoints.shards import ShardIndex, TensorPiece, TensorPieces
from sealtrain.training.checkpoints.statefile import bytes_of
from sealtrain.training.distributed.ranks import place
from sealtrain.training.tensor_types import dtype_name, torch_dtype

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner, WriteItem

    from sealtrain.training.checkpoints.staging import StagingMemory

WINDOW_BYTES: Final = 16 << 20
"""Most bytes of a shard that a rank has decrypted beside its own tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """What the first rank tells another one to write.

    Attributes:
        counter: Of the checkpoint.
        step: Of the checkpoint.
        previous: Digest of the checkpoint before.
        count: Number of shards.
        room: Bytes of the largest shard.
        number: Of this rank's shard, its own; ``None`` where lower ranks hold all that it holds.
        holder: Rank that seals it.
        relayed: Rank and size of each shard that this rank seals for another one.
    """

    counter: int
    step: int
    previous: str
    count: int
    room: int
    number: int | None
    holder: int
    relayed: tuple[tuple[int, int], ...] = ()

    def ref(self, number: int) -> ShardRef:
        """A shard of this checkpoint."""
        return ShardRef(counter=self.counter, step=self.step, number=number, count=self.count)


class PieceWriter(StorageWriter):
    """``StorageWriter`` of one rank for one checkpoint.

    Attributes:
        tensors: On the first rank, once all is copied: every tensor's pieces.
    """

    def __init__(
        self,
        wanted: CheckpointRef | None,
        staging: StagingMemory,
        seal: Callable[[WriteTask, int, memoryview, bool], object],
        *,
        growth: int,
    ) -> None:
        """Write nothing yet.

        Args:
            wanted: The checkpoint; of the first rank alone.
            staging: This rank's.
            seal: Seals the bytes of a shard with a number; waits where the last argument says so.
            growth: Bytes by which a later shard may be longer.
        """
        self._wanted, self._staging, self._seal, self._growth = wanted, staging, seal, growth
        self.tensors: dict[str, TensorPieces] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing: each checkpoint has a writer of its own."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """False: a run's store has no paths."""
        return False

    def set_up_storage_writer(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan, with wide types first: every piece then begins at a multiple of its width."""
        return replace(plan, items=sorted(plan.items, key=lambda item: -_width(item)))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the first rank: number the shards, and say who seals them."""
        wanted = self._wanted
        if wanted is None:
            raise AssertionError("the first rank plans")
        sizes = [sum(_size(item) for item in plan.items) for plan in plans]
        # A rank in between that holds nothing of its own seals an empty shard.
        count = max((rank for rank, plan in enumerate(plans) if plan.items), default=0) + 1
        here = _ranks_here(len(plans))
        tasks = [
            WriteTask(
                counter=wanted.counter,
                step=wanted.step,
                previous=wanted.previous,
                count=count,
                room=max(sizes),
                number=rank if rank < count else None,
                holder=rank % here,
            )
            for rank in range(len(plans))
        ]
        for rank in range(here, count):
            holder = tasks[rank].holder
            relayed = (*tasks[holder].relayed, (rank, sizes[rank]))
            tasks[holder] = replace(tasks[holder], relayed=relayed)
        return [replace(plan, storage_data=task) for plan, task in zip(plans, tasks, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Copy this rank's pieces and have them sealed while training goes on."""
        task: WriteTask = plan.storage_data
        placed, results, offset = [], [], 0
        for item in plan.items:
            tensor = planner.resolve_data(item)
            if not isinstance(tensor, torch.Tensor):
                raise TypeError("a state has tensors only")
            size = tensor.numel() * tensor.element_size()
            placed.append((offset, tensor.detach()))
            results.append(
                WriteResult(
                    index=item.index, size_in_bytes=size, storage_data=(task.number, offset)
                )
            )
            offset += size
        # Every shard of a run has one length, so each rank asks for the room of the largest.
        self._staging.room(task.room, self._growth)
        part = self._staging.copy(placed, offset)
        if task.holder != place().rank:
            if task.number is not None:
                _send(part, task.holder)
        elif task.number is not None:
            self._seal(task, task.number, part, bool(task.relayed))
        for rank, size in task.relayed:
            part = bytes_of(self._staging.room(size))
            _receive(part, rank)
            self._seal(task, rank, part, True)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the first rank: note where each piece lies."""
        places = {result.index: result.storage_data for written in results for result in written}
        for name, stored in metadata.state_dict_metadata.items():
            if not isinstance(stored, TensorStorageMetadata):
                raise TypeError("a state has tensors only")
            self.tensors[name] = TensorPieces(
                dtype=dtype_name(stored.properties.dtype),
                shape=tuple(stored.size),
                pieces=tuple(
                    _piece(chunk, *places[MetadataIndex(name, chunk.offsets)])
                    for chunk in stored.chunks
                ),
            )


class PieceReader(StorageReader):
    """``StorageReader`` of one rank for one checkpoint."""

    def __init__(
        self, index: ShardIndex, opened: Callable[[int], RawIOBase], *, window: int = WINDOW_BYTES
    ) -> None:
        """Read nothing yet.

        Args:
            index: Of the checkpoint.
            opened: Opens the shard with a number, which is closed again.
            window: Bytes that are read at a time, unless one row of a tensor is longer.
        """
        self._index, self._opened, self._window = index, opened, window
        self._pieces: dict[MetadataIndex, TensorPiece] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing: each checkpoint has a reader of its own."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """False: a run's store has no paths."""
        return False

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """The index, as PyTorch's planner reads it."""
        stored: dict[str, STORAGE_TYPES] = {}
        for name, tensor in self._index.tensors.items():
            chunks = []
            for piece in tensor.pieces:
                offsets, sizes = torch.Size(piece.offsets), torch.Size(piece.sizes)
                chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=sizes))
                self._pieces[MetadataIndex(name, offsets)] = piece
            stored[name] = TensorStorageMetadata(
                properties=TensorProperties(dtype=torch_dtype(tensor.dtype)),
                size=torch.Size(tensor.shape),
                chunks=chunks,
            )
        return Metadata(stored)

    def set_up_storage_reader(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read each box that this rank needs straight to its place."""
        wanted: dict[int, list[tuple[TensorPiece, ReadItem]]] = {}
        for item in plan.items:
            piece = self._pieces[item.storage_index]
            if math.prod(item.lengths):
                wanted.setdefault(piece.shard, []).append((piece, item))
        for shard, items in sorted(wanted.items()):
            with self._opened(shard) as file:
                for piece, item in sorted(items, key=lambda pair: pair[0].begin):
                    target = planner.resolve_tensor(item).detach()
                    self._read(file, piece, item, target)
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, file: RawIOBase, piece: TensorPiece, item: ReadItem, target: Any) -> None:
        """A box of a piece, some rows at a time; rows that lie in place are read into it."""
        rows, row, first = 1, piece.sizes[1:], 0
        if piece.sizes:
            rows, first = item.lengths[0], item.storage_offsets[0]
        else:  # a number
            target = target.reshape(1)
        elements = math.prod(row)
        width = target.element_size()
        whole = tuple(item.lengths[1:]) == tuple(row)
        in_place = whole and target.device.type == "cpu" and target.is_contiguous()
        step = max(1, self._window // max(1, elements * width))
        window = None if in_place else torch.empty((min(step, rows), *row), dtype=target.dtype)
        for at in range(0, rows, step):
            count = min(step, rows - at)
            file.seek(piece.begin + (first + at) * elements * width)
            part = target[at : at + count] if window is None else window[:count]
            _fill(file, bytes_of(part))
            if window is not None:
                for axis, (start, length) in enumerate(
                    zip(item.storage_offsets[1:], item.lengths[1:], strict=True), start=1
                ):
                    part = part.narrow(axis, start, length)
                target[at : at + count].copy_(part)


def _fill(file: RawIOBase, view: memoryview) -> None:
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise EOFError("a shard ends too early")
        done += count


def _ranks_here(world: int) -> int:
    """Ranks of the first guest; every guest has as many."""
    return min(world, int(os.environ.get("LOCAL_WORLD_SIZE", world)))


def _send(part: memoryview, holder: int) -> None:
    for at in range(0, len(part), WINDOW_BYTES):
        dist.send(torch.frombuffer(part[at : at + WINDOW_BYTES], dtype=torch.uint8), holder)


def _receive(part: memoryview, rank: int) -> None:
    for at in range(0, len(part), WINDOW_BYTES):
        dist.recv(torch.frombuffer(part[at : at + WINDOW_BYTES], dtype=torch.uint8), rank)


def _piece(chunk: ChunkStorageMetadata, shard: int, begin: int) -> TensorPiece:
    return TensorPiece(
        offsets=tuple(chunk.offsets), sizes=tuple(chunk.sizes), shard=shard, begin=begin
    )


def _width(item: WriteItem) -> int:
    if item.tensor_data is None:
        raise AssertionError("a state has tensors only")
    width: int = item.tensor_data.properties.dtype.itemsize
    return width


def _size(item: WriteItem) -> int:
    if item.tensor_data is None or item.tensor_data.chunk is None:
        raise AssertionError("a state has tensors only")
    return math.prod(item.tensor_data.chunk.sizes) * _width(item)


def names_of(tensors: Mapping[str, Any]) -> Sequence[str]:
    """Paths of a state's tensors, tied ones once under their first."""
    seen: set[tuple[int, int]] = set()
    names = []
    for name, tensor in tensors.items():
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        key = (local.data_ptr(), tensor.numel())
        if local.numel() and key in seen:
            continue
        seen.add(key)
        names.append(name)
    return names
