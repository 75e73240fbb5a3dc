"""Checkpoints while training goes on: copied into kept memory, sealed by a thread of its own.

1. ``save`` waits for the checkpoint before, copies the state into staging memory that is kept from
   one checkpoint to the next, and returns: training loses the time of one copy.
2. The thread seals the copy, tells whoever anchors it once the blob is complete, and deletes what
   is no longer kept: never one that leads back to the newest that is known outside. Checkpoints are
   told in order, each only after the one before.
3. When the disk is full, room is made from older checkpoints and the write is tried again. If that
   does not help, or telling fails, the error is raised by the next call here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from sealtrain.errors import StorageFailed
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.statefile import Layout, bytes_of, lay_out

if TYPE_CHECKING:
    import torch

    from sealtrain.training.data.sources import BlobStore

__all__ = ["CheckpointSaver"]


class CheckpointSaver:
    """The checkpoints of one run.

    Attributes:
        last: Newest complete one.
        best: The one that stays although newer ones come.
        seconds: How long the last one took, copied, sealed and told; ``None`` before the first.
    """

    def __init__(
        self,
        store: BlobStore,
        run_id: str,
        *,
        told: Callable[[CheckpointRef], None],
        keep: int = 2,
        last: CheckpointRef | None = None,
        anchored: Callable[[], int] | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            store: Seals what is written.
            run_id: 32 hex digits, bound.
            told: Gets every complete checkpoint, in the sealing thread; may raise to stop the run.
            keep: Newest checkpoints that stay, at least one.
            last: The one the run continues from.
            anchored: Counter of the newest one that is known outside; all that were told, if
                ``None``.
        """
        self._store = store
        self._run_id = run_id
        self._told = told
        self._keep = keep
        self._anchored = anchored
        self._staging = _Staging()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self.last = last
        self.best: CheckpointRef | None = None
        self.seconds: float | None = None

    def save(self, step: int, state: dict[str, Any], *, best: bool = False) -> None:
        """Copy ``state`` and have it sealed as the next checkpoint.

        Args:
            step: Optimizer steps done.
            state: Nested dicts, lists, numbers, strings and tensors; free to change afterwards.
            best: Keep this one until a better one comes.

        Raises:
            CheckpointRefused: The state holds something else.
            SealtrainError: The checkpoint before failed.
        """
        self.flush()
        begun = time.monotonic()
        layout = lay_out(state)
        body = self._staging.copy(layout)
        before = self.last
        wanted = CheckpointRef(
            counter=1 if before is None else before.counter + 1,
            step=step,
            previous="" if before is None else before.digest,
        )
        self._pending = self._thread.submit(
            self._seal, wanted, (layout.header_view, body), best, begun
        )

    def check(self) -> None:
        """Raise what the sealing thread met, if it met something; does not wait."""
        if self._pending is not None and self._pending.done():
            self.flush()

    def flush(self) -> None:
        """Wait until every checkpoint is sealed and told.

        Raises:
            SealtrainError: One was not.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait for a checkpoint in flight, whatever becomes of it, and let the memory go."""
        self._thread.shutdown(wait=True)
        self._staging = _Staging()

    def _seal(
        self, wanted: CheckpointRef, parts: tuple[memoryview, ...], best: bool, begun: float
    ) -> None:
        ref = self._written(wanted, parts)
        self.last = ref
        if best:
            self.best = ref
        self._told(ref)
        self.seconds = time.monotonic() - begun
        self._prune(self._keep)

    def _written(self, wanted: CheckpointRef, parts: tuple[memoryview, ...]) -> CheckpointRef:
        try:
            return checkpoint.write(self._store, self._run_id, wanted, parts)
        except StorageFailed:
            # The newest complete one is all that a crash needs until this one is complete.
            self._prune(1)
            self._store.sweep()
            return checkpoint.write(self._store, self._run_id, wanted, parts)

    def _prune(self, keep: int) -> None:
        if self._anchored is not None and self.last is not None:
            keep = max(keep, self.last.counter - self._anchored())
        best = () if self.best is None else (self.best,)
        checkpoint.prune(self._store, keep, besides=best)


class _Staging:
    """Memory that a state is copied to; kept, since fresh memory costs more than the copy."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None

    def copy(self, layout: Layout) -> memoryview:
        """Copy every tensor to its place; returns the bytes of all."""
        import torch

        if self._memory is None or self._memory.numel() < layout.size:
            self._memory = torch.empty(
                layout.size, dtype=torch.uint8, pin_memory=torch.cuda.is_available()
            )
        bytes_there = bytes_of(self._memory[: layout.size])
        for offset, tensor in layout.tensors:
            end = offset + tensor.numel() * tensor.element_size()
            if tensor.device.type == "cpu" and tensor.is_contiguous():
                # torch would share this out to threads that compete with everything else.
                bytes_there[offset:end] = bytes_of(tensor)
                continue
            place = self._memory[offset:end].view(tensor.dtype).view(tensor.shape)
            place.copy_(tensor.detach(), non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return bytes_there
