"""The labels of classifiers in a recipe."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from sealtrain.base.models import StrictModel
from sealtrain.recipe.fields import Text

__all__ = ["Labelled", "label_count"]


def label_count(most: int) -> Any:
    """A field that counts ``labels`` when it is left out.

    Args:
        most: Labels a classifier may have.
    """
    return Field(
        default_factory=lambda known: len(known.get("labels") or ()),
        validate_default=True,
        ge=2,
        le=most,
        description="Counted from labels when left out.",
    )


class Labelled(StrictModel):
    """Part of a recipe whose records carry one label each."""

    labels: tuple[Text, ...] | None = Field(
        default=None, description="Names in order; null when records carry 0 … num_labels - 1."
    )
    num_labels: int = label_count(65_536)

    @model_validator(mode="after")
    def _labels_agree(self) -> Self:
        if self.labels is not None:
            if len(set(self.labels)) != len(self.labels):
                raise ValueError("labels name one twice")
            if len(self.labels) != self.num_labels:
                raise ValueError("num_labels differs from the number of labels")
        return self
