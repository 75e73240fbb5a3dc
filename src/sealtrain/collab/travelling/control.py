"""The orchestrator's side of a lane to the accelerator: one operation, one answer."""

from __future__ import annotations

import hashlib
from typing import Any, Self

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.encoding import from_hex
from sealtrain.collab.channel.channel import AttestedChannel, connect
from sealtrain.collab.channel.handshake import Conversation
from sealtrain.collab.travelling.accelerator import MAX_COMMAND_BYTES
from sealtrain.collab.travelling.answers import read_answer
from sealtrain.collab.travelling.capability import WriteCapability, Written
from sealtrain.collab.travelling.program import MAX_STATE_BYTES, ProgramSettings
from sealtrain.errors import TripBroken

__all__ = ["AcceleratorLane", "zeros_proof"]


class AcceleratorLane:
    """One control channel."""

    def __init__(self, channel: AttestedChannel) -> None:
        self._channel = channel

    @classmethod
    def open(cls, address: tuple[str, int], conversation: Conversation, *, timeout: float) -> Self:
        """Connect and have the accelerator prove itself. Errors as ``channel.connect``."""
        return cls(connect(address, conversation, timeout=timeout))

    def load(self, settings: ProgramSettings, state: bytes = b"") -> dict[str, JsonValue]:
        """Wipe it and start a program; returns measurements and the size of the buffer."""
        return self._ask({"do": "load", "settings": settings.to_dict()}, state)[0]

    def lend(self, capability: WriteCapability) -> None:
        """Open a capability."""
        self._ask({"do": "lend", "capability": capability.to_dict()})

    def take_back(self, capability_id: str) -> Written:
        """Close a capability; returns what came through it."""
        answer, _ = self._ask({"do": "take-back", "id": capability_id})
        return Written(size=int(answer["size"]), sha256=str(answer["sha256"]))

    def train(self, start: int, end: int) -> tuple[int, float]:
        """Train on a range; returns tokens and mean loss."""
        answer, _ = self._ask({"do": "train", "start": start, "end": end})
        return int(answer["tokens"]), float(answer["loss"])

    def measure(self) -> dict[str, str]:
        """Digests of code and model state."""
        answer, _ = self._ask({"do": "measure"})
        return {name: str(answer[name]) for name in ("code", "model")}

    def scrub(self, start: int, end: int, nonce: bytes) -> str:
        """Wipe a range and return the proof, once it is that of zeros.

        Raises:
            TripBroken: It is another.
        """
        answer, _ = self._ask({"do": "scrub", "start": start, "end": end, "nonce": nonce.hex()})
        expected = zeros_proof(nonce.hex(), end - start)
        if answer.get("proof") != expected:
            raise TripBroken(
                "the accelerator did not prove that it wiped the chunk",
                check="scrub",
                got=answer.get("proof"),
                expected=expected,
            )
        return expected

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
        self._channel.send(canonical_json(command | {"payload": len(payload)}))
        if payload:
            self._channel.send(payload)
        answer = read_answer(self._channel.receive(max_bytes=MAX_COMMAND_BYTES))
        data = b""
        if answer.payload:
            data = self._channel.receive(max_bytes=MAX_STATE_BYTES) or b""
        return answer.ok, data


def zeros_proof(nonce: str, size: int) -> str:
    """What ``scrub`` answers for a range of that many zero bytes: SHA-256, hex."""
    digest = hashlib.sha256(from_hex(nonce))
    block = bytes(min(size, 1 << 20))
    for start in range(0, size, len(block) or 1):
        digest.update(block[: size - start])
    return digest.hexdigest()
