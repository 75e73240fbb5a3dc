"""The mapping from columns of the owners' records to the inputs of a phase."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from sealtrain.base.models import StrictModel
from sealtrain.recipe.collaboration import is_none
from sealtrain.recipe.fields import ColumnName, Text


class Columns(StrictModel):
    """One way of reading records. Fields hold a column's name, several names, or ``None``.

    Attributes:
        kind: Short name of this way, for code that must tell ways apart.
    """

    kind: ClassVar[str]

    @property
    def names(self) -> tuple[str, ...]:
        """Columns every record must have, in the order of the fields."""
        found: list[str] = []
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, str):
                found.append(value)
            elif value is not None:
                found.extend(value)
        return tuple(found)


def tools_field() -> Any:
    """A field that names the column of the functions which a chat template gets, or none."""
    return Field(
        default=None,
        exclude_if=is_none,
        description="A list of function schemas, or its JSON as text: the chat template gets it.",
    )


class PreferenceColumns(Columns):
    """Two answers to one prompt, the first preferred; both begin with it where it is no column."""

    kind: ClassVar[Literal["preference"]] = "preference"
    prompt: ColumnName | None = None
    chosen: ColumnName
    rejected: ColumnName
    tools: ColumnName | None = tools_field()


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
