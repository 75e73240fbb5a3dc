"""Messages between lead and parties inside their channel (spec §4)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AllowInfNan, Field

from sealtrain.base.models import Hex64, OwnerName, StrictModel
from sealtrain.manifest.checks.collaborations.padfacts import PadsBegun
from sealtrain.manifest.checks.collaborations.sessions import SessionSpent
from sealtrain.recipe.collaboration import is_none

PURPOSE: Final = "federated-party"
MAX_STATE_BYTES: Final = 4 << 30
"""Longest adapter: one of rank 64 on all linear layers of 7 billion weights has 610 MiB."""
MAX_HEADER_BYTES: Final = 4 << 20
"""Of an adapter, besides its numbers."""
MAX_WORDS_BYTES: Final = 8 << 20
"""Longest message beside an adapter: a report holds receipts with their proofs."""

Count = Annotated[int, Field(ge=1, le=(1 << 53) - 1)]


class SealedState(StrictModel):
    """A sealed state of the lead (spec §8).

    Attributes:
        counter: From 1.
        digest: Its file root.
    """

    counter: Count
    digest: Hex64


class PartyJoined(StrictModel):
    """A party's first words, once both sides proved themselves.

    Attributes:
        party: Owner whose data it opened.
        records: To train on.
        countable: Its owners let others know how many there are; else no log may.
        patients: Whose records they are, where rounds hide patients: so many; public.
        share: The party's share of the keys of the lead's sealed states, 64 hex digits; secret.
        sealed: The newest of these states that the party knows.
        products: How its session of pads began, where an accelerator multiplies for it.
    """

    version: Literal[2] = 2
    party: OwnerName
    records: Count
    countable: bool
    patients: Count | None = Field(default=None, exclude_if=is_none)
    share: Hex64 | None = Field(default=None, exclude_if=is_none, repr=False)
    sealed: SealedState | None = Field(default=None, exclude_if=is_none)
    products: PadsBegun | None = Field(default=None, exclude_if=is_none)


class Asked(StrictModel):
    """What the lead asks; the merged adapter follows as a message of its own.

    Attributes:
        do: ``learn``: train a round from that adapter. ``finish``: measure it, and go.
        round: From 1; of ``finish`` the last one.
        payload: Bytes of that adapter.
        rate: Probability of each patient to take part, where rounds hide patients.
        sealed: The lead's newest sealed state, once there is one.
    """

    version: Literal[2] = 2
    do: Literal["learn", "finish"]
    round: Count
    payload: Annotated[int, Field(ge=1, le=MAX_STATE_BYTES)]
    rate: Annotated[float, Field(gt=0, le=1)] | None = Field(default=None, exclude_if=is_none)
    sealed: SealedState | None = Field(default=None, exclude_if=is_none)


class LearnedMessage(StrictModel):
    """A party's answer to ``learn``; its adapter follows.

    Attributes:
        round: As asked.
        records: It trained on: its weight where weights count.
        steps: Optimizer steps.
        loss: Mean training loss; ``None`` where rounds hide patients.
        report: ``parties.party.PartyReport``, up to now.
        products: What its session of pads came to, where an accelerator multiplies for it.
    """

    round: Count
    records: Count
    steps: Count
    loss: Annotated[float, AllowInfNan(False)] | None
    report: dict[str, Any]
    products: SessionSpent | None = Field(default=None, exclude_if=is_none)
