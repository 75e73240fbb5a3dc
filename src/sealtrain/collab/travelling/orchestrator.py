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
from typing import TYPE_CHECKING, Any, Self

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.clock import Clock, system_clock
from sealtrain.collab.channel.channel import AttestedChannel, connect
from sealtrain.collab.channel.handshake import Conversation
from sealtrain.collab.travelling.accelerator import CONTROL_PURPOSE
from sealtrain.collab.travelling.answers import read_answer
from sealtrain.collab.travelling.capability import WriteCapability, Written
from sealtrain.collab.travelling.control import AcceleratorLane
from sealtrain.collab.travelling.holder import HOLDER_PURPOSE, Provision
from sealtrain.collab.travelling.parties import Parties, Progress
from sealtrain.collab.travelling.program import TOKEN_BYTES
from sealtrain.collab.travelling.schedule import Plan, Rotation, Trip
from sealtrain.errors import (
    CapabilityRefused,
    ChannelBroken,
    DataInvalid,
    Refused,
    SealtrainError,
    TripBroken,
    Unreachable,
)
from sealtrain.records.runlog import RunLog

if TYPE_CHECKING:
    from types import TracebackType

    from sealtrain.collab.channel.proofs import Acceptance

__all__ = ["Orchestrator"]

_MAX_ANSWER_BYTES = 16 << 10


