"""Messages between the server and a client of a cut model (spec/split-cut.md §3).

Without torch: a client that finds another guest than it approved leaves before it loads a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from pydantic import Field

from sealtrain.base.models import (
    Document,
    Hex32,
    Hex40,
    Hex64,
    OwnerName,
)
from sealtrain.base.secret import Random
from sealtrain.signing.target import Target
from sealtrain.training.errors import ChannelBroken
from sealtrain_together.channel.channel import AttestedChannel
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.proofs import AcceptGuest, ProveKey
from sealtrain_together.cut.states import SealedCutState
from sealtrain_together.parties.party import ReportedCounts

if TYPE_CHECKING:
    from sealtrain.signing.dsse import Ed25519Signer

PURPOSE: Final = "cut-activations"
MAX_CONTROL_BYTES: Final = 4 << 20
MAX_MANIFEST_BYTES: Final = 64 << 20


W = TypeVar("W", bound="Word")


class Word(Document):
    """What either side says."""

    what = "word of a conversation"
    refusal = ChannelBroken
    max_bytes = MAX_CONTROL_BYTES
    form = ("cut", None)


class BeginCut(Word):
    """First word of the server: which run this is, and the sealed state that it goes on from."""

    sealed: SealedCutState | None = None
    run_id: Hex32
    app_id: Hex40
    compose_hash: Hex64
    recipe_hash: Hex64

    @property
    def target(self) -> Target:
        """Deployment and recipe that an owner must have approved."""
        return Target(
            app_id=self.app_id, compose_hash=self.compose_hash, recipe_hash=self.recipe_hash
        )


class NotedState(Word):
    """Answer of the client: the newest sealed state that it noted."""

    sealed: SealedCutState | None = None


class OwnerJoined(Word):
    """Next word of the client: consent, signed manifests of datasets, share of the states' key.

    ``counts`` are those of ``parties.party.PartyReport``.
    """

    owner: OwnerName
    share: Hex64
    consent: dict[str, Any]
    datasets: tuple[dict[str, Any], ...] = Field(min_length=1, max_length=256)
    counts: Annotated[dict[Hex32, ReportedCounts | None], Field(max_length=256)] | None


class Ask(Word):
    """Every further word of the server.

    It wants records, it still trains, it sealed a state (``Known`` answers), or the run has ended.
    """

    kind: Literal["records", "wait", "sealed", "end"]
    sealed: SealedCutState | None = None
    dataset_id: Hex32 | None = None
    number: int = Field(default=0, ge=0, le=2**53 - 1)


def send_message(channel: AttestedChannel, word: Word) -> None:
    """Send a word."""
    channel.send(word.to_bytes())


def receive_message(channel: AttestedChannel, kind: type[W]) -> W:
    """Receive a word of that kind.

    Raises:
        ChannelCut: The other side ended.
        ChannelBroken: It said something else.
        PeerUnreachable: Nothing came in time.
    """
    return kind.from_bytes(channel.expect(max_bytes=MAX_CONTROL_BYTES))


def conversation_of(
    owner: str,
    signer: Ed25519Signer,
    accept: AcceptGuest,
    target: Target,
    *,
    random: Random,
) -> ChannelTerms:
    """How a client talks to a server.

    Args:
        owner: Name of the owner.
        signer: Its signing key.
        accept: What the server's guest must be.
        target: What the owner approved.
        random: Source of ephemeral keys.
    """
    return ChannelTerms(
        purpose=PURPOSE,
        context={"owner": owner, "recipe_hash": target.recipe_hash},
        proof=ProveKey(signer),
        accept=accept,
        random=random,
    )
