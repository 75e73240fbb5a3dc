"""The orchestrator's side of the channel to a holder: one question, one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.encoding import from_base64
from sealtrain.base.secret import Secret
from sealtrain.errors import ChannelBroken, DataInvalid
from sealtrain_collab.channel.answers import receive_answer
from sealtrain_collab.channel.channel import AttestedChannel, connect
from sealtrain_collab.channel.handshake import Conversation
from sealtrain_collab.channel.proofs import Peer
from sealtrain_collab.travelling.capability import Written
from sealtrain_collab.travelling.holder import Join, Provision

__all__ = ["Given", "HolderLane", "Joined"]

_MAX_ANSWER_BYTES = 16 << 10
_MAX_REPORT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What a holder says when it joins: bytes it has, and its share of the standby's key."""

    size: int
    share: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a holder says it wrote: mark in hex, seconds by timer."""

    written: Written
    mark: str
    timers: dict[str, float]


class HolderLane:
    """One channel to a holder."""

    def __init__(self, channel: AttestedChannel) -> None:
        self._channel = channel

    @classmethod
    def open(cls, address: tuple[str, int], conversation: Conversation, *, timeout: float) -> Self:
        """Connect and have the holder prove itself. Errors as ``channel.connect``."""
        return cls(connect(address, conversation, timeout=timeout))

    @property
    def peer(self) -> Peer:
        """The peer."""
        return self._channel.peer

    def join(self, run_id: str, trip: int) -> Joined:
        """Begin with a holder, or go on with it from a trip.

        Raises:
            CheckpointRefused: It gave more since then than can be lost.
            ChannelBroken: It answers something else.
        """
        ok, _ = self._ask("join", Join(run_id=run_id, trip=trip).to_dict())
        try:
            share = Secret(from_base64(ok["share"], length=32))
            return Joined(size=int(ok["bytes"]), share=share)
        except (KeyError, TypeError, ValueError, DataInvalid):
            raise ChannelBroken("the holder's answer names no tokens", check="holder") from None

    def provision(self, asked: Provision) -> Given:
        """Have it write one chunk.

        Raises:
            SealtrainError: What it refused with.
            ChannelBroken: It answers something else.
        """
        ok, _ = self._ask("provision", asked.to_dict())
        timers = ok.get("timers", {})
        try:
            return Given(
                written=Written(size=int(ok["size"]), fingerprint=str(ok["fingerprint"])),
                mark=str(ok["mark"]),
                timers={str(name): float(seconds) for name, seconds in timers.items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ChannelBroken("the holder's answer names no chunk", check="holder") from error

    def report(self) -> bytes:
        """How it came by its data. Raises as ``provision``."""
        return self._ask("report", {})[1]

    def finish(self) -> None:
        """Tell it that the run is over. Raises as ``provision``."""
        self._ask("finish", {})

    def close(self) -> None:
        """End the conversation."""
        self._channel.close()

    def _ask(self, what: str, fields: dict[str, JsonValue]) -> tuple[dict[str, Any], bytes]:
        self._channel.send(canonical_json({"do": what, **fields}))
        return receive_answer(
            self._channel, max_bytes=_MAX_ANSWER_BYTES, max_data_bytes=_MAX_REPORT_BYTES
        )
