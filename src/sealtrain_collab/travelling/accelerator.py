"""The travelling accelerator: a buffer, a program, and the few operations it knows (spec §2).

Contract: one orchestrator at a time; a new session wipes what the last one left. No operation reads
the buffer. Two lanes of one session may be open: ``work`` trains, ``loans`` lends and takes back
meanwhile.
"""

from __future__ import annotations

import inspect
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from sealtrain.base import fingerprint
from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_hex
from sealtrain.base.fingerprint import Fingerprint, pieces
from sealtrain.base.models import Hex32, Hex64, StrictModel, load_model
from sealtrain.errors import CapabilityRefused, DataInvalid, TripBroken
from sealtrain.training.telemetry.facts import accelerators
from sealtrain_collab.channel.answers import Done, answer, operation
from sealtrain_collab.channel.channel import AttestedChannel, accept
from sealtrain_collab.channel.handshake import Conversation
from sealtrain_collab.travelling import bounds, capability
from sealtrain_collab.travelling import program as program_module
from sealtrain_collab.travelling.capability import Gate, WriteCapability, wipe
from sealtrain_collab.travelling.program import MAX_STATE_BYTES, Program, ProgramSettings

__all__ = ["CONTROL_PURPOSE", "MAX_COMMAND_BYTES", "Accelerator", "Lane"]

CONTROL_PURPOSE = "travel-control"
MAX_COMMAND_BYTES = 64 << 10


class Lane(StrictModel):
    """Context of a control channel: which run, whose session, what it is for."""

    run_id: Hex32
    session: Hex32
    lane: Literal["work", "loans"]


class _Range(StrictModel):
    start: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(ge=1)]


class _Scrub(_Range):
    nonce: Hex64


