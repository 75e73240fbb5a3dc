"""Lock a recipe for a consortium and its brokers, after everything that is wrong was refused.

1. A base model that the recipe names by its id on the Hugging Face hub is downloaded;
2. what could not work is refused at once, with everything that is wrong with it;
3. every name is resolved to a digest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.client.pin import load_pin
from sealtrain.recipe.finite_weights import require_sound_weights
from sealtrain.recipe.fitness import require_fitness
from sealtrain.recipe.lock import LockedRecipe, lock_recipe
from sealtrain.recipe.schema import load_recipe

if TYPE_CHECKING:
    from sealtrain.consortium.members import Consortium
    from sealtrain.recipe.installation import Installation
    from sealtrain.recipe.lockfile import HubPin
    from sealtrain.recipe.recipe import PhaseRecipe


def lock_for(
    recipe: Path,
    consortium: Consortium,
    brokers: Sequence[Path],
    *,
    installation: Callable[[PhaseRecipe], Installation] | None = None,
    on_step: Callable[[str], None] = lambda _line: None,
) -> LockedRecipe:
    """Resolve everything a recipe names to digests.

    Args:
        recipe: ``recipe.yaml``; paths inside it are relative to its folder.
        consortium: Whose owners and recipients the recipe may name.
        brokers: Broker files of the brokers that guests of this recipe obey.
        installation: Measures code and packages to pin; those of this machine when ``None``.
        on_step: Called with a line for each model that is downloaded.

    Raises:
        RecipeInvalid: The recipe breaks its schema, or could not work.
        ModelInvalid: A weight of a model is not a finite number.
        SealtrainError: As ``recipe.lock.lock_recipe`` and ``client.hub.bring_models``.
    """
    wanted = load_recipe(recipe)
    hub = _bring_models(wanted, recipe.parent, on_step)
    require_fitness(wanted, recipe.parent, [owner.name for owner in consortium.owners])
    locked = lock_recipe(
        recipe,
        consortium_id=consortium.consortium_id,
        brokers=[load_pin(path).broker_id for path in brokers],
        installation=None if installation is None else installation(wanted),
        hub=hub,
    )
    require_sound_weights(wanted, recipe.parent)
    return locked


def _bring_models(
    recipe: PhaseRecipe, base_dir: Path, on_step: Callable[[str], None]
) -> dict[str, HubPin]:
    """Commits and licences of the recipe's models of the hub, whose files are in place then."""
    if not recipe.hub_models:
        return {}
    from sealtrain.owner.hub import Hub, bring_models

    return bring_models(recipe, base_dir, hub=Hub(progress=sys.stderr.isatty()), on_step=on_step)
