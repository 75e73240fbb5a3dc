"""The mapping from columns of the owners' records to the inputs of a phase."""

from __future__ import annotations

from typing import ClassVar, Literal

from sealtrain.base.models import StrictModel
from sealtrain.recipe.fields import ColumnName

__all__ = ["Columns", "PreferenceColumns"]


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


class PreferenceColumns(Columns):
    """Two answers to one prompt, the first preferred; both begin with it where it is no column."""

    kind: ClassVar[Literal["preference"]] = "preference"
    prompt: ColumnName | None = None
    chosen: ColumnName
    rejected: ColumnName
