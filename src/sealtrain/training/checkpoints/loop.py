"""An engineer's own PyTorch loop: sealed checkpoints, exact resume, released metrics.

``RunLoop`` yields batches and acts between them:

1. Batches come from the recipe's training data, mixed and shuffled as for any phase; or from a
   ``DataLoader`` of the script's own over the sealed stream.
2. A step is over when the script asks for the next batch: every ``logging_steps`` the averages of
   the logged values leave, and every ``save_steps`` model, optimizer, scheduler, random states and
   the position in the data are sealed. If the lease on the keys is not renewed, they are sealed
   then and the run stops.
3. A resumed run begins with the batch after its checkpoint, in the same state, bit for bit.
4. Of several ranks each gets its own part of every step, and the averages are over all of them.
   The script joins their gradients; rank 0 seals, with the random states of all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from sealtrain.errors import UsageError
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint_growth import growth_of_optimizers
from sealtrain.training.checkpoints.lease import stops_here
from sealtrain.training.checkpoints.randomness import random_states, restore_random_states
from sealtrain.training.data.hugging import find_positioned
from sealtrain.training.data.rank_part import RankPart
from sealtrain.training.data.stream import RecordStream
from sealtrain.training.distributed.agreement import (
    gather_states,
    mean_over_ranks,
    own_states,
    to_first,
)
from sealtrain.training.distributed.ranks import place
from sealtrain.training.finite import refuse_not_finite
from sealtrain.training.models.weights import finite_state, load_weights
from sealtrain.training.telemetry.averages import Averages

if TYPE_CHECKING:
    from sealtrain.recipe.trainers import TrainerArguments
    from sealtrain.training.checkpoints.run_context import RunContext


class RunLoop:
    """Batches to train on, with logging and checkpoints between them.

    Attributes:
        model: The module that learns.
        processing_class: Its tokenizer or processor, sealed beside it; ``None`` without one.
        last: Averages reported last.
        steps: Batches used, those of resumed runs included.
        rows: Records in them.
        tokens: ``None``: the loop does not count tokens.
    """

    def __init__(
        self,
        context: RunContext,
        data: RecordStream | Any,
        arguments: TrainerArguments,
        *,
        model: Any,
        optimizer: Any,
        scheduler: Any = None,
        processing_class: Any = None,
    ) -> None:
        """Continue from the run's checkpoint, if it has one.

        Args:
            data: Its training records, or a loader over a sealed stream of them.
            arguments: The recipe's ``trainer``: steps, batch size, logging and saving.
            model: ``torch.nn.Module``.
            optimizer: Of its parameters.
            scheduler: With ``state_dict`` and ``load_state_dict``; ``None`` without one.
            processing_class: Tokenizer to seal with the model.

        Raises:
            CheckpointRefused: The checkpoint is of another model or another kind of training.
            UsageError: The loader does not read a sealed stream in this process.
        """
        self._context = context
        self._batches = (
            _Columns(data, arguments) if isinstance(data, RecordStream) else _Loaded(data)
        )
        self._arguments = arguments
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._averages = Averages()
        self._random: dict[str, Any] | None = None
        self.model = model
        self.processing_class = processing_class
        self.last: dict[str, float] = {}
        self.steps = 0
        self.rows = 0
        self.tokens: int | None = None
        if context.resume is not None:
            self._restore()

    def __iter__(self) -> Iterator[Any]:
        """As ``batches``: a script iterates over the loop as over its own loader."""
        return self.batches()

    def batches(self) -> Iterator[Any]:
        """Batches until ``max_steps`` have been used.

        They are what the loader makes. Without one they are columns of
        ``per_device_train_batch_size`` records.

        Raises:
            SealRefused, RecordInvalid: The data do not open, or break the recipe.
            SealtrainError: A checkpoint could not be sealed, or the lease on the keys ends.
        """
        steps = self._arguments.max_steps
        if self.steps >= steps:
            return
        saver = self._context.open_saver() if place().leads else None
        for batch in self._batches.give(self.rows, steps - self.steps, self._go_on):
            if saver is not None:
                saver.check()
            yield batch
            self.steps += 1
            self.rows = self._batches.rows_behind()
            self._conclude()
        if saver is not None:
            saver.flush()

    def _go_on(self) -> None:
        """Restore the random states of the checkpoint, once."""
        if self._random is not None:
            restore_random_states(self._random)
            self._random = None

    def log(self, **values: Any) -> None:
        """Note measurements of this step; averages of them are offered to the release policy.

        Args:
            values: Numbers, or tensors that hold one.
        """
        self._averages.add({name: _number(value) for name, value in values.items()})

    def _conclude(self) -> None:
        arguments, final = self._arguments, self.steps >= self._arguments.max_steps
        due = final or self.steps % arguments.save_steps == 0
        lease_keeper, saver = self._context.lease_keeper, self._context.saver
        stops = not final and stops_here(lease_keeper, saver, self.steps)
        # A checkpoint closes the interval of the averages: none of them spans two processes.
        if due or self.steps % arguments.logging_steps == 0:
            self.last = mean_over_ranks(self._averages.close())
            self._context.gate.offer(self.steps, self.last)
            refuse_not_finite(self.steps, self.last, scaled=True)
        for told in self._context.on_step:
            told(self.steps, self.last)
        if due or stops:
            random, accounts = gather_states(random_states()), to_first(self._averages.state())
            if saver is not None:
                saver.save(
                    self.steps,
                    self._state(random, accounts),
                    growth=growth_of_optimizers(self._optimizer),
                )
        if stops and lease_keeper is not None:
            if saver is not None:
                saver.flush()
            lease_keeper.end_training()

    def _state(self, random: Any, accounts: list[Any]) -> dict[str, Any]:
        """What rank 0 keeps: its own model and optimizer, and of all ranks what differs."""
        account = accounts[0] if len(accounts) == 1 else accounts
        return {
            "loop": {"rows": self.rows, "last": self.last, "account": account},
            "model": finite_state(self.model),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "random": random,
        }

    def _restore(self) -> None:
        ref = self._context.resume
        if ref is None:
            raise UsageError("there is no checkpoint to continue from")
        kept = checkpoint.load(self._context.blobs, self._context.run_id, ref)
        if "loop" not in kept or (kept["scheduler"] is None) != (self._scheduler is None):
            raise CheckpointRefused(
                "the checkpoint belongs to another kind of training",
                check="checkpoint",
                hint="resume with the script that began the run",
            )
        self._random = own_states(kept["random"])
        load_weights(self.model, kept["model"])
        self._optimizer.load_state_dict(kept["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(kept["scheduler"])
        self.steps, self.rows, self.last = ref.step, kept["loop"]["rows"], kept["loop"]["last"]
        account = kept["loop"]["account"]
        self._averages.restore(account[place().rank] if isinstance(account, list) else account)


class _Columns:
    """Batches of columns, from the stream itself."""

    def __init__(self, stream: RecordStream, arguments: TrainerArguments) -> None:
        self._stream = stream
        self._size = arguments.per_device_train_batch_size
        mine = place()
        self._step = self._size * mine.world
        self._part = RankPart(rank=mine.rank, world=mine.world, step=self._step)
        self._rows = 0

    def give(
        self, start: int, count: int, go_on: Callable[[], None]
    ) -> Iterator[dict[str, list[Any]]]:
        """``count`` batches from row ``start`` on; ``go_on`` restores random states."""
        go_on()
        self._rows = start
        stop = start + count * self._step
        for table in self._stream.batches(self._size, start, stop, part=self._part):
            self._rows += self._step
            yield table.to_pydict()

    def rows_behind(self) -> int:
        """Rows used after the batch given last."""
        return self._rows


class _Loaded:
    """Batches of a loader over a sealed stream, which prefetches them."""

    def __init__(self, loader: Any) -> None:
        stream = find_positioned(getattr(loader, "dataset", None))
        workers = int(getattr(loader, "num_workers", 0) or 0)
        if stream is None or workers:
            raise UsageError(
                "the loader does not read a sealed stream in this process",
                check="loader",
                got=f"num_workers={workers}" if stream is not None else "other data",
                expected="num_workers=0, over the stream of sealtrain.unwrap_dataset()",
                hint="a thread already prefetches; drop map_style and num_workers",
            )
        expect_dealt(loader)
        self._loader, self._stream = loader, stream
        self._ends: dict[int, int] = {}
        self._made = self._given = 0
        base = getattr(loader, "base_dataloader", loader)
        collate = base.collate_fn

        def collate_and_count(examples: list[Any]) -> Any:
            batch = collate(examples)
            self._made += 1
            self._ends[self._made] = stream.position
            return batch

        base.collate_fn = collate_and_count

    def give(self, start: int, count: int, go_on: Callable[[], None]) -> Iterator[Any]:
        """``count`` batches from row ``start`` on; ``go_on`` restores random states.

        A loader draws random numbers when an iteration begins. Accelerate's begins with the first
        batch, and draws the next one with it: its collator should draw none.
        """
        self._stream.seek({"row": start})
        self._made = self._given = 0
        self._ends.clear()
        drawn = iter(self._loader)
        if isinstance(drawn, Generator):
            drawn = chain(list(islice(drawn, 1)), drawn)
        go_on()
        for batch in islice(drawn, count):
            self._given += 1
            yield batch

    def rows_behind(self) -> int:
        """Rows used after the batch given last."""
        return self._ends.pop(self._given)


def expect_dealt(loader: Any) -> None:
    """See that of several ranks each makes the batches of its own part of a step.

    Args:
        loader: Of this rank's training data.

    Raises:
        UsageError: Every rank would read the same rows, or rank 0 those of all.
    """
    world = place().world
    if world == 1:
        return
    dataset, shares = getattr(loader, "dataset", None), False
    while dataset is not None and not shares:
        shares = getattr(dataset, "num_processes", 1) == world
        dataset = getattr(dataset, "dataset", None)
    sampler = getattr(getattr(loader, "base_dataloader", loader), "batch_sampler", None)
    shares = shares or getattr(sampler, "num_processes", 1) == world
    dispatched = hasattr(loader, "_fetch_batches")
    if dispatched or not shares:
        raise UsageError(
            "the loader does not deal the rows of a step out to the ranks",
            check="loader",
            got="batches sent by rank 0" if dispatched else "the same rows in every rank",
            expected=f"a part of each step in each of {world} ranks",
            hint="give the loader to accelerator.prepare, and leave dispatch_batches out",
        )


def _number(value: Any) -> float:
    detach = getattr(value, "detach", None)
    return float(value if detach is None else detach())
