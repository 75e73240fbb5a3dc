"""The privacy section of a run's manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sealtrain.training.errors import PrivacyBroken

if TYPE_CHECKING:
    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.data.sources import Source

CANARIES = "(guest)"
"""Owner of records that the guest made itself; no owner has such a name."""


def privacy_record(work: TrainingContext[PhaseRecipe], steps: int) -> dict[str, Any]:
    """The ``privacy`` section of the manifest (spec/run-manifest.md §2).

    Args:
        work: recipe, sources and, after private training, its plan.
        steps: Optimizer steps done.

    Raises:
        PrivacyBroken: The phase trained without the recipe's privacy.
    """
    if work.recipe.privacy.dp != "sgd":
        return privacy_of_recipe(work.recipe)
    if work.plan is None:
        raise PrivacyBroken("this training was not private, though its recipe says so")
    costs = work.plan.costs(work.train_sources, steps)
    return write_spent_record(
        work.recipe,
        noise_multiplier=work.plan.noise_multiplier,
        steps=steps,
        costs=[
            (source, cost.sample_rate, cost.epsilon)
            for source, cost in zip(work.train_sources, costs, strict=True)
            if cost.owner != CANARIES
        ],
    )


def lot(trainer: Any) -> int:
    """Expected records in a step of private training."""
    return int(trainer.per_device_train_batch_size * trainer.gradient_accumulation_steps)


def privacy_of_recipe(recipe: Any) -> dict[str, Any]:
    """The section of a run without DP-SGD, which follows from its recipe."""
    privacy = recipe.privacy
    if privacy.dp == "counts":
        return {"dp": "counts", "epsilon": privacy.target_epsilon, "unit": privacy.unit}
    return {"dp": "none"}


def write_spent_record(
    recipe: Any,
    *,
    noise_multiplier: float,
    steps: int,
    costs: Sequence[tuple[Source, float, float]],
) -> dict[str, Any]:
    """The section of a run with DP-SGD.

    Args:
        recipe: With ``privacy.dp: sgd``.
        noise_multiplier: Deviation of the noise over ``max_grad_norm``.
        steps: Optimizer steps done.
        costs: The owners' training data, each with its sampling rate and the epsilon it spent.
    """
    privacy = recipe.privacy
    return {
        "dp": "sgd",
        "epsilon": max(epsilon for _, _, epsilon in costs),
        "delta": privacy.delta,
        "accountant": privacy.accountant,
        "noise_multiplier": noise_multiplier,
        "max_grad_norm": privacy.max_grad_norm,
        "sampling": privacy.sampling,
        "unit": privacy.unit,
        "batch": lot(recipe.trainer),
        "steps": steps,
        "datasets": [
            {
                "owner": source.owner,
                "name": source.name,
                "records": sum(source.dataset.batch_rows),
                "sample_rate": sample_rate,
                "epsilon": epsilon,
            }
            for source, sample_rate, epsilon in costs
        ],
    }
