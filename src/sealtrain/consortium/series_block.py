"""A dataset's place in a series, as its manifest states it (spec/approvals.md §5.2)."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from sealtrain.base.models import Hex64, OwnerName, StrictModel

MAX_MEMBERS: Final = 512

_MOST: Final = (1 << 53) - 1
Growth = Annotated[int, Field(ge=-_MOST, le=_MOST)]
Drift = Literal["same", "nullable-columns"]


def _none(value: object) -> bool:
    return value is None


class SuccessorBounds(StrictModel):
    """What an owner lets every successor be. A field that bounds nothing is left out."""

    min_growth: Growth | None = Field(default=None, exclude_if=_none)
    """Least growth in records of a successor."""
    max_growth: Growth | None = Field(default=None, exclude_if=_none)
    schema_drift: Drift | None = Field(default=None, alias="schema", exclude_if=_none)
    """How columns may change."""

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if not self.to_dict():
            raise ValueError("bounds that bound nothing are left out")
        if None not in (self.min_growth, self.max_growth) and self.min_growth > self.max_growth:  # type: ignore[operator]
            raise ValueError("min_growth is above max_growth")
        return self


class SeriesBlock(StrictModel):
    """The block ``series`` of a dataset manifest."""

    name: OwnerName
    number: int = Field(ge=1, le=MAX_MEMBERS)
    mode: Literal["append", "replace"]
    previous: Hex64 | None
    """Digest of the member before it; ``None`` in member 1."""
    bounds: SuccessorBounds | None = Field(default=None, exclude_if=_none)

    @model_validator(mode="after")
    def _begins_or_follows(self) -> Self:
        written = "bounds" in self.model_fields_set
        bounds = self.bounds
        if written and (bounds is None or len(bounds.model_fields_set) != len(bounds.to_dict())):
            raise ValueError("bounds that bound nothing are left out")
        if (self.number == 1) != (self.previous is None):
            raise ValueError("member 1 and no other has no member before it")
        if self.number > 1 and self.bounds is not None:
            raise ValueError("bounds are set by member 1")
        if self.mode == "replace" and bounds and bounds.schema_drift == "nullable-columns":
            raise ValueError("nullable-columns is for append: a run compares members it reads")
        return self


class NewestMember(StrictModel):
    """An item of ``series`` in the ledger entry of a run's first release."""

    owner: OwnerName
    name: OwnerName
    number: int = Field(ge=1, le=MAX_MEMBERS)
    member: Hex64
    """Its digest."""