class Orchestrator:
    """One run. Use as a context: it holds channels and a thread.

    Args:
        plan: What to do.
        parties: With whom.
        run_id: 32 hex digits.
        log: The transcript so far, when another orchestrator began the run.
        clock: Of the transcript.
        random: Of sessions, capabilities and nonces.
        sealed: Called with the log and the model state after every ``plan.seal_every`` trips.
        told: Called after every trained trip.
    """

    def __init__(
        self,
        plan: Plan,
        parties: Parties,
        run_id: str,
        *,
        log: RunLog | None = None,
        clock: Clock = system_clock,
        random: Callable[[int], bytes] = os.urandom,
        sealed: Callable[[RunLog, bytes], None] | None = None,
        told: Callable[[Trip, float], None] | None = None,
    ) -> None:
        self.plan = plan
        self.log = RunLog(run_id) if log is None else log
        self.progress = Progress()
        self._parties = parties
        self._run_id = run_id
        self._clock = clock
        self._random = random
        self._sealed = sealed
        self._told = told
        self._stack = ExitStack()
        self._ahead = ThreadPoolExecutor(max_workers=1)
        self._measured: dict[str, str] = {}
        self._session = random(16).hex()
        self._holders: dict[str, AttestedChannel] = {}
        self._rotation = Rotation(plan)

    def __enter__(self) -> Self:
        try:
            self._work = self._lane("work")
            self._loans = self._lane("loans")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        half, trained = 0, 0
        waiting = self._filled(half)
        while (trip := self._awaited(waiting)) is not None:
            half = 1 - half
            waiting = self._filled(half)
            if not self._train(trip):
                continue
            trained += 1
            if self._sealed is not None and trained % self.plan.seal_every == 0:
                self._sealed(self.log, self._work.export())
        model = self._work.export()
        self._same_state(self._work.measure())
        self._record("travel.finished", {"model": self._measured["model"]})
        return model

    def _begin(self, state: bytes) -> None:
        answer = self._work.load(self.plan.program, state)
        self._measured = {name: str(answer[name]) for name in ("code", "model")}
        if answer["buffer"] != self.plan.buffer_bytes:
            raise DataInvalid(
                "the accelerator has another buffer than the plan says",
                got=answer["buffer"],
                expected=self.plan.buffer_bytes,
            )
        if not len(self.log):
            self._record("travel.setup", {"plan": self.plan.to_dict(), **self._measured})
            return
        entries = self.log.entries
        trained = [one["fields"] for one in entries if one["event"] == "trip.trained"]
        last = trained[-1]["after"] if trained else entries[0]["fields"]
        if any(last[name] != self._measured[name] for name in ("code", "model")):
            raise TripBroken(
                "the sealed state is not the one that the transcript ends with",
                check="model state",
                got=self._measured["model"],
                expected=last["model"],
            )
        holders = {
            one["fields"]["trip"]: one["fields"]["holder"]
            for one in entries
            if one["event"] == "trip.lent"
        }
        given = dict.fromkeys(set(holders.values()), 0)
        for one in trained:
            given[holders[one["trip"]]] += one["tokens"] * TOKEN_BYTES
        self._rotation = Rotation(self.plan, given, len(holders))
        self._record("travel.taken-over", dict(self._measured))

    def _filled(self, half: int) -> Future[Trip | None]:
        return self._ahead.submit(self._fill, half)

    def _awaited(self, waiting: Future[Trip | None]) -> Trip | None:
        began = time.perf_counter()
        trip = waiting.result()
        self.progress.transfer += time.perf_counter() - began
        return trip

    def _fill(self, half: int) -> Trip | None:
        """Steps 1 to 4, with another holder for each that fails; ``None`` when all is given."""
        while (trip := self._rotation.next(half)) is not None:
            capability = WriteCapability.make(trip.number, trip.start, trip.end, self._random)
            began = time.perf_counter()
            self._loans.lend(capability)
            self._record("trip.lent", {
                "trip": trip.number, "holder": trip.holder, "start": trip.start, "end": trip.end,
                "id": capability.id,
            })  # fmt: skip
            self.progress.add("grab", time.perf_counter() - began)
            try:
                written = self._written(trip, capability)
            except (Refused, Unreachable, DataInvalid) as error:
                self._refuse(self._loans, trip, error)
                continue
            self._record("trip.written", {"trip": trip.number, **written.to_dict()})
            return trip
        return None

    def _written(self, trip: Trip, capability: WriteCapability) -> Written:
        problem: Exception | None = None
        promised: Written | None = None
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
        if arrived != promised or arrived.size != trip.size:
            raise TripBroken(
                "the accelerator received another chunk than the holder sent",
                check="chunk",
                got=f"{arrived.size} bytes {arrived.sha256}",
                expected=f"{trip.size} bytes {promised.sha256}",
            )
        return arrived

    def _provision(self, trip: Trip, capability: WriteCapability) -> Written:
        try:
            channel = self._holder(trip.holder)
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
            channel.send(canonical_json(asked.to_dict()))
            message = channel.receive(max_bytes=_MAX_ANSWER_BYTES)
            if message is None:
                raise ChannelBroken("the holder ended the conversation", check="holder")
        except (Refused, Unreachable):
            # A channel that broke stays broken; the holder's next turn opens another.
            if (gone := self._holders.pop(trip.holder, None)) is not None:
                gone.close()
            raise
        answer = read_answer(message)
        for name, seconds in answer.ok.get("timers", {}).items():
            if isinstance(seconds, int | float):
                self.progress.add(str(name), float(seconds))
        try:
            return Written(size=int(answer.ok["size"]), sha256=str(answer.ok["sha256"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ChannelBroken("the holder does not say what it wrote", check="holder") from error

    def _refuse(self, lane: AcceleratorLane, trip: Trip, error: SealtrainError) -> None:
        self._rotation.refuse(trip)
        refused = {"trip": trip.number, "holder": trip.holder, "code": error.code}
        self._record("trip.refused", refused)
        self._scrub(lane, trip)

    def _train(self, trip: Trip) -> bool:
        """Steps 5 to 9; whether the chunk was something to train on."""
        before = self._timed("measure", self._work.measure)
        self._same_state(before)
        began = time.perf_counter()
        try:
            tokens, loss = self._work.train(trip.start, trip.end)
        except DataInvalid as error:
            self._refuse(self._work, trip, error)
            self._same_state(self._work.measure())
            return False
        self.progress.training += time.perf_counter() - began
        after = self._timed("measure", self._work.measure)
        if after["code"] != before["code"]:
            raise TripBroken("the code changed while it trained", check="code")
        self._measured = after
        self._record("trip.trained", {
            "trip": trip.number, "tokens": tokens, "loss": loss, "before": dict(before),
            "after": dict(after),
        })  # fmt: skip
        self._timed("scrub", lambda: self._scrub(self._work, trip))
        self._work.ratchet()
        self.progress.losses.append(loss)
        self._rotation.went_well(trip)
        if self._told is not None:
            self._told(trip, loss)
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

    def _scrub(self, lane: AcceleratorLane, trip: Trip) -> None:
        nonce = self._random(32)
        proof = lane.scrub(trip.start, trip.end, nonce)
        self._record("trip.scrubbed", {"trip": trip.number, "nonce": nonce.hex(), "proof": proof})

    def _timed(self, name: str, act: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        try:
            return act()
        finally:
            self.progress.add(name, time.perf_counter() - began)

    def _record(self, event: str, fields: dict[str, JsonValue]) -> None:
        self.log.append(event, fields, self._clock())

    def _lane(self, lane: str) -> AcceleratorLane:
        context = {"run_id": self._run_id, "session": self._session, "lane": lane}
        conversation = self._conversation(
            CONTROL_PURPOSE, context, self._parties.accept_accelerator
        )
        opened = AcceleratorLane.open(
            self._parties.accelerator, conversation, timeout=self._parties.patience
        )
        return self._stack.enter_context(closing(opened))

    def _holder(self, name: str) -> AttestedChannel:
        if name not in self._holders:
            one = self.plan.holder(name)
            conversation = self._conversation(
                HOLDER_PURPOSE,
                {"run_id": self._run_id, "holder": name},
                self._parties.accept_holder[name],
            )
            self._holders[name] = connect(
                (one.host, one.port), conversation, timeout=self._parties.timeout
            )
        return self._holders[name]

    def _conversation(
        self, purpose: str, context: dict[str, JsonValue], accept: Acceptance
    ) -> Conversation:
        return Conversation(
            purpose=purpose,
            context=context,
            proof=self._parties.proof,
            accept=accept,
            random=self._random,
        )