class Accelerator:
    """Memory and program of one accelerator, and who may use them.

    Args:
        buffer_bytes: Size of the dataset buffer.
        patience: Seconds an orchestrator may be silent.
        program: Settings that a program must have, but for its device; ``None`` for any.
    """

    def __init__(
        self,
        buffer_bytes: int,
        *,
        patience: float,
        program: Mapping[str, JsonValue] | None = None,
    ) -> None:
        self.buffer = memoryview(bytearray(buffer_bytes))
        """Where a trip's data lies, wiped after it."""
        self.gate = Gate(self.buffer)
        """Where holders' writes come in."""
        self._patience = patience
        self._allowed = program
        self._session: tuple[str, str] | None = None
        self._program: Program | None = None
        self._lock = threading.Lock()

    def serve_control(self, sock: socket.socket, conversation: Conversation) -> None:
        """Serve one lane of an orchestrator to its end.

        Args:
            sock: A connection to the control port.
            conversation: How this accelerator proves itself and whom it obeys.

        Raises:
            SealtrainError: The other side did not prove itself, or the channel broke.
        """
        with accept(sock, conversation, timeout=self._patience) as channel:
            lane = load_model(Lane, channel.context, DataInvalid, "context of a lane")
            self._enter(lane)
            operations = self._work() if lane.lane == "work" else self._loans()
            while (message := channel.receive(max_bytes=MAX_COMMAND_BYTES)) is not None:
                self._answer(channel, lane, operations, message)

    def _enter(self, lane: Lane) -> None:
        session = (lane.run_id, lane.session)
        with self._lock:
            if lane.lane == "loans":
                if session != self._session:
                    raise TripBroken("no such session is at work here", check="session")
                return
            self._session = session
            self._program = None
            self.gate.void()
            wipe(self.buffer)

    def _answer(
        self,
        channel: AttestedChannel,
        lane: Lane,
        operations: dict[str, Callable[..., Done]],
        message: bytes,
    ) -> None:
        name = ""

        def act() -> Done:
            nonlocal name
            wanted, command = operation(message, operations)
            payload = b""
            if command.pop("payload", 0):
                payload = channel.receive(max_bytes=MAX_STATE_BYTES) or b""
            if (lane.run_id, lane.session) != self._session:
                raise TripBroken("another orchestrator has taken over", check="session")
            name = wanted
            return operations[name](command, payload)

        answer(channel, act)
        if name in ("scrub", "train"):
            channel.ratchet()  # a trip is over: its frames no longer open

    def _work(self) -> dict[str, Callable[..., Done]]:
        return {
            "load": self._load,
            "train": self._train,
            "measure": self._measure,
            "scrub": self._scrub,
            "export": self._export,
        }

    def _loans(self) -> dict[str, Callable[..., Done]]:
        return {"lend": self._lend, "take-back": self._take_back, "scrub": self._scrub}

    def _load(self, command: dict[str, Any], payload: bytes) -> Done:
        settings = ProgramSettings.from_dict(command.get("settings"))
        given = {name: one for name, one in settings.to_dict().items() if name != "device"}
        if self._allowed is not None and given != self._allowed:
            raise DataInvalid(
                "the program is not the one that the recipe means",
                check="program",
                hint="all guests of a run measure one recipe",
            )
        wipe(self.buffer)
        self._program = Program(settings, payload or None)
        used = list(accelerators()) if settings.device == "cuda" else []
        return {**self._measured(), "buffer": len(self.buffer), "accelerators": used}, b""

    def _lend(self, command: dict[str, Any], _payload: bytes) -> Done:
        self.gate.lend(WriteCapability.from_dict(command.get("capability")))
        return {}, b""

    def _take_back(self, command: dict[str, Any], _payload: bytes) -> Done:
        name = command.get("id")
        if not isinstance(name, str):
            raise CapabilityRefused("no capability is named", check="capability")
        return self.gate.take_back(name).to_dict(), b""

    def _train(self, command: dict[str, Any], _payload: bytes) -> Done:
        part = self._range(command)
        program = self._loaded
        moments = [time.perf_counter()]
        before = self._measured()
        moments.append(time.perf_counter())
        tokens, loss = program.train(self.buffer[part.start : part.end])
        moments.append(time.perf_counter())
        after = self._measured()
        measuring = time.perf_counter() - moments[2] + moments[1] - moments[0]
        done = {
            "tokens": tokens,
            "loss": loss,
            "before": before,
            "after": after,
            "seconds": {"train": moments[2] - moments[1], "measure": measuring},
        }
        return done if program.moved is None else done | {"moved": program.moved}, b""

    def _measure(self, _command: dict[str, Any], _payload: bytes) -> Done:
        return {**self._measured()}, b""

    def _scrub(self, command: dict[str, Any], _payload: bytes) -> Done:
        asked = load_model(_Scrub, command, DataInvalid, "scrub")
        part = self._range({"start": asked.start, "end": asked.end})
        left = Fingerprint(from_hex(asked.nonce))
        chunk = self.buffer[part.start : part.end]
        for start, length in pieces(len(chunk)):
            piece = chunk[start : start + length]
            wipe(piece)
            left.take(piece)
        return {"proof": left.digest().hex()}, b""

    def _export(self, _command: dict[str, Any], _payload: bytes) -> Done:
        return {}, self._loaded.state()

    def _measured(self) -> dict[str, str]:
        program = self._loaded
        return {"code": _code_digest(program.settings), "model": program.digest()}

    @property
    def _loaded(self) -> Program:
        if self._program is None:
            raise TripBroken("no program is loaded", check="program", hint="load one first")
        return self._program

    def _range(self, command: dict[str, Any]) -> _Range:
        part = load_model(_Range, command, DataInvalid, "range")
        if not part.start < part.end <= len(self.buffer):
            raise DataInvalid(
                "the range lies outside the buffer",
                got=f"{part.start} to {part.end}",
                expected=f"within {len(self.buffer)} bytes",
            )
        return part


@lru_cache(maxsize=1)  # what was loaded stays loaded
def _code_digest(settings: ProgramSettings) -> str:
    """Digest of the settings and of every source file of the device program, hex."""
    modules = (bounds, capability, fingerprint, program_module, sys.modules[__name__])
    sources: dict[str, JsonValue] = {
        module.__name__: sha256_hex(inspect.getsource(module).encode()) for module in modules
    }
    return sha256_hex(canonical_json({"settings": settings.to_dict(), "sources": sources}))
