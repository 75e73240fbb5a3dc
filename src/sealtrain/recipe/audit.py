"""The privacy audit of a recipe: attacks that test whether a model remembers single records."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sealtrain.base.models import StrictModel


class Audit(StrictModel):
    """Figures that a release policy may name: ``canary_exposure``, ``membership_auc``."""

    canaries: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Secrets made in the guest and trained on among the records (phase sft).",
    )
    repetitions: int = Field(
        default=1, ge=1, le=1000, description="How often each canary stands among the records."
    )
    membership: bool = Field(
        default=True, description="Tell training from test records by their loss."
    )


def find_audit_fault(recipe: Any) -> str | None:
    """Why a ``Recipe``'s audit cannot be done; ``None`` if it can, or if the recipe has none."""
    audit = getattr(recipe, "audit", None)
    if audit is None:
        return None
    kind = recipe.columns.kind
    if recipe.scripts:
        return "audit looks at our own training, not at a script"
    if kind in ("messages", "image"):
        return f"audit does not read {kind}"
    if audit.canaries and recipe.phase != "sft":
        return "audit.canaries are for phase sft"
    if audit.canaries and getattr(recipe.trainer, "packing", False):
        return "audit.canaries need trainer.packing: false"
    if recipe.peft is not None and not recipe.peft.changes_weights:
        return "audit takes adapters that change weights"
    return None
