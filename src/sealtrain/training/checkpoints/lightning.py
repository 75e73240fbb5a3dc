"""``RunLightning``: sealed checkpoints, exact resume and released metrics under Lightning.

1. It takes loggers and Lightning's own checkpoints, which are pickles, out of the trainer.
2. Every ``save_steps`` of the recipe, and after the last step, it seals weights, optimizers,
   schedulers, Lightning's progress, random states and the row of the stream behind the last batch.
   If the lease on the keys is not renewed, it seals them then and the run stops.
3. A resumed run begins with the batch after its checkpoint, in the same state.
4. Every ``logging_steps`` of the recipe the averages of what ``self.log`` was given leave, if the
   release policy names them.

Lightning has drawn the next batch when a step ends, and one batch when training begins. So the
random states of a checkpoint are those after a batch was drawn, and are restored after one was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import Checkpoint

from sealtrain.errors import UsageError
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint_growth import growth_of_optimizers
from sealtrain.training.checkpoints.lease import stops_here
from sealtrain.training.checkpoints.randomness import random_states, restore_random_states
from sealtrain.training.finite import refuse_not_finite
from sealtrain.training.models.weights import finite_state, load_weights
from sealtrain.training.telemetry.averages import Averages

if TYPE_CHECKING:
    from sealtrain.training.checkpoints.run_context import RunContext
    from sealtrain.training.data.hugging import Positioned


class RunLightning(Callback):
    """See the module.

    Attributes:
        last: Averages reported last.
        steps: Optimizer steps done, resumed ones included.
        rows: Records used for them.
        tokens: ``None``: Lightning does not count tokens.
    """

    def __init__(self, context: RunContext, stream: Callable[[], Positioned]) -> None:
        """Attach to a run.

        Args:
            stream: Gives the stream that the trainer reads, once training begins.
        """
        super().__init__()
        self._context, self._find_stream = context, stream
        self._averages = Averages()
        self._random: dict[str, Any] | None = None
        self._batch_rows = 0
        self._first_row = 0
        self._batches = 0
        self.last: dict[str, float] = {}
        self.steps = 0
        self.rows = 0
        self.tokens: int | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Keep Lightning from writing by itself, and refuse what cannot be resumed."""
        if trainer.world_size != 1:
            raise UsageError(
                "a guest trains with Lightning in one process",
                check="trainer",
                got=f"world size {trainer.world_size}",
                hint="set devices=1",
            )
        trainer.loggers = []
        trainer.callbacks = [
            callback for callback in trainer.callbacks if not isinstance(callback, Checkpoint)
        ]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore the checkpoint to continue from, if there is one."""
        self._context.open_saver()
        ref = self._context.resume
        if ref is None:
            return
        kept = checkpoint.load(self._context.blobs, self._context.run_id, ref)
        if "lightning" not in kept:
            raise CheckpointRefused(
                "the checkpoint belongs to another kind of training",
                check="checkpoint",
                hint="resume with the script that began the run",
            )
        load_weights(pl_module, kept["model"])
        for optimizer, state in zip(trainer.optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        for config, state in zip(trainer.lr_scheduler_configs, kept["schedulers"], strict=True):
            config.scheduler.load_state_dict(state)
        trainer.fit_loop.load_state_dict(kept["lightning"]["progress"])
        self.steps, self.rows = ref.step, kept["lightning"]["rows"]
        self.last = kept["lightning"]["last"]
        self._averages.restore(kept["lightning"]["account"])
        self._first_row, self._random = self.rows, kept["random"]
        self._find_stream().seek({"row": self.rows})

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Look at the loader, and go on with the random states of the checkpoint."""
        loader = trainer.train_dataloader
        size, workers = getattr(loader, "batch_size", None), getattr(loader, "num_workers", 0)
        if not size or workers:
            raise UsageError(
                "the loader's batches cannot be counted in rows of the sealed stream",
                check="loader",
                got=f"batch_size={size}, num_workers={workers}",
                expected="one DataLoader with batch_size, and num_workers=0",
            )
        self._find_stream()
        self._batch_rows, self._batches = int(size), 0
        if self._random is not None:
            restore_random_states(self._random)
            self._random = None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count, release metrics, seal a checkpoint if one is due."""
        self._batches += 1
        self.rows = self._first_row + self._batches * self._batch_rows
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self._averages.add(logged)
        if trainer.global_step == self.steps:
            return  # gradients of this batch are still being accumulated
        self.steps = trainer.global_step
        arguments, saver = self._context.arguments, self._context.saver
        if arguments is None or saver is None:
            return
        saver.check()
        final = 0 <= trainer.max_steps <= self.steps or trainer.should_stop
        due = final or self.steps % arguments.save_steps == 0
        lease_keeper = self._context.lease_keeper
        stops = not final and stops_here(lease_keeper, saver, self.steps)
        if due or self.steps % arguments.logging_steps == 0:
            self.last = self._averages.close()
            self._context.gate.offer(self.steps, self.last)
            refuse_not_finite(self.steps, self.last, scaled=True)
        for told in self._context.on_step:
            told(self.steps, self.last)
        if due or stops:
            growth = growth_of_optimizers(*trainer.optimizers)
            saver.save(self.steps, self._state(trainer, pl_module), growth=growth)
        if stops and lease_keeper is not None:
            saver.flush()
            lease_keeper.end_training()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Wait for the last checkpoint."""
        if self._context.saver is not None:
            self._context.saver.flush()

    def _state(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        return {
            "lightning": {
                "rows": self.rows,
                "last": self.last,
                "account": self._averages.state(),
                "progress": trainer.fit_loop.state_dict(),
            },
            "model": finite_state(pl_module),
            "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
            "schedulers": [
                config.scheduler.state_dict() for config in trainer.lr_scheduler_configs
            ],
            "random": random_states(),
        }
