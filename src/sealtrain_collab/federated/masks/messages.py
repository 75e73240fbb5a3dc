"""Messages of a masked sum, inside the channel of lead and party (spec/masked-sums.md §4)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from sealtrain.base.models import Base64, Hex32, Hex64, OwnerName, StrictModel
from sealtrain.errors import ChannelBroken
from sealtrain.release.messages import load_message
from sealtrain_collab.federated.masks.bounds import MAX_PARTIES

__all__ = [
    "MAX_TASK_BYTES",
    "Envelope",
    "Halves",
    "Introduction",
    "Opened",
    "Shared",
    "Tags",
    "Task",
]

MAX_TASK_BYTES: Final = 32 << 20
"""Introductions of 16 parties, each with a request for up to 256 datasets."""
_MAX_VALUES: Final = 20_000

_Blob = Annotated[Base64, Field(max_length=16 << 10)]
_Of = Annotated[dict[OwnerName, _Blob], Field(max_length=MAX_PARTIES)]
_Share = Annotated[str, Field(max_length=4096)]
_Shares = Annotated[dict[OwnerName, _Share], Field(max_length=MAX_PARTIES)]


class Introduction(StrictModel):
    """A party, and the key that a broker of the lock saw in the hands of its guest.

    Attributes:
        party: Its owner's name.
        broker_key: Ed25519 key that signed the receipt.
        rotations: That led to this key from one that the lock names, oldest first.
        receipt: Of the release of the owner's data keys to this guest (DSSE).
        transcript: What that guest asked, as canonical JSON; the receipt names its digest.
    """

    party: OwnerName
    broker_key: Base64
    rotations: Annotated[tuple[dict[str, Any], ...], Field(max_length=64)]
    receipt: dict[str, Any]
    transcript: Annotated[Base64, Field(max_length=2 << 20)]


class Task(StrictModel):
    """What the lead asks of a party for a sum; each step has its own fields.

    Attributes:
        step: ``introduce``: seal a half of a secret to each other member. ``share``: take theirs,
            and seal shares to them. ``upload``: take theirs, and send the masked update. ``agree``:
            say who survived. ``unmask``: give the shares that open their sum.
        attempt: Which attempt at this round's sum.
        members: Of ``introduce``: everybody, sorted by name.
        sealed: Of ``share`` halves, of ``upload`` envelopes; by sender.
        survivors: Of ``agree``: whose masked updates the lead has, sorted.
        tags: Of ``unmask``: the others' codes of these survivors, by sender.
    """

    step: Literal["introduce", "share", "upload", "agree", "unmask"]
    attempt: Hex32
    members: Annotated[tuple[Introduction, ...], Field(max_length=MAX_PARTIES)] = ()
    sealed: _Of = Field(default_factory=dict)
    survivors: Annotated[tuple[OwnerName, ...], Field(max_length=MAX_PARTIES)] = ()
    tags: Annotated[dict[OwnerName, Hex64], Field(max_length=MAX_PARTIES)] = Field(
        default_factory=dict
    )

    @classmethod
    def read(cls, body: bytes) -> Task:
        """Raises ``ChannelBroken`` for anything else."""
        return load_message(
            cls, body, max_bytes=MAX_TASK_BYTES, max_values=_MAX_VALUES, error=ChannelBroken
        )


class Halves(StrictModel):
    """Answer to ``introduce``: a half for each other member."""

    sealed: _Of


class Shared(StrictModel):
    """Answer to ``share``: the party's mask key, and an envelope for each other member."""

    public_key: Hex64
    sealed: _Of


class Envelope(StrictModel):
    """Inside an envelope.

    Attributes:
        public_key: The sender's mask key, X25519.
        own: The receiver's share of the secret behind the sender's own mask.
        pair: The receiver's share of the sender's private mask key.
    """

    public_key: Hex64
    own: _Share = Field(repr=False)
    pair: _Share = Field(repr=False)


class Tags(StrictModel):
    """Answer to ``agree``: a code for each other survivor."""

    tags: Annotated[dict[OwnerName, Hex64], Field(max_length=MAX_PARTIES)]


class Opened(StrictModel):
    """Answer to ``unmask``.

    Attributes:
        own: Shares of the own secrets of those who survived.
        pair: Shares of the private mask keys of those who did not; of nobody both.
    """

    own: _Shares = Field(repr=False)
    pair: _Shares = Field(repr=False)
