"""``rlhf``: reinforcement learning on sealed prompts: PPO (own loop), RLOO and GRPO (TRL's).

The model answers sealed prompts, a rule or a measured reward model scores the answers, and answers
with a high reward become likelier. The reference is the base model; with an adapter, the model
without it. Answers exist in memory only: no log, no file and no message holds one.

On the sealed test split, with answers sampled as in training and always from the same random
numbers: ``eval_reward``, the mean reward; ``eval_reward_before``, the same of the reference, which
is the model before training; ``eval_kl``, the mean divergence of an answer from the reference in
nats; ``eval_length``, the mean number of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sealtrain.training.arguments import trainer_arguments
from sealtrain.training.checkpoints.callback import RunCallback
from sealtrain.training.checkpoints.randomness import pause_training
from sealtrain.training.context import PhaseResult
from sealtrain.training.data.hugging import as_iterable_dataset
from sealtrain.training.distributed.dealing import read_together
from sealtrain.training.distributed.ranks import place
from sealtrain.training.inputs.preferences import own_arguments
from sealtrain.training.inputs.prompts import Prompt, check_prompt, test_prompts, training_prompts
from sealtrain.training.measuring import train_and_measure
from sealtrain.training.models.adapters import adapter_config
from sealtrain.training.models.base import build_causal_model, build_tokenizer
from sealtrain.training.rewards import Rewards, rewards_of
from sealtrain.training.sampling import Sampler, likelihood, reference

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sealtrain.recipe.phases.rlhf import GrpoArguments, PpoArguments, RlhfRecipe, RlooArguments
    from sealtrain.training.context import TrainingContext, TrainingCounts
    from sealtrain.training.data.hugging import Positioned
    from sealtrain.training.ppo.loop import PpoLoop


def train(work: TrainingContext[RlhfRecipe]) -> PhaseResult:
    """Train and evaluate."""
    tokenizer = build_tokenizer(work.recipe, work.base_dir)
    prompts = training_prompts(work, tokenizer)
    frozen = None
    if work.recipe.peft is None:
        frozen = (
            build_causal_model(work.recipe, work.base_dir, tokenizer)
            .train(False)
            .requires_grad_(False)
        )
    trial = _Trial(work, tokenizer, frozen)
    arguments = work.recipe.trainer
    model: Any
    counts: TrainingCounts
    if arguments.algorithm == "ppo":
        model, counts = _ppo(work, arguments, trial, prompts)
    else:
        model, counts = _groups(work, arguments, tokenizer, trial, prompts)
    if model is None:  # another rank than the first
        return PhaseResult(tokenizer=tokenizer, counts=counts)
    with pause_training(model):
        metrics = trial.final(model)
    return PhaseResult(model=model, tokenizer=tokenizer, metrics=metrics, counts=counts)


class _Trial:
    """Common to all methods: the reference, sampling, rewards, the test prompts."""

    def __init__(
        self,
        work: TrainingContext[RlhfRecipe],
        tokenizer: PreTrainedTokenizerBase,
        frozen: PreTrainedModel | None,
    ) -> None:
        self.policy = build_causal_model(work.recipe, work.base_dir, tokenizer)
        self.frozen = frozen
        self.sampler = Sampler(tokenizer, self.policy, work.recipe.trainer)
        self.rewards: Rewards = rewards_of(work)
        self._seed = work.recipe.trainer.seed
        self._size = work.recipe.trainer.per_device_eval_batch_size
        self._prompts = test_prompts(work)
        if self._prompts:
            work.evaluation = self.measure

    def measure(self, model: Any) -> dict[str, float]:
        """Metrics of the policy on the test prompts. Disturbs random states."""
        import torch

        if not self._prompts:
            return {}
        torch.manual_seed(self._seed)
        rewards = divergence = length = 0.0
        for chunk in self._chunks():
            answers = self.sampler.sample(model, [record["prompt"] for record in chunk])
            rewards += sum(self._scores(chunk, answers))
            length += sum(len(answer.tokens) for answer in answers)
            batch = self.sampler.batch(answers, model.device)
            with torch.no_grad():
                now, _, _ = likelihood(model, batch, self.sampler.temperature)
                with reference(model, self.frozen) as base:
                    before, _, _ = likelihood(base, batch, self.sampler.temperature)
            divergence += float(((now - before) * batch.answered).sum())
        count = len(self._prompts)
        return {
            "eval_reward": rewards / count,
            "eval_kl": divergence / count,
            "eval_length": length / count,
        }

    def final(self, model: Any) -> dict[str, float]:
        """Metrics of the policy and of the reference."""
        import torch

        measured = self.measure(model)
        if not measured:
            return {}
        torch.manual_seed(self._seed)
        before = 0.0
        with reference(model, self.frozen) as base:
            for chunk in self._chunks():
                answers = self.sampler.sample(base, [record["prompt"] for record in chunk])
                before += sum(self._scores(chunk, answers))
        return measured | {"eval_reward_before": before / len(self._prompts)}

    def _chunks(self) -> list[list[Prompt]]:
        return [
            self._prompts[at : at + self._size] for at in range(0, len(self._prompts), self._size)
        ]

    def _scores(self, records: Sequence[Prompt], answers: Sequence[Any]) -> list[float]:
        wanted = [record["answer"] for record in records] if "answer" in records[0] else None
        prompts = [record["prompt"] for record in records]
        return self.rewards(prompts, [answer.text for answer in answers], wanted)


def _ppo(
    work: TrainingContext[RlhfRecipe],
    arguments: PpoArguments,
    trial: _Trial,
    prompts: Positioned,
) -> tuple[Any, PpoLoop]:
    from transformers import set_seed
    from trl.trainer.utils import disable_dropout_in_model

    from sealtrain.training.ppo.loop import PpoLoop
    from sealtrain.training.ppo.rollout import Critic

    recipe = work.recipe
    policy: Any = trial.policy
    set_seed(recipe.trainer.seed)
    if recipe.peft is not None:
        from peft import get_peft_model

        policy = get_peft_model(policy, adapter_config(recipe.peft, "CAUSAL_LM"))
    if recipe.trainer.disable_dropout:
        disable_dropout_in_model(policy)
    if recipe.trainer.activation_checkpointing:
        policy.gradient_checkpointing_enable({"use_reentrant": False})
    loop = PpoLoop(work, arguments, Critic(policy), trial.frozen, trial.sampler, trial.rewards)
    read_together(prompts)
    loop.train(prompts)
    return (policy if place().leads else None), loop


def _groups(
    work: TrainingContext[RlhfRecipe],
    arguments: RlooArguments | GrpoArguments,
    tokenizer: PreTrainedTokenizerBase,
    trial: _Trial,
    prompts: Positioned,
) -> tuple[Any, RunCallback]:
    from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model

    recipe = work.recipe
    callback = RunCallback(work.context)
    trainer = _trainer_of(arguments.algorithm)(
        model=trial.policy,
        reward_funcs=_as_reward_function(trial.rewards),
        args=_config(work),
        train_dataset=as_iterable_dataset(prompts).map(check_prompt),
        processing_class=tokenizer,
        peft_config=None if recipe.peft is None else adapter_config(recipe.peft, "CAUSAL_LM"),
        callbacks=[callback],
    )
    if trial.frozen is not None:
        trial.frozen.to(trainer.args.device)
        if arguments.disable_dropout:
            disable_dropout_in_model(trial.frozen)
    if arguments.beta and trial.frozen is not None:
        # TRL would load a reference by the name under which the base model was saved.
        trainer.beta, trainer.ref_model = arguments.beta, trial.frozen
        add_fused_lm_head(trial.frozen, temperature=arguments.temperature)
    # ``final`` measures it with the reference.
    model, _ = train_and_measure(work, trainer, None, goes_on=True)
    return model, callback


def _config(work: TrainingContext[RlhfRecipe]) -> Any:
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.rloo_config import RLOOConfig

    arguments = work.recipe.trainer
    own = own_arguments(arguments)
    algorithm = own.pop("algorithm")
    if work.recipe.peft is None:
        own["beta"] = 0.0
    settings = trainer_arguments(arguments, work.scratch) | own
    settings |= {
        "remove_unused_columns": False,  # a rule reads further columns
        "include_num_input_tokens_seen": "no",  # the trainers count them by themselves
        "shuffle_dataset": False,  # the stream is shuffled
        "log_completions": False,
    }
    return (GRPOConfig if algorithm == "grpo" else RLOOConfig)(**settings)


def _as_reward_function(rewards: Rewards) -> Any:
    """The rewards as TRL calls them."""

    def reward(
        prompts: list[Any], completions: list[Any], answer: list[str] | None = None, **_: Any
    ) -> list[float]:
        return rewards(prompts, completions, answer)

    return reward


def _trainer_of(algorithm: str) -> Any:
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.rloo_trainer import RLOOTrainer

    base: Any = GRPOTrainer if algorithm == "grpo" else RLOOTrainer

    class QuietPolicyTrainer(base):  # type: ignore[misc]  # chosen at run time
        """Keeps no answers for tables, and logs no count that restarts at a resume."""

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            for kept in self._logs.values():
                kept.clear()
            self._metrics["train"].pop("num_tokens", None)
            super().log(logs, start_time)

    return QuietPolicyTrainer
