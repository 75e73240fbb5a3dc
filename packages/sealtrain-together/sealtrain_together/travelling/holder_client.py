"""The orchestrator's side of the channel to a holder: one question, one answer."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import Hex64, StrictModel, load_model
from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid, SealtrainError, Unreachable
from sealtrain.training.errors import ChannelBroken
from sealtrain_together.channel.answers import receive_answer
from sealtrain_together.channel.channel import AttestedChannel, connect
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.proofs import Peer
from sealtrain_together.travelling.capability import Written
from sealtrain_together.travelling.holder import Join, Provision

_MAX_ANSWER_BYTES = 16 << 10
_MAX_REPORT_BYTES = 4 << 20
_Bytes = Annotated[int, Field(ge=0, le=1 << 53)]
_Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderJoined:
    """What a holder says when it joins: bytes it has, and its share of the standby's key."""

    size: int
    share: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a holder says it wrote: mark in hex, seconds by timer."""

    written: Written
    mark: str
    timers: dict[str, float]


class _JoinAnswer(StrictModel):
    bytes: _Bytes
    share: str = Field(repr=False)


class _GivenAnswer(StrictModel):
    """What stands in the log is here as a reader of the log wants it."""

    size: _Bytes
    fingerprint: Hex64
    mark: Hex64
    timers: dict[Literal["import_key", "open", "buffer_write"], _Seconds]


class HolderLane:
    """One channel to a holder."""

    def __init__(self, channel: AttestedChannel) -> None:
        self._channel = channel

    @classmethod
    def open(cls, address: tuple[str, int], conversation: ChannelTerms, *, timeout: float) -> Self:
        """Connect and have the holder prove itself. Errors as ``channel.connect``."""
        return cls(connect(address, conversation, timeout=timeout))

    @property
    def peer(self) -> Peer:
        """The peer."""
        return self._channel.peer

    def join(self, run_id: str, trip: int) -> HolderJoined:
        """Begin with a holder, or go on with it from a trip.

        Raises:
            CheckpointRefused: It gave more since then than can be lost.
            ChannelBroken: It answers something else.
        """
        ok, _ = self._ask("join", Join(run_id=run_id, trip=trip).to_dict())
        said = load_model(_JoinAnswer, ok, ChannelBroken, "answer of a holder")
        try:
            return HolderJoined(size=said.bytes, share=Secret(from_base64(said.share, length=32)))
        except DataInvalid:
            raise ChannelBroken("the holder's answer has no share", check="holder") from None

    def provision(self, asked: Provision, *, report: bool = False) -> tuple[Given, bytes]:
        """Have it write one chunk, and report how it came by its data.

        Both are asked for at once: a trip waits for one answer of a holder that is far away.

        Args:
            asked: What to write, and where.
            report: Whether to ask for the report; it is empty otherwise.

        Raises:
            SealtrainError: What it refused with.
            ChannelBroken: It answers something else.
        """
        self._send("provision", asked.to_dict())
        if report:
            self._send("report", {})
        try:
            given = self._read_given()
        except (ChannelBroken, Unreachable):
            raise  # no answer of this channel is looked at any more
        except SealtrainError:
            if report:
                with suppress(SealtrainError):  # so that the next answer is to the next question
                    self._receive()
            raise
        return given, self._receive()[1] if report else b""

    def report(self) -> bytes:
        """How it came by its data. Raises as ``provision``."""
        return self._ask("report", {})[1]

    def finish(self) -> None:
        """Tell it that the run is over. Raises as ``provision``."""
        self._ask("finish", {})

    def close(self) -> None:
        """End the conversation."""
        self._channel.close()

    def _read_given(self) -> Given:
        ok, _ = self._receive()
        said = load_model(_GivenAnswer, ok, ChannelBroken, "answer of a holder")
        return Given(
            written=Written(size=said.size, fingerprint=said.fingerprint),
            mark=said.mark,
            timers=dict(said.timers.items()),
        )

    def _ask(self, what: str, fields: dict[str, JsonValue]) -> tuple[dict[str, Any], bytes]:
        self._send(what, fields)
        return self._receive()

    def _send(self, what: str, fields: dict[str, JsonValue]) -> None:
        self._channel.send(canonical_json({"do": what, **fields}))

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        return receive_answer(
            self._channel, max_bytes=_MAX_ANSWER_BYTES, max_data_bytes=_MAX_REPORT_BYTES
        )
