"""The orchestrator: owns model, schedule and transcript, and sends the accelerator round (spec §4).

While the accelerator trains on one half of its buffer, the next holder fills the other, and its
turn is asked for ahead, so that the accelerator goes on without a wait. Whatever a holder does, its
chunk is trained on only when both ends named the same bytes; otherwise the half is scrubbed and the
trip stands refused in the transcript.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Self, TypeVar

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.encoding import from_hex
from sealtrain.base.secret import Random
from sealtrain.errors import DataInvalid, Refused, SealtrainError, TripBroken, Unreachable
from sealtrain.signing.runlog import RunLog
from sealtrain_together.errors import CapabilityRefused
from sealtrain_together.travelling.accelerator import CONTROL_PURPOSE
from sealtrain_together.travelling.capability import WriteCapability, Written
from sealtrain_together.travelling.control import AcceleratorLane, Turn, WipeChallenge
from sealtrain_together.travelling.history import first_open, last_state, rotation_after, spend_of
from sealtrain_together.travelling.holder import Provision
from sealtrain_together.travelling.holder_client import Given, HolderLane
from sealtrain_together.travelling.measurement import fingerprint_of_bytes
from sealtrain_together.travelling.parties import Parties, Progress, join_holder
from sealtrain_together.travelling.schedule import TravelPlan, Trip

Answered = TypeVar("Answered")
Record = Callable[[str, dict[str, JsonValue]], None]


@dataclass(frozen=True, slots=True)
class TravelLog:
    """A run, and where its events are written.

    Attributes:
        run_id: 32 hex digits.
        log: The run log, with what another orchestrator wrote before it was taken over; a new one
            where ``None``.
        record: Writes an event to that log; the orchestrator itself where ``None``.
    """

    run_id: str
    log: RunLog | None = None
    record: Record | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What an orchestrator calls on the way.

    Attributes:
        sealed: Called with the model state whenever ``plan.seal_every`` trips have gone by.
        on_trip: Called after every trained trip, with its loss.
        reported: Called with each holder's report when it joins and for every chunk it wrote,
            before anything of it is trained on; ``None`` where holders have none.
    """

    sealed: Callable[[bytes], None] | None = None
    on_trip: Callable[[Trip, float], None] | None = None
    reported: Callable[[str, bytes], None] | None = None


@dataclass(frozen=True, slots=True)
class _Filled:
    """A chunk that its holder has written."""

    trip: Trip
    id: str
    written: Written


@dataclass(frozen=True, slots=True)
class _AskedTurn:
    """A turn that was asked for and not answered yet."""

    trip: Trip
    id: str
    nonce: bytes
    wiped: _Wiped
    export: bool


@dataclass(frozen=True, slots=True)
class _Wiped:
    """A chunk that is overwritten, and not proven yet."""

    trip: Trip
    challenge: WipeChallenge
    proof: Future[str]
    """Computed meanwhile."""


