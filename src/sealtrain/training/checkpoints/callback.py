"""``RunCallback``: sealed checkpoints, exact resume, released metrics for any Hugging Face trainer.

The same callback serves ``sealtrain train`` and an engineer's own script:

1. It turns off everything the trainer would write or report by itself.
2. It saves a checkpoint every ``save_steps`` and after the last step. A checkpoint closes the
   interval of the running loss average, and is copied once that step's metrics have left: just
   before the next step draws its first random number. It is sealed while training goes on; a
   failure there stops the run at a later step, at the latest before training returns. Where ranks
   share the model out, each seals its shard, and rank 0 the rest once all shards are complete.
3. On resume it restores weights, optimizer, scheduler, random states, loss history and the data
   position, so that the continued run equals the uninterrupted one bit for bit on the same machine.
4. It releases the metrics that the release policy names.
5. Every ``eval_steps`` it measures the model with the phase's own evaluation, which closes the
   interval of the running loss average too. It stops early and ends with the best weights when the
   recipe says so; the best evaluation always has a sealed checkpoint.
6. If the lease on the keys is not renewed, it seals a checkpoint and stops, after a step that the
   recipe logs if there is time. Otherwise the checkpoint holds the averages of the open interval;
   after the resume, the averages of the whole interval leave, never those of a part.
7. A loss or gradient norm that is not finite ends the training once it has left, and weights that
   are not finite go into no checkpoint (``training.finite``).

A pure callback is enough; the trainer keeps its class. A trainer's private attributes (the step of
its last log, the epoch's step counter, TRL's count of tokens) show only in three logged numbers,
which the callback corrects.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from math import lcm
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.best import BestSoFar
from sealtrain.training.checkpoints.checkpoint_growth import (
    growth_of_index,
    growth_of_log,
    growth_of_optimizers,
    growth_of_ranks,
)
from sealtrain.training.checkpoints.lease import stops_here
from sealtrain.training.checkpoints.position import DataPosition
from sealtrain.training.checkpoints.randomness import (
    pause_training,
    random_states,
    restore_random_states,
    seed_again,
)
from sealtrain.training.checkpoints.shards import SHARDS
from sealtrain.training.checkpoints.shardsaver import require_finite_in_all
from sealtrain.training.data.hugging import find_positioned
from sealtrain.training.distributed.agreement import gather_states, own_states, same_for_all
from sealtrain.training.distributed.dealing import deal_rows
from sealtrain.training.distributed.ranks import place
from sealtrain.training.finite import (
    first_not_finite,
    refuse_left_out_steps,
    refuse_not_finite,
    require_finite_model,
    require_finite_weights,
)
from sealtrain.training.models.weights import load_weights
from sealtrain.training.telemetry.averages import OpenInterval, mean_since

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain.training.checkpoints.run_context import RunContext

# The trainer's last log sums up the call to train(): times, not measurements of the model.
_SUMMARY = "train_loss"


class RunCallback(TrainerCallback):
    """See the module. Give it to a trainer as ``callbacks=[SealedRun(context)]``.

    Attributes:
        last: Latest logged values of training.
        steps: Optimizer steps done, resumed ones included.
        rows: Training rows used for them.
        tokens: Tokens without padding, ``None`` where the trainer does not count them.
        mark: Position in the data after them (``Positioned.mark``), ``None`` if unknown.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._resumed_at: int | None = None
        self._unlogged_since: int | None = None
        self._tokens_before = 0.0
        self._due = False
        self._waiting: tuple[Callable[[dict[str, Any]], None], dict[str, Any]] | None = None
        self._random_states: dict[str, Any] | None = None
        self._seeds_again: str | None = None
        self._position: DataPosition | None = None
        self._save_steps = 0
        self._best = None if context.arguments is None else BestSoFar(context.arguments)
        self._measured: dict[str, float] = {}
        self._stopping = False
        self._closes = True
        self._logged_at = 0
        self._opened: OpenInterval | None = None
        self.last: dict[str, float] = {}
        self.steps = 0
        self.rows = 0
        self.tokens: int | None = None
        self.mark: dict[str, Any] | None = None

    @property
    def tokens_sha256(self) -> str | None:
        """Digest of the tokens trained on, in order; ``None`` where the phase takes none."""
        return None if self.mark is None else self.mark.get("tokens_sha256")

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Keep the trainer from writing and reporting by itself."""
        from transformers.trainer_utils import SaveStrategy

        args.save_strategy = SaveStrategy.NO
        args.report_to = []
        args.push_to_hub = False
        args.logging_nan_inf_filter = False
        if args.load_best_model_at_end:
            raise CheckpointRefused(
                "load_best_model_at_end reads plaintext checkpoints",
                check="trainer",
                hint="leave it out: SealedRun keeps sealed checkpoints",
            )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> TrainerControl:
        """Restore the checkpoint to continue from, if there is one."""
        # A fraction of all steps is resolved in the state, not in the arguments.
        self._save_steps = max(1, int(state.save_steps))
        loader, stream = objects["train_dataloader"], self._context.stream
        if stream is None:
            stream = find_positioned(loader.dataset)
        else:
            deal_rows(loader, stream)
        self._position = DataPosition(args, loader, stream)
        self._refuse_unmeasured()
        if place().leads and self._context.store is not None:
            self._context.open_saver()
        self._context.open_shards()
        ref = self._context.resume
        if ref is None:
            learning = objects["model"].named_parameters()
            require_finite_weights(
                {name: parameter for name, parameter in learning if parameter.requires_grad}
            )
        else:
            self._restore(ref, state, objects)
            stopped = self._best is not None and self._best.stopped
            if stopped or state.global_step >= state.max_steps:
                self._position.give_nothing()
                control.should_training_stop = True
        return control

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """Restore random states once the data iterator has drawn from them; save if due."""
        if self._random_states is not None:
            restore_random_states(self._random_states)
            self._random_states = None
        elif self._seeds_again is not None:
            seed_again(self._seeds_again)
        self._seeds_again = None
        if self._context.saver is not None:
            self._context.saver.check()
        self._settle(wait=False)
        self._save_if_due(state, objects)
        if self._stopping:
            self._settle(wait=True)
        if self._stopping and self._context.lease_keeper is not None:
            if self._context.saver is not None:
                self._context.saver.flush()
            self._context.lease_keeper.end_training()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> TrainerControl:
        """Evaluate if due; a due checkpoint is sealed after this step's metrics have left."""
        self.steps = int(state.global_step)
        refuse_left_out_steps(_scaler_of(objects), self.steps, ended=False)
        self.tokens = int(state.num_input_tokens_seen) or None
        if self._position is not None:
            self.rows = self._position.rows_at(self.steps)
            self.mark = self._position.mark
        if self._resumed_at is not None and self._position is not None:
            state.epoch = self._position.epoch_at(self.steps, state)
        self._due = self.steps % self._save_steps == 0 or self.steps >= state.max_steps
        self._evaluate_if_due(control, objects["model"])
        self._closes = self._due or control.should_log
        self._stopping = not control.should_training_stop and self._stops_here(state)
        self._due = self._due or self._stopping
        if self._due:
            control.should_log = True
        control.should_save = False
        for told in self._context.on_step:
            told(self.steps, self.last)
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """Save after the last step."""
        if control.should_training_stop:
            self._save_if_due(state, objects)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        """Wait for the last checkpoint; restore the best weights, if the recipe wants them."""
        refuse_left_out_steps(_scaler_of(objects), self.steps, ended=True)
        self._settle(wait=True)
        saver = self._context.saver
        if saver is None:
            return
        saver.flush()
        if saver.best is not None and saver.best.step != self.steps:
            wanted, context = ["model"], self._context
            kept = checkpoint.load(context.blobs, context.run_id, saver.best, wanted=wanted)
            load_weights(objects["model"], kept["model"])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Correct the first loss after a resume, then offer the values to the release policy."""
        if logs is None or _SUMMARY in logs:
            return
        mended: dict[str, float] = {}
        if self._unlogged_since is not None and "loss" in logs:
            mended["loss"] = mean_since(logs["loss"], state.global_step, self._unlogged_since)
            self._unlogged_since = None
        if "num_tokens" in logs:  # TRL counts from the start of the process
            mended["num_tokens"] = logs["num_tokens"] + self._tokens_before
        mended |= self._measured
        self._measured = {}
        step, opened = int(state.global_step), self._opened
        if opened is not None and "loss" in logs:
            mended |= opened.close(logs | mended, step)
            self._opened = None
        logs.update(mended)
        state.log_history[-1].update(mended)
        values = {
            name: float(value) for name, value in logs.items() if isinstance(value, (int, float))
        }
        diverged = first_not_finite(values, scaled=bool(args.fp16)) is not None
        if self._stopping and not self._closes and not diverged:
            since = self._logged_at if opened is None else opened.since
            self._opened = OpenInterval(since, step, values)
            del state.log_history[-1]
            return
        if "loss" in values:
            self.last, self._logged_at = values, step
        self._context.gate.offer(step, values)
        if not self._context.takes_back:
            refuse_not_finite(step, values, scaled=bool(args.fp16))

    def _refuse_unmeasured(self) -> None:
        arguments = self._context.arguments
        if arguments is None or arguments.eval_steps is None or self._context.evaluation:
            return
        raise RecipeInvalid(
            "training cannot evaluate: this run has no evaluation",
            check="trainer.eval_steps",
            hint="leave eval_steps out, or give SealedRun an evaluation in your own script",
        )

    def _evaluate_if_due(self, control: TrainerControl, model: Any) -> None:
        arguments, evaluation = self._context.arguments, self._context.evaluation
        if arguments is None or self._best is None or evaluation is None:
            return
        if not arguments.eval_steps or self.steps % arguments.eval_steps:
            return
        with pause_training(model):
            # Every rank measures, since all may be needed for it; one answer decides for all.
            self._measured = same_for_all(evaluation(model))
        control.should_log = True
        if self._best.take(self.steps, self._measured) and arguments.load_best_model_at_end:
            self._due = True
        if self._best.stopped:
            self._due = control.should_training_stop = True

    def _stops_here(self, state: TrainerState) -> bool:
        """Whether training ends after this step because the lease ends."""
        arguments = self._context.arguments
        # Answers of several steps are not kept in a checkpoint.
        unit = getattr(arguments, "num_iterations", 1)
        if self.steps >= state.max_steps or self.steps % unit:
            return False
        periods = [self._save_steps, max(1, int(state.logging_steps))]
        rest = [lcm(period, unit) - self.steps % lcm(period, unit) for period in periods]
        span = min(*rest, state.max_steps - self.steps) // unit
        return stops_here(
            self._context.lease_keeper,
            self._context.saver,
            self.steps,
            ahead=0 if self._closes else span,
            span=max(1, span),
        )

    def _save_if_due(self, state: TrainerState, objects: dict[str, Any]) -> None:
        if not self._due:
            return
        self._due = False
        self._settle(wait=True)
        saver, shards, begun = self._context.saver, self._context.shards, time.monotonic()
        if saver is not None:
            saver.flush()
        # All ranks together, where each holds a part; else only rank 0 gets the whole.
        weights = self._context.machinery.state(objects["model"], objects["optimizer"])
        random = gather_states(random_states())
        growth = self._growth(state, objects["optimizer"])
        if shards is not None:
            require_finite_in_all(objects["model"], weights["model"])
            room = growth_of_optimizers(objects["optimizer"]) // place().world
            shards.save(None if saver is None else saver.next(self.steps), weights, room)
        elif saver is not None:
            require_finite_model(objects["model"], weights["model"])
        if saver is None:
            return
        kept = {
            "scheduler": objects["lr_scheduler"].state_dict(),
            **_scaler_state(objects),
            "random": random,
            "rows": self.rows,
            "mark": self.mark,
            "trainer": {
                "tokens": int(state.num_input_tokens_seen),
                "flos": float(state.total_flos),
                "history": state.log_history,
            },
            "opened": None if self._opened is None else asdict(self._opened),
            "best": None if self._best is None else self._best.state(),
            "best_kept": None if saver.best is None else asdict(saver.best),
        }
        best = self._is_best(self.steps)
        save = partial(saver.save, self.steps, best=best, growth=growth, begun=begun)
        if shards is None:
            save(weights | kept)
        else:
            # Sealed once all shards are complete: training changes these meanwhile.
            self._waiting = save, copy.deepcopy(kept)

    def _settle(self, *, wait: bool) -> None:
        """Have the checkpoint sealed whose shards are complete; all ranks together."""
        shards, saver = self._context.shards, self._context.saver
        if shards is None or not shards.under_way:
            return
        make_room = (lambda: None) if saver is None else saver.make_room
        index = shards.settle(wait=wait, make_room=make_room)
        if index is None or self._waiting is None:
            return
        (save, kept), self._waiting = self._waiting, None
        save({SHARDS: index.to_state(), **kept})

    def _growth(self, state: TrainerState, optimizer: Any) -> int:
        """Bytes by which a later checkpoint may be longer than one of this step."""
        arguments = self._context.arguments
        evaluations = 0 if arguments is None else arguments.eval_steps or 0
        periods = (state.logging_steps, self._save_steps, state.eval_steps or 0, evaluations)
        numbers, now = self._context.approved_ranks, place().world
        in_shards = self._context.machinery.in_shards
        return (
            growth_of_log(state.log_history, steps=state.max_steps - self.steps, periods=periods)
            + (
                growth_of_index(optimizer, numbers, now)
                if in_shards
                else growth_of_optimizers(optimizer)
            )
            + growth_of_ranks(numbers, now)
        )

    def _is_best(self, step: int) -> bool:
        arguments, best = self._context.arguments, self._best
        wanted = arguments is not None and arguments.load_best_model_at_end
        return wanted and best is not None and best.step == step

    def _restore(self, ref: CheckpointRef, state: TrainerState, objects: dict[str, Any]) -> None:
        kept = checkpoint.load(self._context.blobs, self._context.run_id, ref)
        shards = self._context.shards
        if (shards is None) == (SHARDS in kept):
            raise CheckpointRefused(
                "the checkpoint belongs to another kind of training",
                check="shards",
                hint="resume with the recipe that began the run",
            )
        if shards is not None:
            own = self._context.machinery.state(objects["model"], objects["optimizer"])
            kept |= shards.load(ref, kept[SHARDS], own)
        self._context.machinery.restore(objects["model"], objects["optimizer"], kept)
        objects["lr_scheduler"].load_state_dict(kept["scheduler"])
        if kept.get("scaler") is not None:
            objects["optimizer"].scaler.load_state_dict(kept["scaler"])
        trainer = kept["trainer"]
        state.global_step = self.steps = ref.step
        state.num_input_tokens_seen = trainer["tokens"]
        state.total_flos = trainer["flos"]
        state.log_history = list(trainer["history"])
        self.tokens = trainer["tokens"] or None
        self.rows, self.mark = kept["rows"], kept["mark"]
        self.last = next((logged for logged in reversed(state.log_history) if "loss" in logged), {})
        self._logged_at = ref.step
        latest = self.last
        if kept["opened"] is not None:
            self._opened = OpenInterval(**kept["opened"])
            self._logged_at, latest = self._opened.since, self._opened.values
        self._tokens_before = latest.get("num_tokens", 0.0)
        if self._best is not None and kept["best"] is not None:
            self._best.restore(kept["best"])
        saver = self._context.saver
        if saver is not None and self._is_best(ref.step):
            saver.best = ref
        elif saver is not None and kept["best_kept"] is not None:
            saver.best = checkpoint.CheckpointRef(**kept["best_kept"])
        self._resumed_at = self._unlogged_since = ref.step
        self._random_states = own_states(kept["random"], self._context.approved_ranks)
        if self._random_states is None:
            mine = place()
            self._seeds_again = (
                f"sealtrain resumed ranks/{self._context.run_id}/{ref.step}"
                f"/{mine.world}/{mine.rank}"
            )
        if self._position is not None:
            self._position.resume(step=ref.step, mark=self.mark)


def _scaler_of(objects: Mapping[str, Any]) -> Any:
    """What scales the loss of ``fp16``; ``None`` where nothing does."""
    return getattr(objects.get("optimizer"), "scaler", None)


def _scaler_state(objects: Mapping[str, Any]) -> dict[str, Any]:
    scaler = _scaler_of(objects)
    return {} if scaler is None else {"scaler": scaler.state_dict()}
