"""The orchestrator's side of a lane to the accelerator: one operation, one answer.

``turn`` asks and does not wait: another turn may be asked meanwhile, and ``wait_trained`` gives the
answers in the order of asking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.hostport import write_host_and_port
from sealtrain.base.models import Hex64, StrictModel, load_model
from sealtrain.base.scrub import proof_of
from sealtrain.errors import AcceleratorUnreachable, TripBroken
from sealtrain.training.errors import ChannelBroken, ChannelCut, PeerUnreachable
from sealtrain_together.channel.answers import receive_answer
from sealtrain_together.channel.channel import AttestedChannel, connect
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.travelling.accelerator import MAX_COMMAND_BYTES
from sealtrain_together.travelling.capability import WriteCapability, Written
from sealtrain_together.travelling.programs import AnySettings
from sealtrain_together.travelling.states import MAX_STATE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the accelerator is asked for one trip, once its chunk was written.

    Attributes:
        start, end: The range.
        id: Of the capability that is taken back.
        written: As the holder says; the accelerator trains on nothing else.
        nonce: Of the measurement, 32 bytes.
        seed: What the range is overwritten with, 32 bytes.
        export: Whether the answer carries the model state.
    """

    start: int
    end: int
    id: str
    written: Written
    nonce: bytes
    seed: bytes
    export: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """Result of a turn.

    Attributes:
        tokens: Trained on.
        loss: Mean of it.
        after: Measurements.
        moved: How far the weights went before they were cut; ``None`` where nothing bounds them.
        seconds: Of ``train`` and ``measure``, as the accelerator says.
        state: Model state, if it was asked for.
    """

    tokens: int
    loss: float
    after: dict[str, str]
    moved: float | None
    seconds: dict[str, float]
    state: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeChallenge:
    """A range that was overwritten, and the nonce under which that is proven.

    Attributes:
        start, end: The range.
        nonce: 64 hex digits that leave the orchestrator only once the range was overwritten.
        seed: What the range was overwritten with, 64 hex digits.
    """

    start: int
    end: int
    nonce: str
    seed: str

    def to_dict(self) -> dict[str, JsonValue]:
        """What is asked: everything but the seed."""
        return {"start": self.start, "end": self.end, "nonce": self.nonce}

    def proof(self) -> str:
        """What an accelerator answers that overwrote the range, 64 hex digits."""
        return proof_of(self.seed, self.nonce, self.end - self.start)


_Count = Annotated[int, Field(ge=0, le=1 << 53)]
_Figure = Annotated[float, Field(allow_inf_nan=False)]


class _Measured(StrictModel):
    code: Hex64
    model: Hex64


class _LoadAnswer(_Measured):
    buffer: _Count
    accelerators: tuple[str, ...]


class _TurnAnswer(StrictModel):
    # As the run log wants it: an answer of another form ends the channel, not the orchestrator.
    tokens: Annotated[int, Field(ge=1, lt=1 << 53)]
    loss: _Figure
    after: _Measured
    moved: Annotated[_Figure, Field(ge=-1)] | None = None
    seconds: dict[Literal["train", "measure"], _Figure]


