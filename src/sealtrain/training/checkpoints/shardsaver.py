"""The shards of a run's checkpoints as one rank makes and reads them. All ranks call together.

1. ``save`` plans with the other ranks and copies this rank's pieces into staging memory: training
   loses the time of one copy. A thread seals the copy.
2. ``settle`` asks all ranks whether their shards are complete. Once they are, the first rank gets
   the index, which it seals as the checkpoint: so a checkpoint is there with all its shards or not.
3. A shard that the disk does not take is tried once more after older checkpoints made room. What
   fails in one rank is raised in each.
4. ``load`` reads what this rank needs into tensors that it holds already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from io import RawIOBase
from typing import TYPE_CHECKING, Any

from sealtrain.base.process_state import OneProcess
from sealtrain.base.processes import answer_of, pack_error
from sealtrain.errors import SealtrainError, StorageFailed
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.checkpoints.shards import SealedShard, ShardIndex, open_shard, write_shard
from sealtrain.training.checkpoints.staging import StagingMemory
from sealtrain.training.checkpoints.statefile import fill_state, outline_state
from sealtrain.training.distributed.agreement import gather_values, ready_in_all, same_for_all
from sealtrain.training.distributed.ranks import place
from sealtrain.training.errors import TrainingDiverged
from sealtrain.training.finite import require_finite_model
from sealtrain.training.tensor_types import dtype_name

if TYPE_CHECKING:
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain.training.checkpoints.shardplan import WriteTask
    from sealtrain.training.data.sources import BlobStore

Made = dict[int, SealedShard]
"""Shards by number."""


class ShardSaver:
    """See the module.

    Attributes:
        under_way: Whether a checkpoint was begun that is not settled; the same in all ranks.
    """

    def __init__(self, store: BlobStore, run_id: str) -> None:
        """Start nothing yet.

        Args:
            store: Seals and opens shards.
            run_id: 32 hex digits, bound.
        """
        self._store, self._run_id = store, run_id
        self._process = OneProcess("a run's shards")
        self._staging = StagingMemory(store.shard_memory)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shard")
        self._pending: Future[Made] | None = None
        self._own: Callable[[], Made] | None = None
        self._relayed: Made = {}
        self._index: Callable[[Made], ShardIndex] | None = None
        self.under_way = False

    def save(self, wanted: CheckpointRef | None, state: Mapping[str, Any], growth: int = 0) -> None:
        """Copy this rank's pieces of a state and have them sealed. All ranks call it.

        Args:
            wanted: The next checkpoint; ``None`` in ranks other than the first.
            state: With tensors that are shared out, the same in every rank or this rank's own.
            growth: Bytes by which a later shard may be longer.

        Raises:
            CheckpointRefused: The state holds something other than plain data and tensors.
            SealtrainError: A rank failed.
        """
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

        from sealtrain.training.checkpoints.shardplan import PieceWriter, names_of

        self._process.require()
        if self.under_way:
            raise AssertionError("the checkpoint before is settled first")
        outline, found = outline_state(state)
        # The first shard sets the length of all: each rank has to ask for the same room.
        growth = max(gather_values(growth))
        # A rank may hold no element of a tensor, and cannot tell then which ones are tied.
        names = same_for_all(names_of(found))
        self._relayed, self._own, self._pending = {}, None, None
        writer = PieceWriter(wanted, self._staging, self._seal, growth=growth)
        planner = DefaultSavePlanner(
            flatten_state_dict=False,
            flatten_sharded_tensors=False,
            dedup_save_to_lowest_rank=True,
        )
        _together(
            "save",
            {name: found[name] for name in names},
            storage_writer=writer,
            planner=planner,
        )
        self.under_way = True
        ranks = place().world
        self._index = lambda made: ShardIndex(
            ranks=ranks,
            shards=tuple(made[number] for number in range(len(made))),
            tensors=writer.tensors,
            outline=outline,
        )

    def settle(self, *, wait: bool, make_room: Callable[[], object]) -> ShardIndex | None:
        """The index once every rank's shard is complete. All ranks call it.

        Args:
            wait: Return it, however long that takes; else ``None`` where a rank is not done.
            make_room: Deletes older checkpoints, in the first rank.

        Raises:
            SealtrainError: A shard could not be sealed, in this rank or another one.
        """
        pending, index = self._pending, self._index
        if not wait and not ready_in_all(pending is None or pending.done()):
            return None
        found = self._outcomes()
        if any(isinstance(said, StorageFailed) for said in found):
            if place().leads:
                make_room()
            same_for_all(None)
            if self._own is not None and isinstance(found[place().rank], StorageFailed):
                self._pending = self._thread.submit(self._own)
            found = self._outcomes()
        self._own = self._pending = self._index = None
        self.under_way = False
        made: Made = {}
        for said in found:
            if isinstance(said, BaseException):
                raise said
            made |= said
        if index is None:
            raise AssertionError("a checkpoint was begun")
        return index(made)

    def load(
        self, checkpoint: CheckpointRef, kept: Any, state: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Fill the tensors of a state with those of a checkpoint. All ranks call it.

        Args:
            kept: The index, as its content has it.
            state: As ``save`` takes it; its tensors are filled where they lie.

        Returns:
            The state of the checkpoint, with these tensors in it.

        Raises:
            CheckpointRefused: The checkpoint is of another model, or a shard is missing.
            SealRefused: A shard was altered, or is another one.
        """
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

        from sealtrain.training.checkpoints.shardplan import PieceReader

        index = ShardIndex.of_state(kept)
        _, own = outline_state(state)
        filled = fill_state(index.outline, own) if _same_tensors(index, own) else None
        if not all(gather_values(filled is not None)) or filled is None:
            raise CheckpointRefused(
                "the checkpoint is of another model",
                check="weights",
                got=f"{len(index.tensors)} tensors",
                expected="the tensors of the model in training, with their shapes and types",
                hint="resume with the recipe that began the run",
            )
        refs = list(index.refs(checkpoint))

        def open_numbered(number: int) -> RawIOBase:
            ref, shard = refs[number]
            return open_shard(self._store, self._run_id, checkpoint, ref, shard.digest)

        _together(
            "load",
            {name: own[name] for name in index.tensors},
            storage_reader=PieceReader(index, open_numbered),
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        )
        return filled

    def close(self) -> None:
        """Wait for a shard in flight, even if it fails, and free the memory."""
        self._thread.shutdown(wait=True)
        self._staging.free()

    def _seal(self, task: WriteTask, number: int, part: memoryview, wait: bool) -> None:
        """Seal one shard, on the thread; its memory is written again once that is done."""
        seal = partial(self._write, task, number, part)
        if wait:
            self._relayed |= self._thread.submit(seal).result()
        else:
            self._own, self._pending = seal, self._thread.submit(seal)

    def _write(self, task: WriteTask, number: int, part: memoryview) -> Made:
        ref = task.ref(number)
        digest = write_shard(self._store, self._run_id, ref, task.previous, (part,))
        return {number: SealedShard(digest=digest, size=len(part))}

    def _outcomes(self) -> list[Made | BaseException]:
        """What each rank made, or why it did not; waits for all of them."""
        own: Made | bytes
        try:
            own = self._relayed | ({} if self._pending is None else self._pending.result())
        except BaseException as error:  # raised in every rank
            own = pack_error(error)
        said = gather_values(own)
        return [answer_of(word) if isinstance(word, bytes) else word for word in said]


def require_finite_in_all(model: Any, tensors: Mapping[str, Any]) -> None:
    """As ``finite.require_finite_model``; what one rank finds is raised in every rank."""
    own: bytes | None = None
    try:
        require_finite_model(model, tensors)
    except TrainingDiverged as error:
        own = pack_error(error)
    for said in gather_values(own):
        if said is not None:
            raise answer_of(said)


def _same_tensors(index: ShardIndex, own: Mapping[str, Any]) -> bool:
    return all(
        name in own
        and tuple(own[name].shape) == tensor.shape
        and dtype_name(own[name].dtype) == tensor.dtype
        for name, tensor in index.tensors.items()
    )


def _together(action: str, tensors: dict[str, Any], **how: Any) -> None:
    """PyTorch's ``save`` or ``load``; what a rank refused is raised as it was, in every rank."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        getattr(dcp, action)(tensors, **how)
    except CheckpointException as failure:
        errors = [error for _, (error, _) in sorted(failure.failures.items())]
        refused = [error for error in errors if isinstance(error, SealtrainError)]
        raise (refused or errors)[0] from None
