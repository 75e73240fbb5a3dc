"""The privacy section of a run's manifest."""

from __future__ import annotations

from typing import Any

from sealtrain.errors import PrivacyBroken

__all__ = ["CANARIES", "privacy_record"]

CANARIES = "(guest)"
"""Owner of records that the guest made itself; no owner has such a name."""


def privacy_record(work: Any, steps: int) -> dict[str, Any]:
    """The ``privacy`` section of the manifest (spec/run-manifest.md §2).

    Args:
        work: ``TrainingContext``; recipe, sources and, after private training, its plan.
        steps: Optimizer steps done.

    Raises:
        PrivacyBroken: The phase trained without the recipe's privacy.
    """
    privacy = work.recipe.privacy
    if privacy.dp == "none":
        return {"dp": "none"}
    if privacy.dp == "counts":
        return {"dp": "counts", "epsilon": privacy.target_epsilon, "unit": privacy.unit}
    if work.plan is None:
        raise PrivacyBroken("this training was not private, though its recipe says so")
    costs = [cost for cost in work.plan.costs(work.train_sources, steps) if cost.owner != CANARIES]
    return {
        "dp": "sgd",
        "epsilon": max(cost.epsilon for cost in costs),
        "delta": privacy.delta,
        "accountant": privacy.accountant,
        "noise_multiplier": work.plan.noise_multiplier,
        "max_grad_norm": privacy.max_grad_norm,
        "sampling": privacy.sampling,
        "unit": privacy.unit,
        "batch": work.plan.batch,
        "steps": steps,
        "datasets": [
            {
                "owner": cost.owner,
                "name": cost.name,
                "records": cost.records,
                "sample_rate": cost.sample_rate,
                "epsilon": cost.epsilon,
            }
            for cost in costs
        ],
    }
