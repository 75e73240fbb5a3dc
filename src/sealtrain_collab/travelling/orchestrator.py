"""The orchestrator: owns model, schedule and transcript, and sends the accelerator round (spec §4).

While the accelerator trains on one half of its buffer, the next holder fills the other. Whatever a
holder does, its chunk is trained on only when both ends named the same bytes; otherwise the half is
scrubbed and the trip stands refused in the transcript.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.secret import Random
from sealtrain.errors import (
    CapabilityRefused,
    DataInvalid,
    Refused,
    SealtrainError,
    TripBroken,
    Unreachable,
)
from sealtrain.signing.runlog import RunLog
from sealtrain_collab.travelling.accelerator import CONTROL_PURPOSE
from sealtrain_collab.travelling.capability import WriteCapability
from sealtrain_collab.travelling.control import AcceleratorLane
from sealtrain_collab.travelling.history import first_open, left_by, rotation_after, spent_of
from sealtrain_collab.travelling.holder import Provision
from sealtrain_collab.travelling.holder_client import Given, HolderLane
from sealtrain_collab.travelling.parties import Parties, Progress, joined
from sealtrain_collab.travelling.schedule import Plan, Trip

if TYPE_CHECKING:
    pass

__all__ = ["Hooks", "Orchestrator", "TravelLog"]

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
        plan: Plan,
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
        self._measured: dict[str, str] = {}
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
        used: Trip | None = None  # trained on and not wiped; in the half that is filled next
        waiting = self._filled(half, used)
        while (trip := self._awaited(waiting)) is not None:
            half = 1 - half
            waiting = self._filled(half, used)
            used = trip if self._train(trip) else None
            if used is None:
                continue
            if self._sealed is not None and trip.number - self._sealed_at >= self.plan.seal_every:
                self._sealed(self._work.export())
                self._sealed_at = trip.number
        if used is not None:
            self._wiping(used)()
        model = self._work.export()
        self._same_state(self._work.measure())
        finished: dict[str, JsonValue] = {"model": self._measured["model"]}
        if (spent := spent_of(self.plan, self.log)) is not None:
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
        answer = self._work.load(self.plan.program, state)
        # Not before that answer: until then the accelerator may not know of this session.
        self._loans = self._lane("loans")
        self._measured = {name: str(answer[name]) for name in ("code", "model")}
        self.accelerators = tuple(map(str, answer["accelerators"]))
        if answer["buffer"] != self.plan.buffer_bytes:
            raise DataInvalid(
                "the accelerator has another buffer than the plan says",
                got=answer["buffer"],
                expected=self.plan.buffer_bytes,
            )
        before = left_by(self.log)
        if before is None:
            self._record(
                "travel.setup",
                {
                    "buffer": self.plan.buffer_bytes,
                    "program": self.plan.program.to_dict(),
                    "holders": {holder.name: holder.tokens for holder in self.plan.holders},
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
        self._sealed_at = self._rotation.number
        self._record("travel.taken-over", dict(self._measured))

    def _filled(self, half: int, used: Trip | None) -> Future[Trip | None]:
        return self._ahead.submit(self._fill, half, used)

    def _awaited(self, waiting: Future[Trip | None]) -> Trip | None:
        began = time.perf_counter()
        trip = waiting.result()
        self.progress.transfer += time.perf_counter() - began
        return trip

    def _fill(self, half: int, used: Trip | None = None) -> Trip | None:
        """Steps 1 to 4, with another holder for each that fails; ``None`` when all is given.

        Before them step 8 of the trip ``used``, whose chunk lies in this half.
        """
        wiped = None if used is None else self._wiping(used)
        while (trip := self._rotation.next(half)) is not None:
            capability = WriteCapability.make(trip.number, trip.start, trip.end, self._random)
            lent = self._loans.lend(capability)
            if wiped is not None:
                wiped()
                wiped = None
            began = time.perf_counter()
            lent()
            self._record("trip.lent", {
                "trip": trip.number, "holder": trip.holder, "start": trip.start, "end": trip.end,
                "id": capability.id,
            })  # fmt: skip
            self.progress.add("grab", time.perf_counter() - began)
            try:
                given = self._written(trip, capability)
                if self._reported is not None:
                    self._reported(trip.holder, self.ask(trip.holder, HolderLane.report))
            except (Refused, Unreachable, DataInvalid) as error:
                self._refuse(self._loans, trip, error)
                continue
            self._record(
                "trip.written",
                {"trip": trip.number, "size": given.written.size, "mark": given.mark},
            )
            return trip
        if wiped is not None:
            wiped()
        return None

    def _written(self, trip: Trip, capability: WriteCapability) -> Given:
        problem: Exception | None = None
        promised: Given | None = None
        try:
            promised = self._provision(trip, capability)
        except (Refused, Unreachable, DataInvalid) as error:
            problem = error
        began = time.perf_counter()
        try:
            arrived = self._loans.take_back(capability.id)
        except CapabilityRefused as error:
            raise problem or error from error
        finally:
            self.progress.add("export_key", time.perf_counter() - began)
        if promised is None:
            raise problem or AssertionError("nothing was promised")
        if arrived != promised.written or arrived.size != trip.size:
            raise TripBroken(
                "the accelerator received another chunk than the holder sent",
                check="chunk",
                got=f"{arrived.size} bytes {arrived.fingerprint}",
                expected=f"{trip.size} bytes {promised.written.fingerprint}",
            )
        return promised

    def _provision(self, trip: Trip, capability: WriteCapability) -> Given:
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
        given = self.ask(trip.holder, lambda lane: lane.provision(asked))
        for name, seconds in given.timers.items():
            self.progress.add(name, seconds)
        return given

    def _refuse(self, lane: AcceleratorLane, trip: Trip, error: SealtrainError) -> None:
        self._rotation.refuse(trip)
        refused = {"trip": trip.number, "holder": trip.holder, "code": error.code}
        self._record("trip.refused", refused)
        self._scrubbing(lane, trip)()

    def _train(self, trip: Trip) -> bool:
        """Steps 5 to 7; whether the chunk was something to train on."""
        try:
            done = self._work.train(trip.start, trip.end)
        except DataInvalid as error:
            self._refuse(self._work, trip, error)
            self._same_state(self._work.measure())
            return False
        self._work.ratchet()
        self._same_state(done.before)
        if done.after["code"] != done.before["code"]:
            raise TripBroken("the code changed while it trained", check="code")
        self._measured = done.after
        bounded: dict[str, JsonValue] = {} if done.moved is None else {"moved": done.moved}
        self._record("trip.trained", {
            "trip": trip.number, "tokens": done.tokens, "before": dict(done.before),
            "after": dict(done.after), **bounded,
        })  # fmt: skip
        self.progress.training += done.seconds.get("train", 0.0)
        self.progress.add("measure", done.seconds.get("measure", 0.0))
        self.progress.losses.append(done.loss)
        self._rotation.went_well(trip)
        if self._on_trip is not None:
            self._on_trip(trip, done.loss)
        return True

    def _same_state(self, found: dict[str, str]) -> None:
        for name, value in found.items():
            if value != self._measured[name]:
                raise TripBroken(
                    f"the {name} in the accelerator is not as it was left",
                    check=name,
                    got=value,
                    expected=self._measured[name],
                    hint="do not trust this accelerator; go on from the last sealed state",
                )

    def _wiping(self, trip: Trip) -> Callable[[], None]:
        """Ask for step 8 of a trained trip; the function that it returns does step 9."""
        began = time.perf_counter()
        scrubbed = self._scrubbing(self._loans, trip)

        def wiped() -> None:
            scrubbed()
            self._loans.ratchet()
            self.progress.add("scrub", time.perf_counter() - began)

        return wiped

    def _scrubbing(self, lane: AcceleratorLane, trip: Trip) -> Callable[[], None]:
        nonce = self._random(32)
        proven = lane.scrub(trip.start, trip.end, nonce)

        def scrubbed() -> None:
            told = {"trip": trip.number, "nonce": nonce.hex(), "proof": proven()}
            self._record("trip.scrubbed", told)

        return scrubbed

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
            lane, _joined = joined(self._parties, self._run_id, name, trip, self._random)
            self._holders[name] = lane
            self._met.add(name)
        return self._holders[name]
