"""The block ``standing`` of a decision: how often a recipe may run (spec/approvals.md §2.1)."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AllowInfNan, Field, model_validator

from sealtrain.base.models import Hex64, OwnerName, StrictModel

Epsilon = Annotated[float, AllowInfNan(False), Field(gt=0, le=1000)]


class ApprovedSeries(StrictModel):
    """A series of the owner's own whose members need no pin."""

    name: OwnerName
    first: Hex64
    """Digest of its member 1 (``consortium.series``)."""


class StandingTerms(StrictModel):
    """The block ``standing`` of a decision. A field that limits nothing is left out."""

    runs: int = Field(ge=1, le=1_000_000)
    """Most runs of the target that may begin."""
    epsilon: Epsilon | None = Field(default=None, exclude_if=lambda value: value is None)
    """Most epsilon that these runs together reserve of each of the owner's datasets."""
    series: tuple[ApprovedSeries, ...] = Field(
        default=(), max_length=64, exclude_if=lambda value: not value
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        names = [series.name for series in self.series]
        if names != sorted(set(names)):
            raise ValueError("series must stand in the order of their names, none twice")
        if self.model_fields_set != self.to_dict().keys():
            raise ValueError("a field that limits nothing is left out")
        return self

    def first_of(self, name: str) -> str | None:
        """Digest of member 1 of a named series; ``None`` for one that is not named."""
        return next((series.first for series in self.series if series.name == name), None)
