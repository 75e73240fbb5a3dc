"""What a callback or a loop knows of the run around it, without a library of trainers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.checkpoints.saver import CheckpointSaver
from sealtrain.training.checkpoints.shardsaver import ShardSaver
from sealtrain.training.distributed.machinery import Copies
from sealtrain.training.distributed.ranks import place

if TYPE_CHECKING:
    from sealtrain.recipe.trainers import TrainerArguments
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain.training.checkpoints.lease import LeaseKeeping
    from sealtrain.training.data.hugging import Positioned
    from sealtrain.training.data.sources import BlobStore
    from sealtrain.training.distributed.machinery import Machinery
    from sealtrain.training.telemetry.metric_gate import MetricGate

Evaluation = Callable[[Any], dict[str, float]]
"""Measures a model on the sealed test split: metrics by name."""


@dataclass(slots=True, kw_only=True)
class RunContext:
    """The run around a callback or a loop.

    Attributes:
        run_id: 32 hex digits.
        store: Seals checkpoints; ``None`` where an interrupted part is repeated instead.
        gate: Releases metrics.
        on_checkpoint: Called with every sealed checkpoint, by the sealing thread; may raise to
            stop.
        resume: Checkpoint to continue from, ``None`` to begin.
        arguments: Trainer settings of the recipe: evaluation, early stopping and how many
            checkpoints stay. Without them none, none and two.
        evaluation: What the phase measures on the test split, set before training starts.
        stream: Training rows that a phase gives to its trainer; ``None`` where a script chooses
            them, whose stream is found under the data of its trainer.
        on_step: Called after every step with its latest logged values, for a progress bar.
        saver: Seals the checkpoints; made when training begins, by rank 0 only.
        shards: Seals this rank's shards; made when training begins, where the machinery has them.
        machinery: Knows where the recipe's backend keeps weights and optimizer.
        lease_keeper: Says when to stop for the lease's sake; ``None`` where nothing is leased.
        approved_ranks: Numbers of ranks whose checkpoints may be continued from.
        takes_back: A bound takes back what is not finite, so such numbers end nothing.
    """

    run_id: str
    store: BlobStore | None
    gate: MetricGate
    on_checkpoint: Callable[[CheckpointRef], None]
    resume: CheckpointRef | None
    arguments: TrainerArguments | None = None
    evaluation: Evaluation | None = None
    stream: Positioned | None = None
    on_step: Sequence[Callable[[int, dict[str, float]], None]] = ()
    saver: CheckpointSaver | None = None
    shards: ShardSaver | None = None
    machinery: Machinery = field(default_factory=Copies)
    lease_keeper: LeaseKeeping | None = None
    approved_ranks: Collection[int] = ()
    takes_back: bool = False

    @property
    def blobs(self) -> BlobStore:
        """The store. Raises ``CheckpointRefused`` where the run has no store."""
        if self.store is None:
            raise CheckpointRefused("this training keeps no checkpoints", check="store")
        return self.store

    def open_saver(self) -> CheckpointSaver:
        """Begin, or continue from ``resume``. For rank 0."""
        self.close()
        arguments, lease_keeper = self.arguments, self.lease_keeper
        self.saver = CheckpointSaver(
            self.blobs,
            self.run_id,
            on_sealed=self.on_checkpoint,
            keep=2 if arguments is None else arguments.save_total_limit,
            last=self.resume,
            anchored=None if lease_keeper is None else lambda: lease_keeper.anchored,
        )
        return self.saver

    def open_shards(self) -> None:
        """Begin this rank's shards, where the machinery has them."""
        if self.machinery.in_shards and self.store is not None:
            self.shards = ShardSaver(self.store, self.run_id)

    def close(self) -> None:
        """Wait for a checkpoint in flight and remove everything but checkpoints."""
        if self.shards is not None:
            self.shards.close()
            self.shards = None
        if self.saver is not None:
            self.saver.close()
            self.saver = None
        if self.store is not None and place().leads:
            self.store.sweep()