class Orchestrator:
    """One run. Use as a context: it holds channels and a thread.

    Args:
        plan: What to do.
        parties: With whom.
        into: The run, and where its events are written.
        holders: Channels to holders that have joined; closed at the end.
        clock: Of the log, if this process alone writes it.
        random: Of sessions, capabilities and nonces.
        hooks: What is called on the way.
    """

    def __init__(
        self,
        plan: TravelPlan,
        parties: Parties,
        into: TravelLog,
        *,
        holders: dict[str, HolderLane] | None = None,
        clock: Clock = system_clock,
        random: Random = os.urandom,
        hooks: Hooks | None = None,
    ) -> None:
        hooks = hooks or Hooks()
        self.plan = plan
        self.log = RunLog(into.run_id) if into.log is None else into.log
        self.progress = Progress()
        self.accelerators: tuple[str, ...] = ()
        self._parties = parties
        self._run_id = into.run_id
        self._clock = clock
        self._record = self._note if into.record is None else into.record
        self._random = random
        self._sealed = hooks.sealed
        self._sealed_at = 0
        self._on_trip = hooks.on_trip
        self._reported = hooks.reported
        self._stack = ExitStack()
        self._ahead = ThreadPoolExecutor(max_workers=1)
        self._prover = ThreadPoolExecutor(max_workers=1)
        self._measured: dict[str, str] = {}
        self._nonce = b""
        self._session = random(16).hex()
        self._holders: dict[str, HolderLane] = dict(holders or {})
        self._met = set(self._holders)
        self._goes_on_from = first_open(self.log)
        self._rotation = rotation_after(plan, self.log)

    def __enter__(self) -> Self:
        try:
            self._work = self._lane("work")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # First the thread that talks to holders: it may open a channel until it ends.
        self._ahead.shutdown(cancel_futures=True)
        self._prover.shutdown(cancel_futures=True)
        for channel in self._holders.values():
            channel.close()
        self._stack.close()

    def run(self, state: bytes = b"") -> bytes:
        """Travel until every holder has given what it may.

        Args:
            state: Sealed model state to go on from; nothing begins anew.

        Returns:
            The trained model state, safetensors bytes.

        Raises:
            TripBroken: Code or model state changed between two trips, or a chunk was not wiped.
            Refused, Unreachable: The accelerator does not prove itself, or is gone. What a holder
                does ends its trip, never the run.
        """
        self._begin(state)
        half = 0
        running: _AskedTurn | None = None
        wiped: _Wiped | None = None  # overwritten and not proven; in the half that is filled next
        filling = self._start_fill(half, wiped)
        while True:
            filled = self._await_fill(filling)
            asked = None if filled is None else self._turn(filled)
            trained = running is not None
            if running is not None:
                trained, wiped = self._finish(running)
            if asked is None and (running is None or trained):
                break
            if asked is not None:
                half = 1 - half
            filling = self._start_fill(half, wiped)
            wiped = None
            running = asked
        if wiped is not None:
            self._prove(wiped)
        model = self._work.export()
        self._is_the_state(model)
        finished: dict[str, JsonValue] = {"model": self._measured["model"]}
        if (spent := spend_of(self.plan, self.log)) is not None:
            finished["privacy"] = spent
        self._record("travel.finished", finished)
        return model

    def ask(self, name: str, question: Callable[[HolderLane], Answered]) -> Answered:
        """A holder's answer. A channel that broke stays broken: the next question opens another.

        Args:
            name: Of the holder.
            question: Asked on the channel to it.

        Raises:
            Refused, Unreachable, DataInvalid: What it refused with, or it is gone.
        """
        try:
            return question(self._holder(name))
        except (Refused, Unreachable):
            if (gone := self._holders.pop(name, None)) is not None:
                gone.close()
            raise

    def _begin(self, state: bytes) -> None:
        before = last_state(self.log)
        self._nonce = self._random(32) if before is None else from_hex(before["nonce"])
        answer = self._work.load(self.plan.program, self._nonce, state)
        # Not before that answer: until then the accelerator may not know of this session.
        self._loans = self._lane("loans")
        self._measured = {name: str(answer[name]) for name in ("code", "model")}
        if state:
            self._is_the_state(state)
        self.accelerators = tuple(map(str, answer["accelerators"]))
        if answer["buffer"] != self.plan.buffer_bytes:
            raise DataInvalid(
                "the accelerator has another buffer than the plan says",
                got=answer["buffer"],
                expected=self.plan.buffer_bytes,
            )
        if before is None:
            self._record(
                "travel.setup",
                {
                    "buffer": self.plan.buffer_bytes,
                    "program": self.plan.program.to_dict(),
                    "holders": {holder.name: holder.tokens for holder in self.plan.holders},
                    "nonce": self._nonce.hex(),
                    **self._measured,
                },
            )
            return
        if any(before[name] != self._measured[name] for name in ("code", "model")):
            raise TripBroken(
                "the sealed state is not the one that the run log ends with",
                check="model state",
                got=self._measured["model"],
                expected=before["model"],
            )
        self._sealed_at = self._goes_on_from
        self._record("travel.taken-over", dict(self._measured))

    def _start_fill(self, half: int, wiped: _Wiped | None) -> Future[_Filled | None]:
        return self._ahead.submit(self._fill, half, wiped)

    def _await_fill(self, waiting: Future[_Filled | None]) -> _Filled | None:
        began = time.perf_counter()
        filled = waiting.result()
        self.progress.transfer += time.perf_counter() - began
        return filled

    def _fill(self, half: int, wiped: _Wiped | None) -> _Filled | None:
        """Steps 1 to 3, with another holder for each that fails; ``None`` when all is given.

        With them step 7 of the trip whose chunk lay in this half.
        """
        while (trip := self._rotation.next(half)) is not None:
            capability = WriteCapability.make(trip.number, trip.start, trip.end, self._random)
            began = time.perf_counter()
            if wiped is None:
                self._loans.lend(capability)
            else:
                proof = self._loans.lend(capability, wiped.challenge, wiped.proof.result)
                self._scrub(wiped, proof)
                wiped = None
            self._record("trip.lent", {
                "trip": trip.number, "holder": trip.holder, "start": trip.start, "end": trip.end,
                "id": capability.id,
            })  # fmt: skip
            self.progress.add("grab", time.perf_counter() - began)
            try:
                given, report = self._provision(trip, capability)
                if self._reported is not None:
                    self._reported(trip.holder, report)
            except SealtrainError as error:  # whatever code a holder refuses with
                wiped = self._refuse(trip, capability.id, error)
                continue
            self._record(
                "trip.written",
                {"trip": trip.number, "size": given.written.size, "mark": given.mark},
            )
            return _Filled(trip, capability.id, given.written)
        if wiped is not None:
            self._prove(wiped)
        return None

    def _provision(self, trip: Trip, capability: WriteCapability) -> tuple[Given, bytes]:
        host, port = self._parties.writes
        asked = Provision(
            run_id=self._run_id,
            trip=trip.number,
            offset=trip.offset,
            size=trip.size,
            host=host,
            port=port,
            capability=capability.to_dict(),
        )
        told = self._reported is not None
        given, report = self.ask(trip.holder, lambda lane: lane.provision(asked, report=told))
        if given.written.size != trip.size:
            raise TripBroken(
                "the holder wrote another chunk than it was asked for",
                check="chunk",
                got=given.written.size,
                expected=trip.size,
            )
        for name, seconds in given.timers.items():
            self.progress.add(name, seconds)
        return given, report

    def _refuse(self, trip: Trip, capability_id: str, error: SealtrainError) -> _Wiped:
        self._rotation.refuse(trip)
        refused = {"trip": trip.number, "holder": trip.holder, "code": error.code}
        self._record("trip.refused", refused)
        wiped = self._wiping(trip)
        seed = from_hex(wiped.challenge.seed)
        self._loans.wipe(trip.start, trip.end, seed, capability_id)
        return wiped

    def _wiping(self, trip: Trip) -> _Wiped:
        """Draw what the range of a trip is overwritten with, and the nonce of the challenge.

        The proof is computed in a thread. The nonce leaves this process with the challenge alone,
        so that the accelerator does not know it while it overwrites.
        """
        challenge = WipeChallenge(
            start=trip.start,
            end=trip.end,
            nonce=self._random(32).hex(),
            seed=self._random(32).hex(),
        )
        return _Wiped(trip, challenge, self._prover.submit(challenge.proof))

    def _turn(self, filled: _Filled) -> _AskedTurn:
        """Ask for steps 4 to 6; the accelerator begins with them when it is done with the last."""
        trip, nonce = filled.trip, self._random(32)
        wiped = self._wiping(trip)
        due = trip.number - self._sealed_at >= self.plan.seal_every
        export = self._sealed is not None and due
        if export:
            self._sealed_at = trip.number
        self._work.turn(
            Turn(
                start=trip.start,
                end=trip.end,
                id=filled.id,
                written=filled.written,
                nonce=nonce,
                seed=from_hex(wiped.challenge.seed),
                export=export,
            )
        )
        return _AskedTurn(trip, filled.id, nonce, wiped, export)

    def _finish(self, asked: _AskedTurn) -> tuple[bool, _Wiped]:
        """Steps 4 to 6: whether the chunk was trained on, and that it was overwritten."""
        trip = asked.trip
        try:
            done = self._work.wait_trained()
        except (DataInvalid, CapabilityRefused, TripBroken) as error:
            if isinstance(error, TripBroken) and error.check != "chunk":
                raise
            if asked.export:  # the next turn brings the state instead
                self._sealed_at -= self.plan.seal_every
            return False, self._refuse(trip, asked.id, error)
        if done.after["code"] != self._measured["code"]:
            raise TripBroken(
                "the code in the accelerator is not as it was loaded",
                check="code",
                got=done.after["code"],
                expected=self._measured["code"],
                hint="do not trust this accelerator; go on from the last sealed state",
            )
        self._measured, self._nonce = done.after, asked.nonce
        bounded: dict[str, JsonValue] = {} if done.moved is None else {"moved": done.moved}
        self._record("trip.trained", {
            "trip": trip.number, "tokens": done.tokens, "nonce": asked.nonce.hex(),
            "after": dict(done.after), **bounded,
        })  # fmt: skip
        self.progress.training += done.seconds.get("train", 0.0)
        self.progress.add("measure", done.seconds.get("measure", 0.0))
        self.progress.losses.append(done.loss)
        self._rotation.went_well(trip)
        if self._on_trip is not None:
            self._on_trip(trip, done.loss)
        if asked.export and self._sealed is not None:
            self._is_the_state(done.state)
            self._sealed(done.state)
        return True, asked.wiped

    def _is_the_state(self, state: bytes) -> None:
        """See that a state is the one that was measured last: what was answered is computed."""
        found = fingerprint_of_bytes(state, self._nonce)
        if found != self._measured["model"]:
            raise TripBroken(
                "the model state is not the one that was measured",
                check="model",
                got=found,
                expected=self._measured["model"],
                hint="do not trust this accelerator; go on from the last sealed state",
            )

    def _prove(self, wiped: _Wiped) -> None:
        began = time.perf_counter()
        self._scrub(wiped, self._loans.prove(wiped.challenge, wiped.proof.result))
        self.progress.add("scrub", time.perf_counter() - began)

    def _scrub(self, wiped: _Wiped, proof: str) -> None:
        self._record("trip.scrubbed", {
            "trip": wiped.trip.number, "seed": wiped.challenge.seed, "nonce": wiped.challenge.nonce,
            "proof": proof,
        })  # fmt: skip

    def _note(self, event: str, fields: dict[str, JsonValue]) -> None:
        self.log.append(event, fields, self._clock())

    def _lane(self, lane: str) -> AcceleratorLane:
        context = {"run_id": self._run_id, "session": self._session, "lane": lane}
        accept = self._parties.accept_accelerator
        opened = AcceleratorLane.open(
            self._parties.accelerator,
            self._parties.conversation(CONTROL_PURPOSE, context, accept, self._random),
            timeout=self._parties.patience,
        )
        return self._stack.enter_context(closing(opened))

    def _holder(self, name: str) -> HolderLane:
        if name not in self._holders:
            trip = self._rotation.number - 1
            if name not in self._met:
                trip = min(trip, self._goes_on_from)
            lane, _joined = join_holder(self._parties, self._run_id, name, trip, self._random)
            self._holders[name] = lane
            self._met.add(name)
        return self._holders[name]
