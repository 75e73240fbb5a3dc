"""The orchestrator's side of a lane to the accelerator: one operation, one answer.

What returns a function has asked and not yet heard: more may be asked meanwhile, and the answers
are heard in the order of asking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.errors import (
    AcceleratorUnreachable,
    ChannelBroken,
    ChannelCut,
    PeerUnreachable,
    TripBroken,
)
from sealtrain_collab.channel.answers import receive_answer
from sealtrain_collab.channel.channel import AttestedChannel, connect
from sealtrain_collab.channel.handshake import Conversation
from sealtrain_collab.travelling.accelerator import MAX_COMMAND_BYTES
from sealtrain_collab.travelling.capability import WriteCapability, Written
from sealtrain_collab.travelling.check import zeros_proof
from sealtrain_collab.travelling.program import MAX_STATE_BYTES, ProgramSettings

__all__ = ["AcceleratorLane"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Result of training on a range.

    Attributes:
        tokens: Trained on.
        loss: Mean of it.
        before, after: Measurements.
        moved: How far the weights went before they were cut; ``None`` where nothing bounds them.
        seconds: Of ``train`` and ``measure``, as the accelerator says.
    """

    tokens: int
    loss: float
    before: dict[str, str]
    after: dict[str, str]
    moved: float | None
    seconds: dict[str, float]


class AcceleratorLane:
    """One control channel."""

    def __init__(self, channel: AttestedChannel) -> None:
        self._channel = channel
        self._lost = False

    @classmethod
    def open(cls, address: tuple[str, int], conversation: Conversation, *, timeout: float) -> Self:
        """Connect and have the accelerator prove itself.

        Raises:
            AcceleratorUnreachable: It does not answer; here and wherever it is asked something.
            SealtrainError: As ``channel.connect``.
        """
        with _there():
            return cls(connect(address, conversation, timeout=timeout))

    def load(self, settings: ProgramSettings, state: bytes = b"") -> dict[str, JsonValue]:
        """Wipe it and start a program; returns measurements and the size of the buffer."""
        return self._ask({"do": "load", "settings": settings.to_dict()}, state)[0]

    def lend(self, capability: WriteCapability) -> Callable[[], None]:
        """Ask to open a capability; returns a function that waits until it is open."""
        self._send({"do": "lend", "capability": capability.to_dict()})

        def wait() -> None:
            self._answer()

        return wait

    def take_back(self, capability_id: str) -> Written:
        """Close a capability; returns what came through it."""
        answer, _ = self._ask({"do": "take-back", "id": capability_id})
        return Written(size=int(answer["size"]), fingerprint=str(answer["fingerprint"]))

    def train(self, start: int, end: int) -> Trained:
        """Train on a range.

        Raises:
            DataInvalid: It holds nothing to train on.
            ChannelBroken: The accelerator answers something else.
        """
        answer, _ = self._ask({"do": "train", "start": start, "end": end})
        try:
            return Trained(
                tokens=int(answer["tokens"]),
                loss=float(answer["loss"]),
                before={name: str(answer["before"][name]) for name in ("code", "model")},
                after={name: str(answer["after"][name]) for name in ("code", "model")},
                moved=None if "moved" not in answer else float(answer["moved"]),
                seconds={name: float(one) for name, one in answer["seconds"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ChannelBroken(
                "the accelerator's answer has no result", check="accelerator"
            ) from error

    def measure(self) -> dict[str, str]:
        """Digests of code and model state."""
        answer, _ = self._ask({"do": "measure"})
        return {name: str(answer[name]) for name in ("code", "model")}

    def scrub(self, start: int, end: int, nonce: bytes) -> Callable[[], str]:
        """Ask to wipe a range; the function that it returns waits for the proof.

        Raises:
            TripBroken: From that function: the range does not hold zeros.
        """
        self._send({"do": "scrub", "start": start, "end": end, "nonce": nonce.hex()})
        expected = zeros_proof(nonce.hex(), end - start)

        def proven() -> str:
            answer, _ = self._answer()
            if answer.get("proof") != expected:
                raise TripBroken(
                    "the accelerator did not prove that it wiped the chunk",
                    check="scrub",
                    got=answer.get("proof"),
                    expected=expected,
                )
            return expected

        return proven

    def export(self) -> bytes:
        """The model state, safetensors bytes."""
        return self._ask({"do": "export"})[1]

    def ratchet(self) -> None:
        """Move this direction's key on."""
        self._channel.ratchet()

    def close(self) -> None:
        """End the lane."""
        self._channel.close()

    def _ask(
        self, command: dict[str, JsonValue], payload: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        self._send(command, payload)
        return self._answer()

    def _send(self, command: dict[str, JsonValue], payload: bytes = b"") -> None:
        with self._reached():
            self._channel.send(canonical_json(command | {"payload": len(payload)}))
            if payload:
                self._channel.send(payload)

    def _answer(self) -> tuple[dict[str, Any], bytes]:
        with self._reached():
            return receive_answer(
                self._channel, max_bytes=MAX_COMMAND_BYTES, max_data_bytes=MAX_STATE_BYTES
            )

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """A lane whose accelerator is gone says so from then on."""
        if self._lost:
            raise _gone("a lane that was lost")
        try:
            with _there():
                yield
        except AcceleratorUnreachable:
            self._lost = True
            raise


@contextmanager
def _there() -> Iterator[None]:
    """Name the machine that is gone: its code is all that leaves a run."""
    try:
        yield
    except (PeerUnreachable, ChannelCut) as error:
        raise _gone(error.got) from error


def _gone(got: object) -> AcceleratorUnreachable:
    return AcceleratorUnreachable(
        "the accelerator does not answer",
        got=got,
        hint="start one again, and another orchestrator with --take-over",
    )
