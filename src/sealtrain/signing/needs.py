"""What a recipe needs of the owners, as every approval of it states: actions, and whose data.

``actions`` always holds ``approve``; a consortium sets a threshold for each. ``owners`` are those
whose datasets the recipe reads. ``recipe.needs`` computes it from a lock, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from sealtrain.base.models import OwnerName, StrictModel

RecipeAction = Literal["approve", "export_model", "raise_logging"]
MAX_NEEDED_OWNERS = 256
REASONS: Final[Mapping[RecipeAction, str]] = {
    "approve": "it trains",
    "export_model": "its model leaves the guest",
    "raise_logging": "it writes logs",
}
"""Why owners decide on a recipe, for people, by action."""
PURPOSES: Final[Mapping[str, str]] = {
    "approve": "run a recipe",
    "revoke": "stop a recipe",
    "amend_members": "change who belongs",
    "amend_thresholds": "change how many owners it takes",
    "raise_logging": "run a recipe that writes logs",
    "export_model": "run a recipe whose model leaves the guest",
}
"""What a threshold of a consortium is for, for people, by its name: it takes so many *to …*."""


class Needs(StrictModel):
    """Actions in the order of their names, owners likewise, none twice."""

    actions: tuple[RecipeAction, ...] = Field(min_length=1, max_length=3)
    owners: tuple[OwnerName, ...] = Field(max_length=MAX_NEEDED_OWNERS)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for field, given in (("actions", self.actions), ("owners", self.owners)):
            if list(given) != sorted(set(given)):
                raise ValueError(f"{field} must be sorted by name, without repetition")
        if "approve" not in self.actions:
            raise ValueError("actions must hold approve, which every recipe needs")
        return self

    def to_text(self) -> str:
        """For people, on one line: why owners decide, and whose data is read."""
        data = f"; it reads data of {', '.join(self.owners)}" if self.owners else ""
        return reasons_in_words(self.actions) + data


def reasons_in_words(actions: Iterable[RecipeAction]) -> str:
    """Why owners decide on a recipe that takes these actions, as a clause."""
    return " and ".join(REASONS[action] for action in actions)
