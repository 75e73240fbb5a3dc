"""Learning from one round of answers: several epochs of minibatches, until the policy moved far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sealtrain.training.ppo.mathematics import moved, policy_losses, value_losses
from sealtrain.training.telemetry.averages import Averages

if TYPE_CHECKING:
    from sealtrain.training.ppo.rollout import Rollout
    from sealtrain.training.sampling import Sampler

__all__ = ["learn"]


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
    size = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    for _ in range(arguments.num_ppo_epochs):
        order = torch.randperm(len(rollout.answers)).tolist()
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
    """Accumulate the gradients of one minibatch, each token of it weighing the same."""
    import torch

    total = float(rollout.mask[rows].sum())
    sums: dict[str, float] = {}
    for part in _parts(rows, arguments.per_device_train_batch_size):
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
            ("policy_kl", (moved(new, old) * mask).sum() / total),
        ):
            sums[name] = sums.get(name, 0.0) + float(value.detach())
    return sums


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
