"""When a recipe is run again without a person asking: field ``schedule`` of a recipe.

Due times follow from these fields, and of new data from a broker's ledger besides (spec/schedule.md
§1), so that two schedulers that never met find the same ones. At most one due time lies in an hour,
and a schedule lasts a year at most: there are at most 8785 of them. The arithmetic of cron is in
``recipe.duetimes``, whose library only a scheduler needs; here its form and its ranges are checked,
so that every reader of a lock agrees on what a schedule is.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from sealtrain.base.clock import from_rfc3339
from sealtrain.base.models import RealTime, StrictModel
from sealtrain.recipe.fields import describe_keyword

MIN_INTERVAL_SECONDS: Final = 3600
MAX_SPAN_SECONDS: Final = 366 * 24 * 3600

_RANGES: Final = (("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 6))
_ITEM: Final = re.compile(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?")
_MINUTE: Final = re.compile(r"[0-9]|[1-5][0-9]")


def _cron(text: str) -> str:
    fields = text.split(" ")
    if len(fields) != len(_RANGES) + 1:
        raise ValueError(
            "cron has five fields with one space between: minute hour day month weekday"
        )
    if not _MINUTE.fullmatch(fields[0]):
        raise ValueError("the minute of cron is one number from 0 to 59: once an hour at most")
    for field, (name, lowest, highest) in zip(fields[1:], _RANGES, strict=True):
        for item in field.split(","):
            found = _ITEM.fullmatch(item)
            if found is None:
                raise ValueError(f"{name} of cron is of *, numbers, ranges, lists and steps")
            first, last, step = (None if part is None else int(part) for part in found.groups())
            bounds = [lowest, *(part for part in (first, last) if part is not None), highest]
            if any(before > after for before, after in pairwise(bounds)) or step == 0:
                raise ValueError(f"{name} of cron lies between {lowest} and {highest}")
            if step is not None and first is not None and last is None:
                raise ValueError(f"{name} of cron has a step after * or a range only")
    if fields[2] != "*" and fields[4] != "*":
        # Readers of cron disagree on whether both or either of them must hold.
        raise ValueError("cron names days of the month or days of the week, not both")
    return text


_Time = Annotated[RealTime, describe_keyword("format", "date-time")]


class Schedule(StrictModel):
    """When the recipe is run, how often, and until when; owners approve it with the recipe."""

    when: Literal["cron", "new-data"] = Field(
        description="cron: at every due time; new-data: as soon as an owner registered data that "
        "no earlier run of the schedule was asked for."
    )
    cron: (
        Annotated[
            str, Field(max_length=128), AfterValidator(_cron), describe_keyword("format", "cron")
        ]
        | None
    ) = Field(
        default=None,
        description="With when: cron; minute hour day month weekday, in UTC; the minute is one "
        "number.",
    )
    least_seconds: Annotated[int, Field(ge=MIN_INTERVAL_SECONDS, le=31 * 24 * 3600)] | None = Field(
        default=None, description="With when: new-data; least seconds between two due times."
    )
    continues: Literal["base", "last"] = Field(
        alias="continue",
        description="What each run begins with: base, the recipe's model; last, the model of the "
        "run before, whose key the broker releases to the newest run's successor alone.",
    )
    runs: int = Field(ge=1, le=1000, description="The most runs that are asked for.")
    starts_at: _Time = Field(description="No due time is earlier.")
    ends_at: _Time = Field(description="No due time is later; at most 366 days after starts_at.")

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if (self.cron is not None) != (self.when == "cron"):
            raise ValueError("cron is for when: cron, and must be written there")
        if (self.least_seconds is not None) != (self.when == "new-data"):
            raise ValueError("least_seconds is for when: new-data, and must be written there")
        return self

    @model_validator(mode="after")
    def _ends(self) -> Self:
        lasts = from_rfc3339(self.ends_at) - from_rfc3339(self.starts_at)
        if not 0 <= lasts <= MAX_SPAN_SECONDS:
            raise ValueError("ends_at lies between starts_at and 366 days after it")
        return self

    @property
    def in_words(self) -> str:
        """One sentence for an owner."""
        how = (
            f"at each {self.cron} (cron, UTC)"
            if self.when == "cron"
            else f"as soon as data is new, every {self.least_seconds} seconds at most"
        )
        model = "the recipe's model" if self.continues == "base" else "the model of the run before"
        return (
            f"runs again without a person asking: {how}, from {self.starts_at} to {self.ends_at}, "
            f"{self.runs} run{'' if self.runs == 1 else 's'} at most, each from {model}"
        )


def unfit_to_continue(recipe: Any) -> str | None:
    """Why the runs of a ``Recipe`` cannot begin with the model before; ``None`` if they can."""
    if recipe.schedule is None or recipe.schedule.continues != "last":
        return None
    text = recipe.phase in ("classify", "sft") and recipe.reads_text
    tabular = recipe.phase == "classify" and recipe.columns.kind == "tabular"
    if not (text or tabular):
        return "continue: last is for classify on columns or text, and for sft"
    if recipe.scripts:
        return "continue: last does not reach into a script of your own"
    if recipe.model.kind == "sealed":
        return "continue: last begins with the run before, and model.sealed with an owner's model"
    if recipe.release_policy.model.handed_on is not None:
        return "continue: last keeps the model for this recipe, and model.handed_on gives it away"
    if recipe.backend.name != "trl":
        return f"backend {recipe.backend.name} does not go together with continue: last"
    if recipe.peft is not None and (recipe.peft.quantization or not recipe.peft.merge):
        return "continue: last begins with whole models: peft needs merge: true, no quantization"
    return None
