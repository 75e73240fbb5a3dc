"""``SealedRun``: sealed checkpoints, exact resume and released metrics for any Hugging Face trainer.

One callback does it for ``sealtrain train`` and for a user's own script. It

1. turns off everything the trainer would write or report by itself;
2. seals a checkpoint every ``save_steps``, after that step's metrics left;
3. on resume restores weights, optimizer, scheduler, random states and the data position, so that
   the continued run equals the uninterrupted one bit for bit on the same machine;
4. lets out the metrics that the release policy names.

The data position is computed from the global step, never read off a live iterator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sealtrain.errors import CheckpointRefused
from sealtrain.training import checkpoint, quiet

quiet.silence()

from transformers import TrainerCallback  # noqa: E402  # after silence()

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from sealtrain.training.checkpoint import CheckpointRef
    from sealtrain.training.egress import MetricGate
    from sealtrain.training.loaders.hugging import Positioned
    from sealtrain.training.sources import BlobStore

__all__ = ["RunContext", "SealedRun"]

_TRACKED = ("loss", "learning_rate", "grad_norm")


@dataclass(slots=True, kw_only=True)
class RunContext:
    """What the callback needs of the run around it.

    Attributes:
        run_id: 32 hex digits.
        store: Seals checkpoints.
        gate: Lets metrics out.
        on_checkpoint: Told of every sealed checkpoint; may refuse to go on.
        resume: Checkpoint to continue from, ``None`` to begin.
        streams: Data streams whose position follows the step.
        keep: How many checkpoints stay.
        on_step: Told of every step and its loss where known, for a progress bar.
    """

    run_id: str
    store: BlobStore
    gate: MetricGate
    on_checkpoint: Callable[[CheckpointRef], None]
    resume: CheckpointRef | None
    streams: list[Positioned] = field(default_factory=list)
    keep: int = 2
    on_step: Sequence[Callable[[int, dict[str, float]], None]] = ()


class SealedRun(TrainerCallback):  # type: ignore[misc]  # transformers ships no types for it
    """See the module. Give it to a trainer as ``callbacks=[SealedRun(context)]``."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._counter = 0
        self._began_at = 0
        self._due = False
        self._random_states: dict[str, Any] | None = None
        self._save_steps = 0
        self.last: dict[str, float] = {}
        self.steps = 0
        self.tokens: int | None = None

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Keep the trainer from writing and reporting by itself."""
        self._save_steps = int(args.save_steps)
        args.save_strategy = "no"
        args.report_to = []
        args.push_to_hub = False
        args.logging_dir = None
        if args.load_best_model_at_end:
            raise CheckpointRefused(
                "load_best_model_at_end reads plaintext checkpoints",
                check="trainer",
                hint="leave it out; sealed checkpoints are kept for you",
            )

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **objects: Any,
    ) -> None:
        """Restore the checkpoint to continue from, if there is one."""
        args.save_strategy = "no"
        ref = self._context.resume
        if ref is None:
            return
        kept = checkpoint.load(self._context.store, self._context.run_id, ref)
        _load_weights(objects["model"], kept["model"])
        objects["optimizer"].load_state_dict(kept["optimizer"])
        objects["lr_scheduler"].load_state_dict(kept["scheduler"])
        state.global_step = ref.step
        state.num_input_tokens_seen = kept["tokens"]
        self._counter = ref.counter
        self._began_at = ref.step
        self._random_states = kept["random"]
        for stream in self._context.streams:
            stream.start = ref.step * _rows_per_step(args)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **objects: Any,
    ) -> None:
        """Restore random states once the data iterator has drawn from them; save what is due."""
        if self._random_states is not None:
            checkpoint.restore_random_states(self._random_states)
            self._random_states = None
        if self._due:
            self._due = False
            self._save(state, objects)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Note that a checkpoint is due; it is sealed after this step's metrics left."""
        self._due = state.global_step % self._save_steps == 0
        self.steps = int(state.global_step)
        self.tokens = int(state.num_input_tokens_seen) or None
        for told in self._context.on_step:
            told(int(state.global_step), self.last)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Offer the step's measurements to the release policy."""
        values = {
            name: float(value)
            for name, value in (logs or {}).items()
            if name in _TRACKED and isinstance(value, (int, float))
        }
        if "loss" in values and self._began_at:
            # The trainer divides by all steps so far; only those since the resume were added up.
            step = int(state.global_step)
            values["loss"] *= step / (step - self._began_at)
        self._began_at = 0
        if values:
            self.last = values
            self._context.gate.offer(int(state.global_step), values)

    def _save(self, state: TrainerState, objects: dict[str, Any]) -> None:
        self._counter += 1
        kept = {
            "model": trainable_state(objects["model"]),
            "optimizer": objects["optimizer"].state_dict(),
            "scheduler": objects["lr_scheduler"].state_dict(),
            "random": checkpoint.random_states(),
            "tokens": int(state.num_input_tokens_seen),
        }
        ref = checkpoint.save(
            self._context.store,
            self._context.run_id,
            self._counter,
            int(state.global_step),
            kept,
        )
        self._context.on_checkpoint(ref)
        checkpoint.prune(self._context.store, self._context.keep)


def trainable_state(model: Any) -> dict[str, Any]:
    """Trainable parameters and persistent buffers by name."""
    frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
    return {name: one for name, one in model.state_dict().items() if name not in frozen}


def _load_weights(model: Any, kept: dict[str, Any]) -> None:
    result = model.load_state_dict(kept, strict=False)
    missing = set(trainable_state(model)) & set(result.missing_keys)
    if result.unexpected_keys or missing:
        raise CheckpointRefused(
            "the checkpoint is of another model",
            check="weights",
            got=f"{len(result.unexpected_keys)} unknown and {len(missing)} missing tensors",
            hint="resume with the recipe the run began with",
        )


def _rows_per_step(args: TrainingArguments) -> int:
    return int(
        args.per_device_train_batch_size
        * max(1, args.n_gpu)
        * args.gradient_accumulation_steps
        * args.world_size
    )
