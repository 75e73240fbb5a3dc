"""The position of a run in its data after a given step, and how to resume from it.

The stream's own reader is always ahead of training, because it prefetches batches. So the row after
each batch is recorded when the batch is built, and looked up by step, never read off the reader.
That is exact also where a trainer drops rows (texts longer than the model reads).

1. Over a sealed stream the position is a row; resuming costs the same at any step.
2. Where rows and batches do not correspond (packing, or data that is not a sealed stream), the
   loader replays its batches up to the step. That works within the first epoch only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sealtrain.errors import UsageError
from sealtrain.sealing.errors import CheckpointRefused

if TYPE_CHECKING:
    from transformers import TrainerState, TrainingArguments

    from sealtrain.training.data.hugging import Positioned


class DataPosition:
    """Rows used by step, of one call to ``train()``.

    Attributes:
        mark: Position in the data at the step last looked up, ``None`` where the data have none.
    """

    def __init__(self, args: TrainingArguments, loader: Any, stream: Positioned | None) -> None:
        """Watch the batches a loader makes. Call before it is iterated.

        Args:
            args: The trainer's arguments.
            loader: Its training loader.
            stream: Sealed stream that the loader reads, ``None`` for other data.

        Raises:
            UsageError: The loader works in other processes, which a sealed stream cannot enter.
        """
        if args.dataloader_num_workers:
            raise UsageError(
                "a sealed stream is read in the trainer's own process",
                got=f"dataloader_num_workers={args.dataloader_num_workers}",
                expected="0",
                hint="set dataloader_num_workers to 0: a thread already prefetches",
            )
        self._loader = loader
        self._batches_per_step = int(args.gradient_accumulation_steps)
        self._first_step = 0
        self._made = 0
        self._ends: dict[int, dict[str, Any]] = {}
        self.mark: dict[str, Any] | None = None
        self._rows_per_step: int = (
            args.train_batch_size * self._batches_per_step * max(1, args.world_size)
        )
        self._stream = stream
        self._seekable = stream is not None and not getattr(args, "packing", False)
        if self._seekable:
            self._watch()

    def rows_at(self, step: int) -> int:
        """Rows used when ``step`` steps are done. Steps before it are forgotten."""
        if not self._seekable:
            return step * self._rows_per_step
        batch = (step - self._first_step) * self._batches_per_step
        for past in [number for number in self._ends if number < batch]:
            del self._ends[past]
        self.mark = self._ends[batch]
        return int(self.mark["row"])

    def resume(self, *, step: int, mark: dict[str, Any] | None) -> None:
        """Make the next iteration begin after ``step`` steps, at ``mark``.

        Raises:
            CheckpointRefused: The data can only be replayed, and its first epoch is over.
        """
        self._first_step = step
        if self._seekable and self._stream is not None and mark is not None:
            self._stream.seek(mark)
            self.mark = mark
            return
        batches = step * self._batches_per_step
        try:
            epoch = len(self._loader)
        except TypeError:
            epoch = None
        if epoch is not None and batches > epoch:
            raise CheckpointRefused(
                "this training data cannot be replayed beyond its first epoch",
                check="data position",
                hint="train on the stream of unwrap_dataset, which resumes at any step",
            )
        self._loader.skip_batches = batches

    def give_nothing(self) -> None:
        """All steps are done: the next iteration has no batch.

        Raises:
            CheckpointRefused: The loader cannot do that.
        """
        if hasattr(self._loader, "_fetch_batches"):  # sends at least one batch to other ranks
            raise CheckpointRefused(
                "this run has done all its steps",
                check="data position",
                hint='set accelerator_config={"dispatch_batches": False} to load its result',
            )
        if self._stream is not None:
            self._stream.stop = self._stream.start = 0
        else:
            self._loader.skip_batches = len(self._loader)

    def epoch_at(self, step: int, state: TrainerState) -> float:
        """The trainer's epoch number, as an uninterrupted run would count it."""
        try:
            return step * self._batches_per_step / len(self._loader)
        except TypeError:
            return step / state.max_steps

    def _watch(self) -> None:
        base = getattr(self._loader, "base_dataloader", self._loader)
        stream, collate = self._stream, base.collate_fn

        def collate_and_count(examples: list[Any]) -> Any:
            batch = collate(examples)
            self._made += 1
            if stream is not None:
                self._ends[self._made] = stream.mark()
            return batch

        base.collate_fn = collate_and_count
