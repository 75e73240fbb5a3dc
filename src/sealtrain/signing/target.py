"""The target of an owner's decision: a deployment document, and the recipe inside it.

``recipe.lock.LockedRecipe`` computes it from the document's bytes. Everything that names a target
in words of its own (decisions, requests, receipts, ledger entries) is compared with that one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a decision: the deployment and the recipe inside it."""

    app_id: str
    """40 hex digits."""
    compose_hash: str
    """64 hex digits."""
    recipe_hash: str
    """64 hex digits."""

    def to_dict(self) -> dict[str, str]:
        """JSON-ready form."""
        return {
            "app_id": self.app_id,
            "compose_hash": self.compose_hash,
            "recipe_hash": self.recipe_hash,
        }