class AcceleratorLane:
    """One control channel."""

    def __init__(self, channel: AttestedChannel, place: str) -> None:
        self._channel = channel
        self._place = place
        self._lost = False

    @classmethod
    def open(cls, address: tuple[str, int], conversation: ChannelTerms, *, timeout: float) -> Self:
        """Connect and have the accelerator prove itself.

        Raises:
            AcceleratorUnreachable: It does not answer; here and wherever it is asked something.
            SealtrainError: As ``channel.connect``.
        """
        place = write_host_and_port(*address)
        with _there(place):
            return cls(connect(address, conversation, timeout=timeout), place)

    def load(self, settings: AnySettings, nonce: bytes, state: bytes = b"") -> dict[str, JsonValue]:
        """Wipe it and start a program; returns measurements and the size of the buffer."""
        command: dict[str, JsonValue] = {
            "do": "load", "settings": settings.to_dict(), "nonce": nonce.hex()
        }  # fmt: skip
        answer, _ = self._ask(command, state)
        return load_model(_LoadAnswer, answer, ChannelBroken, "answer of an accelerator").to_dict()

    def lend(
        self,
        capability: WriteCapability,
        challenge: WipeChallenge | None = None,
        expected: Callable[[], str] | None = None,
    ) -> str:
        """Open a capability, once it is proven that its range was overwritten.

        Args:
            capability: To open.
            challenge: Of what was overwritten; ``None`` where nothing was.
            expected: Gives its proof, where it was computed ahead.

        Returns:
            The proof; empty without a challenge.

        Raises:
            TripBroken: It was not.
        """
        command: dict[str, JsonValue] = {"do": "lend", "capability": capability.to_dict()}
        if challenge is not None:
            command["prove"] = challenge.to_dict()
        self._channel.ratchet()
        if challenge is None:
            self._ask(command)
            return ""
        return self._challenge(command, expected or challenge.proof)

    def prove(self, challenge: WipeChallenge, expected: Callable[[], str] | None = None) -> str:
        """Have it prove that a range was overwritten. Arguments and errors as ``lend``."""
        command = {"do": "prove", **challenge.to_dict()}
        return self._challenge(command, expected or challenge.proof)

    def wipe(self, start: int, end: int, seed: bytes, capability_id: str) -> None:
        """Close a capability and overwrite its range."""
        self._ask(
            {"do": "wipe", "start": start, "end": end, "seed": seed.hex(), "id": capability_id}
        )

    def turn(self, turn: Turn) -> None:
        """Ask for a trip's training; ``wait_trained`` gives the answers in the order of asking."""
        self._channel.ratchet()
        self._send({
            "do": "turn", "start": turn.start, "end": turn.end, "id": turn.id,
            **turn.written.to_dict(), "nonce": turn.nonce.hex(), "seed": turn.seed.hex(),
            "export": turn.export,
        })  # fmt: skip

    def wait_trained(self) -> TurnResult:
        """Wait for the answer of the oldest turn.

        Raises:
            CapabilityRefused: Its holder broke the rules, or had not written all.
            DataInvalid: The chunk holds nothing to train on.
            TripBroken: Another chunk arrived than the holder sent, or code or model state changed.
            ChannelBroken: The accelerator answers something else.
        """
        answer, state = self._answer()
        said = load_model(_TurnAnswer, answer, ChannelBroken, "answer of an accelerator")
        return TurnResult(
            tokens=said.tokens,
            loss=said.loss,
            after={"code": said.after.code, "model": said.after.model},
            moved=said.moved,
            seconds=dict(said.seconds.items()),
            state=state,
        )

    def export(self) -> bytes:
        """The model state, safetensors bytes."""
        return self._ask({"do": "export"})[1]

    def close(self) -> None:
        """End the lane."""
        self._channel.close()

    def _challenge(self, command: dict[str, JsonValue], proof: Callable[[], str]) -> str:
        self._send(command)
        expected = proof()  # while the accelerator reads its range
        answer, _ = self._answer()
        if answer.get("proof") != expected:
            raise TripBroken(
                "the accelerator did not prove that it wiped the chunk",
                check="scrub",
                got=answer.get("proof"),
                expected=expected,
            )
        return expected

    def _ask(
        self, command: dict[str, JsonValue], payload: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        self._send(command, payload)
        return self._answer()

    def _send(self, command: dict[str, JsonValue], payload: bytes = b"") -> None:
        with self._note_unreachable():
            self._channel.send(canonical_json(command | {"payload": len(payload)}))
            if payload:
                self._channel.send(payload)

    def _answer(self) -> tuple[dict[str, Any], bytes]:
        with self._note_unreachable():
            return receive_answer(
                self._channel, max_bytes=MAX_COMMAND_BYTES, max_data_bytes=MAX_STATE_BYTES
            )

    @contextmanager
    def _note_unreachable(self) -> Iterator[None]:
        """A lane whose accelerator is gone says so from then on."""
        if self._lost:
            raise _name_gone(self._place)
        try:
            with _there(self._place):
                yield
        except AcceleratorUnreachable:
            self._lost = True
            raise


@contextmanager
def _there(place: str) -> Iterator[None]:
    """Name the machine that is gone: its code is all that leaves a run."""
    try:
        yield
    except (PeerUnreachable, ChannelCut) as error:
        raise _name_gone(place) from error


def _name_gone(place: str) -> AcceleratorUnreachable:
    return AcceleratorUnreachable(
        "the accelerator does not answer",
        got=place,
        hint="start one again, then the orchestrator: it takes the run over",
    )
