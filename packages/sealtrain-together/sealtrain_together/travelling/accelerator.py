"""The travelling accelerator: a buffer, a program, and the few operations it knows (spec §2).

Contract: one orchestrator at a time; a new session begins when the operations of the last one have
ended, and wipes what it left. No operation reads the buffer. Two lanes of one session may be open:
``work`` trains, ``loans`` lends and proves wipes meanwhile. Code and model state are measured once
after each training; they are read again before the next one only if the accelerator had to wait.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import Field

from sealtrain.base import fingerprint, scrub
from sealtrain.base.canonical import JsonValue
from sealtrain.base.encoding import from_hex
from sealtrain.base.models import Hex32, Hex64, StrictModel, load_model
from sealtrain.base.scrub import fingerprint_of, overwrite
from sealtrain.errors import DataInvalid, TripBroken
from sealtrain.training.checkpoints import kernels
from sealtrain.training.telemetry.facts import accelerators
from sealtrain_together.channel.answers import Done, answer, operation
from sealtrain_together.channel.channel import AttestedChannel, accept
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.ports import listening
from sealtrain_together.travelling import (
    bounds,
    capability,
    lane_requests,
    mapped_code,
    mappings,
    measurement,
    programs,
    rows,
    states,
    trainer_program,
)
from sealtrain_together.travelling import program as program_module
from sealtrain_together.travelling.capability import Gate, WriteCapability, Written, wipe
from sealtrain_together.travelling.lane_requests import Inbox, Message
from sealtrain_together.travelling.mapped_code import MappedCode, release_pages
from sealtrain_together.travelling.measurement import StateMeter
from sealtrain_together.travelling.programs import AnyProgram, parse_settings
from sealtrain_together.travelling.states import MAX_STATE_BYTES
from sealtrain_together.travelling.trainer_program import Training

CONTROL_PURPOSE = "travel-control"
MAX_COMMAND_BYTES = 64 << 10
_SPARE_CONNECTIONS = 16
"""Of holders that come back before the end of their last connection shows."""

Address = tuple[str, int]
Place = Address | socket.socket


class ControlLane(StrictModel):
    """Context of a control channel: which run, whose session, what it is for."""

    run_id: Hex32
    session: Hex32
    lane: Literal["work", "loans"]


class _Range(StrictModel):
    start: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(ge=1)]


class _Turn(_Range):
    """Take a chunk back, train on it, measure, wipe it."""

    id: Hex32
    size: Annotated[int, Field(ge=1)]
    fingerprint: Hex64
    nonce: Hex64
    seed: Hex64
    export: bool = False


class _Wipe(_Range):
    seed: Hex64
    id: Hex32


class _Prove(_Range):
    nonce: Hex64


class LentAccelerator:
    """Memory and program of one accelerator, and who may use them.

    Args:
        buffer_bytes: Size of the dataset buffer.
        patience: Seconds an orchestrator may be silent.
        program: Settings that a program must have, but for its device; ``None`` for any.
        training: What program ``trainer`` trains; ``None`` where no recipe is here.
    """

    def __init__(
        self,
        buffer_bytes: int,
        *,
        patience: float,
        program: Mapping[str, JsonValue] | None = None,
        training: Training | None = None,
    ) -> None:
        self.buffer = memoryview(bytearray(buffer_bytes))
        """Where a trip's data lies, wiped after it."""
        self.gate = Gate(self.buffer)
        """Where holders' writes come in."""
        self._patience = patience
        self._allowed = program
        self._training = training
        self._session: tuple[str, str] | None = None
        self._program: AnyProgram | None = None
        self._state: StateMeter | None = None
        self._code: MappedCode | None = None
        self._loaded_code = ""
        self._waited = False
        self._wiper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wiper")
        self._wiping: Future[None] | None = None
        self._lock = threading.Lock()
        self._serving = {"work": threading.Lock(), "loans": threading.Lock()}
        """Held by the operation of a lane, so that no session begins in the middle of one."""

    @contextmanager
    def listening(
        self,
        control: Place,
        writes: Place,
        conversation: ChannelTerms,
        *,
        holders: int,
        timeout: float,
    ) -> Iterator[tuple[Address, Address]]:
        """Serve orchestrators and holders while the block runs.

        Args:
            control: Where orchestrators connect, as ``ports.listening`` takes it.
            writes: Where holders connect.
            conversation: As ``serve_control``.
            holders: Of a run; each keeps a connection for its writes.
            timeout: Seconds a holder may be silent within a write.

        Yields:
            The addresses of both ports.
        """

        def serve(sock: socket.socket) -> None:
            self.serve_control(sock, conversation)

        def write(sock: socket.socket) -> None:
            self.gate.serve_one(sock, timeout=timeout, idle=self._patience)

        with (
            listening(control, serve, what="orchestrators") as obeys,
            listening(
                writes, write, what="holders", connections=holders + _SPARE_CONNECTIONS
            ) as takes,
        ):
            yield obeys, takes

    def serve_control(self, sock: socket.socket, conversation: ChannelTerms) -> None:
        """Serve one lane of an orchestrator to its end.

        Args:
            sock: A connection to the control port.
            conversation: How this accelerator proves itself and whom it obeys.

        Raises:
            SealtrainError: The other side did not prove itself, or the channel broke.
        """
        with accept(sock, conversation, timeout=self._patience) as channel:
            lane = load_model(ControlLane, channel.context, DataInvalid, "context of a lane")
            self._enter(lane)
            with Inbox(channel, MAX_COMMAND_BYTES, MAX_STATE_BYTES) as asked:
                operations = self._work(asked) if lane.lane == "work" else self._loans()
                while (message := asked.next()) is not None:
                    self._answer(channel, lane, operations, message)

    def _enter(self, lane: ControlLane) -> None:
        session = (lane.run_id, lane.session)
        with self._lock:
            if lane.lane == "loans":
                if session != self._session:
                    raise TripBroken("no such session is at work here", check="session")
                return
            self._session = session  # no operation of another session begins from here on
        with self._serving["work"], self._serving["loans"]:
            if session != self._session:
                raise _refuse_taken_over()
            self._end_program()
            self._state = self._code = None
            self.gate.void()
            self._await_wipe()
            wipe(self.buffer)

    def _answer(
        self,
        channel: AttestedChannel,
        lane: ControlLane,
        operations: dict[str, Callable[..., Done]],
        message: Message,
    ) -> None:
        name = ""

        def act() -> Done:
            nonlocal name
            wanted, command = operation(message.command, operations)
            command.pop("payload", 0)
            with self._serving[lane.lane]:
                if (lane.run_id, lane.session) != self._session:
                    raise _refuse_taken_over()
                name = wanted
                return operations[name](command, message.payload)

        answer(channel, act)
        if name in ("lend", "turn"):
            channel.ratchet()  # a trip is over: its frames no longer open

    def _work(self, asked: Inbox) -> dict[str, Callable[..., Done]]:
        def turn(command: dict[str, Any], _payload: bytes) -> Done:
            return self._turn(command, asked)

        return {"load": self._load, "turn": turn, "export": self._export}

    def _loans(self) -> dict[str, Callable[..., Done]]:
        return {"lend": self._lend, "wipe": self._wipe, "prove": self._prove}

    def _load(self, command: dict[str, Any], payload: bytes) -> Done:
        settings = parse_settings(command.get("settings"))
        given = {name: value for name, value in settings.to_dict().items() if name != "device"}
        if self._allowed is not None and given != self._allowed:
            raise DataInvalid(
                "the program is not the one that the recipe means",
                check="program",
                hint="all guests of a run measure one recipe",
            )
        nonce = _nonce_of(command)
        self._await_wipe()
        wipe(self.buffer)
        self._end_program()
        # Loads now what training and saving load when first used.
        programs.rehearse(settings, self._training)
        self._program = program = programs.build_program(settings, payload or None, self._training)
        release_pages()
        self._state = StateMeter(program)
        self._code = MappedCode(settings.to_dict(), [*_MODULES, *program.code()])
        self._loaded_code = self._code.digest()
        self._waited = True
        measured = {"code": self._loaded_code, "model": self._state.take(nonce)}
        used = list(accelerators()) if settings.device == "cuda" else []
        return {**measured, "buffer": len(self.buffer), "accelerators": used}, b""

    def _lend(self, command: dict[str, Any], _payload: bytes) -> Done:
        challenge = command.get("prove")
        # Proven before it is lent: afterwards other bytes lie there.
        done = {} if challenge is None else self._prove(challenge, b"")[0]
        self.gate.lend(WriteCapability.from_dict(command.get("capability")))
        return done, b""

    def _wipe(self, command: dict[str, Any], _payload: bytes) -> Done:
        asked = load_model(_Wipe, command, DataInvalid, "wipe")
        part = self._range(asked)
        self.gate.close(asked.id)
        self._await_wipe()
        overwrite(part, from_hex(asked.seed))
        return {}, b""

    def _prove(self, command: dict[str, Any], _payload: bytes) -> Done:
        asked = load_model(_Prove, command, DataInvalid, "prove")
        part = self._range(asked)
        self._await_wipe()
        return {"proof": fingerprint_of(part, from_hex(asked.nonce))}, b""

    def _turn(self, command: dict[str, Any], asked: Inbox) -> Done:
        wanted = load_model(_Turn, command, DataInvalid, "turn")
        part = self._range(wanted)
        program, state = self._loaded
        arrived = self.gate.take_back(wanted.id)
        if arrived != Written(size=wanted.size, fingerprint=wanted.fingerprint):
            raise TripBroken(
                "the accelerator received another chunk than the holder sent",
                check="chunk",
                got=f"{arrived.size} bytes {arrived.fingerprint}",
                expected=f"{wanted.size} bytes {wanted.fingerprint}",
            )
        moments = [time.perf_counter()]
        if self._waited:
            state.check_unchanged()
            self._same_code()
        self._waited = True  # whatever becomes of this training
        moments.append(time.perf_counter())
        tokens, loss = program.train(part)
        moments.append(time.perf_counter())
        after = {"code": self._same_code(), "model": state.take(from_hex(wanted.nonce))}
        # A turn that is here by now begins without a wait, unless the answer before it is long: a
        # network may hold that up.
        self._waited = asked.empty or wanted.export
        measuring = time.perf_counter() - moments[2] + moments[1] - moments[0]
        self._wiping = self._wiper.submit(overwrite, part, from_hex(wanted.seed))
        done: dict[str, JsonValue] = {
            "tokens": tokens,
            "loss": loss,
            "after": {**after},
            "seconds": {"train": moments[2] - moments[1], "measure": measuring},
        }
        if program.moved is not None:
            done["moved"] = program.moved
        return done, program.state() if wanted.export else b""

    def _await_wipe(self) -> None:
        """Wait until the last chunk that was trained on is overwritten."""
        if self._wiping is not None:
            self._wiping.result()

    def _export(self, _command: dict[str, Any], _payload: bytes) -> Done:
        program, _ = self._loaded
        self._waited = True  # for the answer to be taken
        return {}, program.state()

    def _end_program(self) -> None:
        """End the program of the last session."""
        if self._program is not None:
            before, self._program = self._program, None
            before.close()

    def _same_code(self) -> str:
        """The digest of the code, if it is that of ``load``."""
        found = "" if self._code is None else self._code.digest()
        if found != self._loaded_code:
            raise TripBroken(
                "the code of the accelerator is not what it was when the program was loaded",
                check="code",
                got=found,
                expected=self._loaded_code,
                hint="do not trust this accelerator; go on from the last sealed state",
            )
        return found

    @property
    def _loaded(self) -> tuple[AnyProgram, StateMeter]:
        if self._program is None or self._state is None:
            raise TripBroken("no program is loaded", check="program", hint="load one first")
        return self._program, self._state

    def _range(self, part: _Range) -> memoryview:
        if not part.start < part.end <= len(self.buffer):
            raise DataInvalid(
                "the range lies outside the buffer",
                got=f"{part.start} to {part.end}",
                expected=f"within {len(self.buffer)} bytes",
            )
        return self.buffer[part.start : part.end]


def _refuse_taken_over() -> TripBroken:
    return TripBroken("another orchestrator has taken over", check="session")


def _nonce_of(command: dict[str, Any]) -> bytes:
    nonce = command.get("nonce")
    if not isinstance(nonce, str):
        raise DataInvalid("no nonce to measure under", check="nonce")
    return from_hex(nonce, length=32)


_MODULES = (
    bounds, capability, fingerprint, lane_requests, kernels, mapped_code, mappings, measurement,
    program_module, programs, rows, scrub, states, trainer_program, sys.modules[__name__],
)  # fmt: skip
"""Modules of the device program."""
