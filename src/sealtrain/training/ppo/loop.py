"""The loop: a step is a round of answers and the updates from it.

The loop is to PPO as ``SealedRun`` is to a Hugging Face trainer: sealed checkpoints (policy, value
head, optimizer, schedule, weight of the divergence, random states, position in the data), exact
resume, evaluation, early stopping, released metrics. A checkpoint of the recipe closes the interval
of the averages; a checkpoint that is sealed because the lease ends holds the open interval.

Several ranks hold a copy of everything each. They share a round's answers and every minibatch, and
add their gradients up; only rank 0 seals and reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.best import BestSoFar
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.checkpoint_growth import growth_of_optimizers
from sealtrain.training.checkpoints.lease import stops_here
from sealtrain.training.checkpoints.randomness import (
    pause_training,
    random_states,
    restore_random_states,
)
from sealtrain.training.distributed.agreement import (
    add_up,
    gather_states,
    own_states,
    same_for_all,
)
from sealtrain.training.distributed.ranks import place
from sealtrain.training.finite import refuse_not_finite
from sealtrain.training.inputs.prompts import Prompt, check_prompt
from sealtrain.training.models.weights import finite_state, load_weights
from sealtrain.training.ppo.mathematics import (
    DivergenceWeight,
    estimate_divergence,
    policy_losses,
    value_losses,
)
from sealtrain.training.ppo.rollout import roll_out
from sealtrain.training.telemetry.averages import Averages

if TYPE_CHECKING:
    from sealtrain.recipe.phases.rlhf import PpoArguments, RlhfRecipe
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.data.hugging import Positioned
    from sealtrain.training.ppo.rollout import Rollout
    from sealtrain.training.rewards import Rewards
    from sealtrain.training.sampling import Sampler


class PpoLoop:
    """One training with PPO.

    Attributes:
        last: Latest logged values of training.
        steps: Rounds done, those of resumed runs included.
        rows: Prompts used for them.
        tokens: Tokens of prompts and answers, without padding.
        mark: Position in the data after them.
        tokens_sha256: None: the loop takes no digest of its tokens.
    """

    def __init__(
        self,
        work: TrainingContext[RlhfRecipe],
        arguments: PpoArguments,
        critic: Any,
        frozen: Any | None,
        sampler: Sampler,
        rewards: Rewards,
    ) -> None:
        """Prepare.

        Args:
            work: Recipe, store and callbacks of the run.
            arguments: Its recipe's trainer settings.
            critic: Policy and value head.
            frozen: The reference, ``None`` where it is the policy without its adapter.
            sampler: Samples answers.
            rewards: Scores them.
        """
        from transformers import Trainer, TrainingArguments

        self._work = work
        self._context = work.context
        self._arguments = arguments
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
        self.tokens_sha256: str | None = None

    def train(self, prompts: Positioned) -> None:
        """Run to the end of the recipe, from the beginning or from the context's checkpoint."""
        saver = self._context.open_saver() if place().leads else None
        if self._context.resume is not None:
            self._restore(self._context.resume)
        if self.mark is not None:
            prompts.seek(self.mark)
        records = map(check_prompt, prompts.rows())
        while self.steps < self._arguments.max_steps and not self._best.stopped:
            if saver is not None:
                saver.check()
            taken = list(islice(records, self._round_size))
            self.mark = prompts.mark()
            self._round(taken)
            self._conclude()
        if saver is None:
            return
        saver.flush()
        if saver.best is not None and saver.best.step != self.steps:
            kept = checkpoint.load(
                self._context.blobs, self._context.run_id, saver.best, wanted=["model"]
            )
            load_weights(self._critic, kept["model"])

    @property
    def _round_size(self) -> int:
        arguments = self._arguments
        return minibatch_size(arguments) * int(arguments.num_mini_batches)

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
                first=self.rows,
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
                with pause_training(self._critic):
                    measured = same_for_all(self._context.evaluation(self._critic.policy))
            best = self._best.take(self.steps, measured)
            due = due or self._best.stopped or (best and arguments.load_best_model_at_end)
        lease_keeper, saver = self._context.lease_keeper, self._context.saver
        over = final or self._best.stopped
        stops = not over and stops_here(lease_keeper, saver, self.steps)
        if due or measured or self.steps == 1 or self.steps % arguments.logging_steps == 0:
            self.last = self._averages.close() | measured
            self._context.gate.offer(self.steps, self.last)
            refuse_not_finite(self.steps, self.last)
        for told in self._context.on_step:
            told(self.steps, self.last)
        if due or stops:
            self._save()
        if stops and lease_keeper is not None:
            if saver is not None:
                saver.flush()
            lease_keeper.end_training()

    def _is_best(self, step: int) -> bool:
        return bool(self._arguments.load_best_model_at_end) and self._best.step == step

    def _save(self) -> None:
        saver = self._context.saver
        random = gather_states(random_states())
        if saver is None:
            return
        saver.flush()
        kept = {
            "model": finite_state(self._critic),
            "optimizer": self._trainer.optimizer.state_dict(),
            "scheduler": self._trainer.lr_scheduler.state_dict(),
            "random": random,
            "mark": self.mark,
            "rows": self.rows,
            "tokens": self.tokens,
            "kl_coef": self._weight.coefficient,
            "last": self.last,
            "account": self._averages.state(),
            "best": self._best.state(),
            "best_kept": None if saver.best is None else asdict(saver.best),
        }
        growth = growth_of_optimizers(self._trainer.optimizer)
        saver.save(self.steps, kept, best=self._is_best(self.steps), growth=growth)

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
        states = own_states(kept["random"])
        if states is not None:  # always: rlhf continues on its own number
            restore_random_states(states)


