"""The reward of a recipe: a measured model that scores answers, or a built-in rule."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from sealtrain.base.models import StrictModel
from sealtrain.recipe.fields import by_key
from sealtrain.recipe.modelspec import ModelFromFolder
from sealtrain.recipe.trainers import Length

__all__ = ["Reward", "RewardModel", "RewardRule"]


class RewardModel(StrictModel):
    """A classifier with one output, which scores a prompt with its answer."""

    kind: ClassVar[Literal["model"]] = "model"
    model: ModelFromFolder
    max_length: Length = Field(
        default=1024, description="Tokens it reads; of a longer text the last ones."
    )


class RewardRule(StrictModel):
    """A rule that anyone can check: 1 when the answer is right, else 0.

    ``exact-match``: apart from white space around it, it is the record's answer. ``contains``: the
    record's answer occurs in it.
    """

    kind: ClassVar[Literal["rule"]] = "rule"
    rule: Literal["exact-match", "contains"]


Reward = Annotated[
    Annotated[RewardModel, Tag("model")] | Annotated[RewardRule, Tag("rule")],
    Discriminator(by_key("rule", model="model")),
]
"""What training by reinforcement makes likelier."""
