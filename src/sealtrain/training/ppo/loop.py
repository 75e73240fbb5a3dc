"""The loop: a step is a round of answers and the updates from it.

The loop is to PPO as ``SealedRun`` is to a Hugging Face trainer: sealed checkpoints (policy, value
head, optimizer, schedule, weight of the divergence, random states, position in the data), exact
resume, evaluation, early stopping, released metrics. A checkpoint of the recipe closes the interval
of the averages; a checkpoint that is sealed because the lease ends holds the open interval.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from sealtrain.errors import CheckpointRefused
from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.best import BestSoFar
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.lease import stops_here
from sealtrain.training.checkpoints.randomness import (
    random_states,
    restore_random_states,
    undisturbed,
)
from sealtrain.training.inputs.prompts import Prompt, check_prompt
from sealtrain.training.models.weights import load_weights, trainable_state
from sealtrain.training.ppo.mathematics import DivergenceWeight
from sealtrain.training.ppo.rollout import roll_out
from sealtrain.training.ppo.update import learn
from sealtrain.training.telemetry.averages import Averages

if TYPE_CHECKING:
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.data.hugging import Positioned
    from sealtrain.training.rewards import Rewards
    from sealtrain.training.sampling import Sampler

__all__ = ["PpoLoop"]


class PpoLoop:
    """One training with PPO.

    Attributes:
        last: Latest logged values of training.
        steps: Rounds done, those of resumed runs included.
        rows: Prompts used for them.
        tokens: Tokens of prompts and answers, without padding.
        mark: Position in the data after them.
    """

    def __init__(
        self,
        work: TrainingContext,
        critic: Any,
        frozen: Any | None,
        sampler: Sampler,
        rewards: Rewards,
    ) -> None:
        """Prepare.

        Args:
            work: Recipe, store and callbacks of the run.
            critic: Policy and value head.
            frozen: The reference, ``None`` where it is the policy without its adapter.
            sampler: Samples answers.
            rewards: Scores them.
        """
        from transformers import Trainer, TrainingArguments

        self._work = work
        self._context = work.context
        self._arguments = work.recipe.trainer
        settings = trainer_arguments(self._arguments, work.scratch)
        # Optimizer, schedule, precision and place of the model are the trainer's; the loop is ours.
        self._trainer: Any = Trainer(model=critic, args=TrainingArguments(**settings))
        self._trainer.create_optimizer_and_scheduler(self._arguments.max_steps)
        self._critic = critic
        self._frozen = None if frozen is None else frozen.to(self._trainer.args.device)
        self._sampler = sampler
        self._rewards = rewards
        self._weight = DivergenceWeight(
            self._arguments.init_kl_coef,
            target=self._arguments.kl_target,
            horizon=self._arguments.kl_horizon,
        )
        self._best = BestSoFar(self._arguments)
        self._averages = Averages()
        self.last: dict[str, float] = {}
        self.steps = 0
        self.rows = 0
        self.tokens = 0
        self.mark: dict[str, Any] | None = None

    def train(self, prompts: Positioned) -> None:
        """Run to the end of the recipe, from the beginning or from the context's checkpoint."""
        saver = self._context.open_saver()
        if self._context.resume is not None:
            self._restore(self._context.resume)
        if self.mark is not None:
            prompts.seek(self.mark)
        records = map(check_prompt, prompts.rows())
        while self.steps < self._arguments.max_steps and not self._best.stopped:
            saver.check()
            taken = list(islice(records, self._round_size))
            self.mark = prompts.mark()
            self._round(taken)
            self._conclude()
        saver.flush()
        if saver.best is not None and saver.best.step != self.steps:
            kept = checkpoint.load(
                self._context.blobs, self._context.run_id, saver.best, wanted=["model"]
            )
            load_weights(self._critic, kept["model"])

    @property
    def _round_size(self) -> int:
        one = self._arguments
        batch: int = one.per_device_train_batch_size * one.gradient_accumulation_steps
        return batch * int(one.num_mini_batches)

    def _round(self, prompts: list[Prompt]) -> None:
        arguments = self._arguments
        self._critic.eval()
        with self._trainer.accelerator.autocast():
            rollout = roll_out(
                self._critic,
                self._frozen,
                self._sampler,
                self._rewards,
                prompts,
                coefficient=self._weight.coefficient,
                arguments=arguments,
            )
        self._critic.train()
        rate = self._trainer.lr_scheduler.get_last_lr()[0]
        learned = learn(self._trainer, self._sampler, rollout, arguments)
        self._trainer.lr_scheduler.step()
        count = len(prompts)
        self._averages.add(
            learned
            | {
                "reward": float(rollout.scores.mean()),
                "kl": rollout.divergence,
                "kl_coef": self._weight.coefficient,
                "completion_length": float(rollout.mask.sum()) / count,
                "learning_rate": rate,
            }
        )
        self._weight.correct(rollout.divergence, count)
        self.steps += 1
        self.rows += count
        self.tokens += rollout.tokens

    def _conclude(self) -> None:
        """Do the evaluation, report and checkpoint that are due after this step."""
        arguments = self._arguments
        final = self.steps >= arguments.max_steps
        due = final or self.steps % arguments.save_steps == 0
        measured: dict[str, float] = {}
        if arguments.eval_steps and self.steps % arguments.eval_steps == 0:
            if self._context.evaluation is not None:
                with undisturbed(self._critic):
                    measured = self._context.evaluation(self._critic.policy)
            best = self._best.take(self.steps, measured)
            due = due or self._best.stopped or (best and arguments.load_best_model_at_end)
        keeper, saver = self._context.keeper, self._context.saver
        over = final or self._best.stopped
        stops = not over and stops_here(keeper, saver, self.steps)
        if due or measured or self.steps == 1 or self.steps % arguments.logging_steps == 0:
            self.last = self._averages.close() | measured
            self._context.gate.offer(self.steps, self.last)
        for told in self._context.on_step:
            told(self.steps, self.last)
        if due or stops:
            self._save()
        if stops and keeper is not None and saver is not None:
            saver.flush()
            keeper.stopped()

    def _is_best(self, step: int) -> bool:
        return bool(self._arguments.load_best_model_at_end) and self._best.step == step

    def _save(self) -> None:
        saver = self._context.saver
        if saver is None:
            return
        saver.flush()
        kept = {
            "model": trainable_state(self._critic),
            "optimizer": self._trainer.optimizer.state_dict(),
            "scheduler": self._trainer.lr_scheduler.state_dict(),
            "random": random_states(),
            "mark": self.mark,
            "rows": self.rows,
            "tokens": self.tokens,
            "kl_coef": self._weight.coefficient,
            "last": self.last,
            "account": self._averages.state(),
            "best": self._best.state(),
            "best_kept": None if saver.best is None else asdict(saver.best),
        }
        saver.save(self.steps, kept, best=self._is_best(self.steps))

    def _restore(self, ref: CheckpointRef) -> None:
        kept = checkpoint.load(self._context.blobs, self._context.run_id, ref)
        if "kl_coef" not in kept:
            raise CheckpointRefused(
                "the checkpoint is of another training than PPO",
                check="checkpoint",
                hint="resume with the recipe that began the run",
            )
        load_weights(self._critic, kept["model"])
        self._trainer.optimizer.load_state_dict(kept["optimizer"])
        self._trainer.lr_scheduler.load_state_dict(kept["scheduler"])
        self._weight.coefficient = kept["kl_coef"]
        self._best.restore(kept["best"])
        self.steps, self.rows, self.tokens = ref.step, kept["rows"], kept["tokens"]
        self.last, self.mark = kept["last"], kept["mark"]
        self._averages.restore(kept["account"])
        saver = self._context.saver
        if saver is not None and self._is_best(ref.step):
            saver.best = ref
        elif saver is not None and kept["best_kept"] is not None:
            saver.best = CheckpointRef(**kept["best_kept"])
        restore_random_states(kept["random"])
