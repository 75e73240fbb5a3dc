"""The approvals that a recipe needs: this module alone decides which thresholds apply to it."""

from __future__ import annotations

from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.signing.needs import Needs, RecipeAction

_STRICTEST_LOGS = "none"


def needs_of(recipe: PhaseRecipe) -> Needs:
    """Actions and data owners of a recipe; pure, from the lock alone.

    1. ``approve``: always;
    2. ``export_model``: a model comes out, sealed, to at least one recipient;
    3. ``raise_logging``: the release policy allows more than the strictest log level.

    Args:
        recipe: The recipe of a parsed lock.
    """
    actions: list[RecipeAction] = ["approve"]
    if recipe.exports_model:
        actions.append("export_model")
    if recipe.release_policy.logs != _STRICTEST_LOGS:
        actions.append("raise_logging")
    return Needs(actions=tuple(actions), owners=recipe.owners)
