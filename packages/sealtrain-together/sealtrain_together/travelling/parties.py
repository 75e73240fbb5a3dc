"""Whom an orchestrator talks to, and what a run cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sealtrain.base.canonical import JsonValue
from sealtrain.base.hostport import write_host_and_port
from sealtrain.base.secret import Random
from sealtrain.training.errors import ChannelCut, PeerUnreachable
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.travelling.holder import HOLDER_PURPOSE
from sealtrain_together.travelling.holder_client import HolderJoined, HolderLane

if TYPE_CHECKING:
    from sealtrain_together.channel.proofs import Acceptance, Proof

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """Whom an orchestrator talks to, and how both sides prove themselves.

    Attributes:
        proof: Makes the orchestrator's own proofs.
        accelerator: Its control port.
        writes: Its write port.
        holders: Where each holder waits for the orchestrator, by name.
        accept_accelerator: Verifies the accelerator's proofs.
        accept_holder: Verifies each holder's, by name.
        timeout: Seconds a holder may be silent.
        patience: Seconds an operation of the accelerator may take.
    """

    proof: Proof
    accelerator: Address
    writes: Address
    holders: Mapping[str, Address]
    accept_accelerator: Acceptance
    accept_holder: Mapping[str, Acceptance]
    timeout: float
    patience: float

    def conversation(
        self, purpose: str, context: dict[str, JsonValue], accept: Acceptance, random: Random
    ) -> ChannelTerms:
        """The orchestrator's part of a conversation."""
        return ChannelTerms(
            purpose=purpose, context=context, proof=self.proof, accept=accept, random=random
        )


@dataclass(slots=True)
class Progress:
    """Seconds of a run by what was done, for benchmarks, and what came of it.

    Attributes:
        transfer: Of trips' steps that training waited for.
        timers: Sums over trips: ``grab``, ``import_key``, ``open``, ``buffer_write``,
            ``export_key``, ``scrub``, ``measure``.
        training: Of training itself.
        losses: Mean loss of each trained trip.
    """

    transfer: float = 0.0
    training: float = 0.0
    timers: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)

    def add(self, name: str, seconds: float) -> None:
        """Count seconds towards a timer."""
        self.timers[name] = self.timers.get(name, 0.0) + seconds


def join_holder(
    parties: Parties, run_id: str, name: str, trip: int, random: Random
) -> tuple[HolderLane, HolderJoined]:
    """Open the channel to a holder and have it join a run.

    Args:
        parties: Whom to talk to.
        run_id: 32 hex digits.
        name: Of the holder.
        trip: The first one that the caller has no record of.
        random: Source of ephemeral keys and nonces.

    Raises:
        Refused, Unreachable: It does not prove itself, is gone, or does not join.
    """
    context: dict[str, JsonValue] = {"run_id": run_id, "holder": name}
    place, accept = parties.holders[name], parties.accept_holder[name]
    conversation = parties.conversation(HOLDER_PURPOSE, context, accept, random)
    try:
        lane = HolderLane.open(place, conversation, timeout=parties.timeout)
        try:
            return lane, lane.join(run_id, trip)
        except BaseException:
            lane.close()
            raise
    except (PeerUnreachable, ChannelCut) as error:
        raise PeerUnreachable(
            "a holder does not answer",
            check="holder",
            owner=name,
            got=f"{error.code} at {write_host_and_port(*place)}",
            hint="start its guest again, then the orchestrator",
        ) from error