def minibatch_size(arguments: Any) -> int:
    """Answers that all ranks together take for one update."""
    batch: int = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    return batch * place().world


def learn(trainer: Any, sampler: Sampler, rollout: Rollout, arguments: Any) -> dict[str, float]:
    """Update policy and values from a round.

    Args:
        trainer: A Transformers trainer that holds critic, optimizer and precision.
        sampler: Makes batches of answers.
        rollout: The round.
        arguments: The recipe's trainer settings.

    Returns:
        Means over the minibatches: ``loss``, ``policy_loss``, ``value_loss``, ``entropy``,
        ``clip_ratio``, ``policy_kl`` (how far the policy moved), ``grad_norm``.
    """
    import torch

    averages = Averages()
    size = minibatch_size(arguments)
    for _ in range(arguments.num_ppo_epochs):
        # Dropout moves the generators of ranks apart.
        order = same_for_all(torch.randperm(len(rollout.answers)).tolist())
        for at in range(0, len(order), size):
            rows = order[at : at + size]
            measured = _gradients(trainer, sampler, rollout, rows, arguments)
            if arguments.target_kl is not None and measured["policy_kl"] > arguments.target_kl:
                trainer.optimizer.zero_grad(set_to_none=True)
                return averages.close() or measured
            averages.add(measured | {"grad_norm": _step(trainer, arguments)})
    return averages.close()


def _gradients(
    trainer: Any, sampler: Sampler, rollout: Rollout, rows: list[int], arguments: Any
) -> dict[str, float]:
    """Accumulate the gradients of one minibatch, each token of it weighing the same.

    Ranks take its parts in turns; gradients and measurements are those of all of them.
    """
    import torch

    mine = place()
    total = float(rollout.mask[rows].sum())
    sums: dict[str, float] = {}
    parts = list(_parts(rows, arguments.per_device_train_batch_size))
    for part in parts[mine.rank :: mine.world]:
        batch = sampler.batch([rollout.answers[row] for row in part], rollout.mask.device)
        width = batch.answered.shape[1]
        mask = rollout.mask[part, :width]
        old, values = rollout.chances[part, :width], rollout.values[part, :width]
        with trainer.accelerator.autocast():
            new, entropies, guesses = trainer.model(batch, sampler.temperature)
        # Values in padding must stay finite: they are multiplied by 0.
        new = torch.where(mask.bool(), new, old)
        losses, clipped = policy_losses(
            new, old, rollout.advantages[part, :width], clip=arguments.cliprange
        )
        errors = value_losses(
            guesses, values, rollout.returns[part, :width], clip=arguments.cliprange_value
        )
        policy_loss, value_loss = (losses * mask).sum() / total, (errors * mask).sum() / total
        loss = policy_loss + arguments.vf_coef * value_loss
        loss.backward()
        for name, value in (
            ("loss", loss),
            ("policy_loss", policy_loss),
            ("value_loss", value_loss),
            ("entropy", (entropies * mask).sum() / total),
            ("clip_ratio", (clipped * mask).sum() / total),
            ("policy_kl", (estimate_divergence(new, old) * mask).sum() / total),
        ):
            sums[name] = sums.get(name, 0.0) + float(value.detach())
    whole = torch.tensor(list(sums.values()), dtype=torch.float64)
    add_up([whole])
    _add_up_gradients(trainer.model)
    return dict(zip(sums, whole.tolist(), strict=True))


def _add_up_gradients(model: Any) -> None:
    """Give every rank the sum of all ranks' gradients; a weight that none used keeps none."""
    import torch

    if place().world == 1:
        return
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    used = torch.tensor([parameter.grad is not None for parameter in learning], dtype=torch.int32)
    add_up([used])
    for parameter, ranks in zip(learning, used.tolist(), strict=True):
        if ranks and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    add_up(parameter.grad for parameter in learning if parameter.grad is not None)


def _step(trainer: Any, arguments: Any) -> float:
    import torch

    learning = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    limit = arguments.max_grad_norm or float("inf")
    norm = float(torch.nn.utils.clip_grad_norm_(learning, limit))
    trainer.optimizer.step()
    trainer.optimizer.zero_grad(set_to_none=True)
    return norm


def _parts(rows: list[int], size: int) -> Iterator[list[int]]:
    for at in range(0, len(rows), size):
        yield rows[at : at + size]
