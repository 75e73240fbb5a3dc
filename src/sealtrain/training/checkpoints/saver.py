"""Checkpoints while training goes on: copied into reused memory, sealed by a thread of their own.

1. ``save`` waits for the checkpoint before, copies the state into staging memory that is reused
   from checkpoint to checkpoint, and returns: training loses the time of one copy. In a workload
   the memory is the keeper's, who encrypts out of it (``guest.workload``).
2. The thread seals the copy, calls the anchoring callback once the blob is complete, and deletes
   older checkpoints, but never one that leads back to the newest anchored checkpoint. The callback
   gets checkpoints in order, each only after the one before.
3. When the disk is full, the thread deletes older checkpoints and retries the write. If that does
   not help, or the callback fails, the next call here raises the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from sealtrain.base.process_state import OneProcess
from sealtrain.errors import StorageFailed
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.shards import retire_orphans
from sealtrain.training.checkpoints.staging import StagingMemory
from sealtrain.training.checkpoints.statefile import lay_out

if TYPE_CHECKING:
    from sealtrain.training.data.sources import BlobStore


class CheckpointSaver:
    """The checkpoints of one run.

    Attributes:
        last: Newest complete checkpoint.
        best: The checkpoint that stays although newer ones come.
        seconds: How long the last checkpoint took to copy, seal and anchor; ``None`` before the
            first.
    """

    def __init__(
        self,
        store: BlobStore,
        run_id: str,
        *,
        on_sealed: Callable[[CheckpointRef], None],
        keep: int = 2,
        last: CheckpointRef | None = None,
        anchored: Callable[[], int] | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            store: Seals what is written.
            run_id: 32 hex digits, bound.
            on_sealed: Called with each complete checkpoint in the sealing thread; may raise to stop
                the run.
            keep: Newest checkpoints that stay, at least one.
            last: The checkpoint that the run continues from.
            anchored: Gives the counter of the newest anchored checkpoint; without it, every
                checkpoint given to the callback counts as anchored.
        """
        self._store = store
        self._run_id = run_id
        self._on_sealed = on_sealed
        self._keep = keep
        self._anchored = anchored
        self._process = OneProcess("a run's checkpoints")
        self._staging = StagingMemory(store.memory)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self.last = last
        self.best: CheckpointRef | None = None
        self.seconds: float | None = None

    def save(
        self,
        step: int,
        state: dict[str, Any],
        *,
        best: bool = False,
        growth: int = 0,
        begun: float | None = None,
    ) -> None:
        """Copy ``state`` and have it sealed as the next checkpoint.

        Args:
            step: Optimizer steps done.
            state: Nested dicts, lists, numbers, strings and tensors; free to change afterwards.
            best: Keep this one until a better one comes.
            growth: Bytes by which a later state may be longer (``checkpoints.room``).
            begun: When the checkpoint was begun (``time.monotonic``); ``None`` for now.

        Raises:
            CheckpointRefused: The state holds something else.
            ForkRefused: Another process counts them.
            SealtrainError: The checkpoint before failed.
        """
        self._process.require()
        self.flush()
        begun = time.monotonic() if begun is None else begun
        layout = lay_out(state)
        body = self._staging.copy(layout.tensors, layout.size, header=layout.header, growth=growth)
        wanted = self.next(step)
        self._pending = self._thread.submit(self._seal, wanted, (body,), best, begun)

    def next(self, step: int) -> CheckpointRef:
        """The checkpoint that follows the newest one, without its digest."""
        before = self.last
        return CheckpointRef(
            counter=1 if before is None else before.counter + 1,
            step=step,
            previous="" if before is None else before.digest,
        )

    def make_room(self) -> None:
        """Delete all but the newest checkpoint, and what interrupted writes left."""
        # The newest complete one is all that a crash needs until the next one is complete.
        self._prune(1)
        self._store.sweep()

    def check(self) -> None:
        """Raise the sealing thread's error, if it had one; does not wait."""
        if self._pending is not None and self._pending.done():
            self.flush()

    def flush(self) -> None:
        """Wait until every checkpoint is sealed and given to the callback.

        Raises:
            SealtrainError: A checkpoint failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait for a checkpoint in flight, even if it fails, and free the memory."""
        self._thread.shutdown(wait=True)
        self._staging.free()

    def _seal(
        self, wanted: CheckpointRef, parts: tuple[memoryview, ...], best: bool, begun: float
    ) -> None:
        ref = self._write(wanted, parts)
        self.last = ref
        if best:
            self.best = ref
        self._on_sealed(ref)
        self.seconds = time.monotonic() - begun
        self._prune(self._keep)

    def _write(self, wanted: CheckpointRef, parts: tuple[memoryview, ...]) -> CheckpointRef:
        try:
            return checkpoint.write(self._store, self._run_id, wanted, parts)
        except StorageFailed:
            self.make_room()
            return checkpoint.write(self._store, self._run_id, wanted, parts)

    def _prune(self, keep: int) -> None:
        if self._anchored is not None and self.last is not None:
            keep = max(keep, self.last.counter - self._anchored())
        best = () if self.best is None else (self.best,)
        checkpoint.prune(self._store, keep, besides=best)
        if self.last is not None:
            retire_orphans(self._store, self.last.counter)
