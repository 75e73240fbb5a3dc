"""Whose turn it is: holders in a fixed rotation, each up to its limit (spec §4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sealtrain.base.canonical import JsonValue
from sealtrain.base.models import OwnerName, StrictModel, load_model
from sealtrain.errors import DataInvalid
from sealtrain_together.travelling.programs import AnySettings

_MAX_REFUSALS = 2


class HolderPlan(StrictModel):
    """One holder of the plan.

    Attributes:
        name: Of the holder.
        tokens: How many it has.
        max_tokens: Most that are trained on.
    """

    name: OwnerName
    tokens: Annotated[int, Field(ge=1)]
    max_tokens: Annotated[int, Field(ge=1)]

    @property
    def limit(self) -> int:
        """Tokens it may give."""
        return min(self.tokens, self.max_tokens)


class TravelPlan(StrictModel):
    """What a run does.

    Attributes:
        program: Model and training.
        holders: In the order of their turns.
        buffer_bytes: Of the accelerator; each trip fills at most half of it.
        seal_every: Trips between two sealed states for the standby.
        max_steps: Optimizer steps after which no holder is asked any more; ``None`` for no end but
            that of the data.
    """

    version: Literal[1] = 1
    program: AnySettings
    holders: tuple[HolderPlan, ...] = Field(min_length=1, max_length=64)
    buffer_bytes: Annotated[int, Field(ge=2)]
    seal_every: Annotated[int, Field(ge=1)]
    max_steps: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> TravelPlan:
        names = [holder.name for holder in self.holders]
        if len(set(names)) != len(names):
            raise ValueError("two holders have the same name")
        if self.chunk_bytes < self.program.step_bytes:
            raise ValueError("half of the buffer holds less than one step")
        return self

    @classmethod
    def from_dict(cls, value: JsonValue) -> TravelPlan:
        """Parse the JSON form. Raises ``DataInvalid``."""
        return load_model(cls, value, DataInvalid, "travel plan")

    @property
    def chunk_bytes(self) -> int:
        """Most bytes of a trip: whole steps that fit half of the buffer."""
        half = self.buffer_bytes // 2
        return half - half % self.program.step_bytes

    @property
    def steps(self) -> int:
        """Most optimizer steps that the holders' data allow."""
        step = self.program.step_bytes
        given = sum(self.limit(holder) // step for holder in self.holders)
        return given if self.max_steps is None else min(given, self.max_steps)

    def limit(self, holder: HolderPlan) -> int:
        """Bytes that a holder may give."""
        return holder.limit * self.program.token_bytes

    def holder(self, name: str) -> HolderPlan:
        """The holder of that name.

        Raises:
            DataInvalid: No holder has that name.
        """
        for plan in self.holders:
            if plan.name == name:
                return plan
        raise DataInvalid("no holder of this name in the plan", got=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """One visit to one holder.

    Attributes:
        number: Counted from 0.
        holder: Whose turn it is.
        offset: First byte of the holder's data.
        start: First byte of the range in the buffer.
        end: One behind its last byte.
    """

    number: int
    holder: str
    offset: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes of the chunk."""
        return self.end - self.start


class ChunkPlaces:
    """Where the next chunk of each holder begins, so that no byte is trained on twice.

    The next trip is lent while one is at work. So a trip may be refused when the bytes behind its
    own are lent already: its place is then used up, and nothing asks for these bytes again. The
    place of a trip that none follows is given back.

    Args:
        names: Of the holders.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._next = dict.fromkeys(names, 0)
        self._given = dict(self._next)

    @property
    def given(self) -> dict[str, int]:
        """Bytes of each holder that were trained on or may be, by name."""
        return dict(self._given)

    def next(self, holder: str) -> int:
        """First byte of the holder's next chunk."""
        return self._next[holder]

    def lend(self, holder: str, size: int) -> int:
        """Take the place of a trip; returns its first byte."""
        offset = self._next[holder]
        self._next[holder] += size
        self._given[holder] += size
        return offset

    def refuse(self, holder: str, offset: int, size: int) -> None:
        """Nothing of a trip counts. Its place is given back if no later trip is lent behind it."""
        self._given[holder] -= size
        if self._next[holder] == offset + size:
            self._next[holder] = offset


class TripRotation:
    """Deals out trips until every holder has given what it may.

    A holder whose trips were refused twice in a row is not asked again. A rest that is shorter
    than one step of training is left out.

    Args:
        plan: Of the run.
        places: Where holders' chunks begin after what came before this rotation.
        number: Of the next trip.
        after: Holder whose chunk was trained on last, so that a run goes on as it would have.
    """

    def __init__(
        self,
        plan: TravelPlan,
        places: ChunkPlaces | None = None,
        number: int = 0,
        after: str | None = None,
    ) -> None:
        self._plan = plan
        self._places = places or ChunkPlaces(holder.name for holder in plan.holders)
        self._refusals = dict.fromkeys((holder.name for holder in plan.holders), 0)
        self._number = number
        names = [holder.name for holder in plan.holders]
        self._turn = 0 if after is None else names.index(after) + 1

    @property
    def given(self) -> dict[str, int]:
        """Bytes that each holder gave or was asked for, by name."""
        return self._places.given

    @property
    def number(self) -> int:
        """Of the next trip."""
        return self._number

    def next(self, half: int) -> Trip | None:
        """The next trip into one half of the buffer, ``None`` when all is given.

        Args:
            half: 0 or 1: the one that is free.
        """
        plan = self._plan
        for _ in plan.holders:
            one = plan.holders[self._turn % len(plan.holders)]
            self._turn += 1
            left = min(plan.limit(one) - self._places.next(one.name), self._budget())
            size = min(plan.chunk_bytes, left - left % plan.program.step_bytes)
            if size and self._refusals[one.name] < _MAX_REFUSALS:
                start = half * (plan.buffer_bytes // 2)
                trip = Trip(
                    number=self._number,
                    holder=one.name,
                    offset=self._places.lend(one.name, size),
                    start=start,
                    end=start + size,
                )
                self._number += 1
                return trip
        return None

    def _budget(self) -> int:
        """Bytes until the last step."""
        plan = self._plan
        if plan.max_steps is None:
            return plan.chunk_bytes
        return plan.max_steps * plan.program.step_bytes - sum(self._places.given.values())

    def went_well(self, trip: Trip) -> None:
        """The chunk of a trip was trained on."""
        self._refusals[trip.holder] = 0

    def refuse(self, trip: Trip) -> None:
        """Nothing of a trip counts (``ChunkPlaces.refuse``)."""
        self._places.refuse(trip.holder, trip.offset, trip.size)
        self._refusals[trip.holder] += 1
