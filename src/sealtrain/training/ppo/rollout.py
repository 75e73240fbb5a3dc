"""A round of answers: sampled, scored, and weighted for the update.

Ranks share the sampling and the scoring, and all of them get the whole round. Answers are drawn
from random numbers that follow from the recipe's seed and the prompt's position in the data, so a
round is the same for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sealtrain.training.checkpoints.randomness import seed_generators
from sealtrain.training.distributed.agreement import deal_pieces
from sealtrain.training.ppo.mathematics import estimate_advantages, token_rewards, whiten
from sealtrain.training.sampling import SampledAnswer, Sampler, likelihood, pad_rows, reference

if TYPE_CHECKING:
    import torch

    from sealtrain.training.inputs.prompts import Prompt
    from sealtrain.training.rewards import Rewards
    from sealtrain.training.sampling import SampleBatch


@dataclass(slots=True, kw_only=True)
class Experience:
    """An answer and the figures of its tokens, float32 (tokens,) on the CPU.

    Attributes:
        answer: The answer.
        chances: Log probabilities under the policy that sampled it.
        before: Under the reference.
        values: Of the critic at that time.
    """

    answer: SampledAnswer
    chances: torch.Tensor
    before: torch.Tensor
    values: torch.Tensor


@dataclass(slots=True, kw_only=True)
class Rollout:
    """All answers of a round; tensors are float32 (answers, longest answer).

    Attributes:
        answers: The answers.
        mask: 1.0 where an answer has a token.
        chances: Log probabilities under the policy that sampled.
        values: Of the critic at that time.
        advantages: Whitened.
        returns: Targets of the critic.
        scores: Rewards of the answers, penalties included, (answers,).
        divergence: Mean over answers of their divergence from the reference, in nats.
    """

    answers: list[SampledAnswer]
    mask: torch.Tensor
    chances: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    scores: torch.Tensor
    divergence: float

    @property
    def tokens(self) -> int:
        """Tokens of all prompts and answers."""
        return sum(len(answer.prompt) + len(answer.tokens) for answer in self.answers)


def roll_out(
    critic: Any,
    frozen: Any | None,
    sampler: Sampler,
    rewards: Rewards,
    prompts: Sequence[Prompt],
    *,
    first: int,
    coefficient: float,
    arguments: Any,
) -> Rollout:
    """Sample one answer to each prompt, score it, and weigh its tokens.

    Args:
        critic: Policy with value head, in evaluation mode.
        frozen: The reference, ``None`` where it is the policy without its adapter.
        sampler: Samples.
        rewards: Scores.
        prompts: Checked records, the same in every rank.
        first: Number of prompts that earlier rounds took.
        coefficient: Weight of the divergence from the reference.
        arguments: The recipe's trainer settings.
    """
    import torch

    size = arguments.per_device_train_batch_size

    def sample(number: int, records: Sequence[Prompt]) -> list[Experience]:
        with seed_generators(f"ppo answers {arguments.seed} {first + number * size}"):
            answers = sampler.sample(critic.policy, [record["prompt"] for record in records])
        return _look_at(critic, frozen, sampler, answers)

    def score_answers(_number: int, rows: range) -> list[float]:
        some = [prompts[row] for row in rows]
        return rewards(
            [record["prompt"] for record in some],
            [answers[row].text for row in rows],
            [record["answer"] for record in some] if "answer" in some[0] else None,
        )

    chunks = [prompts[at : at + size] for at in range(0, len(prompts), size)]
    experiences = [experience for some in deal_pieces(chunks, sample) for experience in some]
    answers = [experience.answer for experience in experiences]
    at_a_time = arguments.per_device_eval_batch_size  # as a reward model batches by itself
    everyone = range(len(prompts))
    parts = [everyone[at : at + at_a_time] for at in range(0, len(prompts), at_a_time)]
    scores = torch.tensor([score for some in deal_pieces(parts, score_answers) for score in some])
    if arguments.missing_eos_penalty is not None:
        cut = torch.tensor([not answer.ended for answer in answers])
        scores = scores - arguments.missing_eos_penalty * cut
    device = critic.policy.device
    mask = pad_rows([torch.ones_like(experience.chances) for experience in experiences], 0).to(
        device
    )
    chances = pad_rows([experience.chances for experience in experiences], 0).to(device)
    values = pad_rows([experience.values for experience in experiences], 0).to(device)
    log_ratio = chances - pad_rows([experience.before for experience in experiences], 0).to(device)
    given = token_rewards(scores.to(mask.device), log_ratio, mask, coefficient)
    advantages, returns = estimate_advantages(
        given, values, mask, gamma=arguments.gamma, lam=arguments.lam
    )
    return Rollout(
        answers=answers,
        mask=mask,
        chances=chances,
        values=values,
        advantages=whiten(advantages, mask),
        returns=returns,
        scores=scores,
        divergence=float((log_ratio * mask).sum(1).mean()),
    )


def _look_at(
    critic: Any, frozen: Any | None, sampler: Sampler, answers: list[SampledAnswer]
) -> list[Experience]:
    import torch

    batch = sampler.batch(answers, critic.policy.device)
    with torch.no_grad():
        chances, _, values = critic(batch, sampler.temperature)
        with reference(critic.policy, frozen) as model:
            before, _, _ = likelihood(model, batch, sampler.temperature)
    chances, before, values = chances.cpu(), before.cpu(), values.cpu()
    return [
        Experience(
            answer=answer,
            chances=chances[row, : len(answer.tokens)].clone(),
            before=before[row, : len(answer.tokens)].clone(),
            values=values[row, : len(answer.tokens)].clone(),
        )
        for row, answer in enumerate(answers)
    ]


class Critic(torch.nn.Module):
    """Policy and value head, trained together.

    Attributes:
        policy: A causal language model, with or without an adapter.
        value_head: Last hidden state → value. It begins at zero, so nothing has to be unlearned.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy
        width = policy.config.get_text_config().hidden_size
        self.value_head = torch.nn.Linear(width, 1)
        torch.nn.init.zeros_(self.value_head.weight)
        torch.nn.init.zeros_(self.value_head.bias)

    def forward(
        self, batch: SampleBatch, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log probabilities, entropies and values of each token, float32 (answers, tokens)."""
        chances, entropies, states = likelihood(self.policy, batch, temperature, states=True)
        with torch.autocast(batch.ids.device.type, enabled=False):
            values = self.value_head(states.float()).squeeze(-1)
        return chances, entropies, values
