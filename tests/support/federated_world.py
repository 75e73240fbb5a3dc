"""A federation on one machine: lead, parties, and a relay that tests may sit on."""

from __future__ import annotations

import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from channel_world import keyed
from polling import wait_until

from sealtrain.base.digests import sha256_hex
from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.recipe.collaborations.strategies import StrategySettings
from sealtrain.signing.runlog import RunLog
from sealtrain_together.channel.answers import Done
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.federated.carrier import Carrier
from sealtrain_together.federated.engine import FlowerStrategy, PartyUpdate
from sealtrain_together.federated.federation import Federation, Rounds
from sealtrain_together.federated.frames import (
    FROM_RELAY,
    LOST,
    NODES,
    REPLY,
    TO_RELAY,
    TURN_BYTES,
    receive_frame,
    send_frame,
)
from sealtrain_together.federated.mailbox import Mailbox
from sealtrain_together.federated.mathematics import Merging, Taken
from sealtrain_together.federated.messages import (
    MAX_STATE_BYTES,
    PURPOSE,
    Asked,
    PartyJoined,
    SealedState,
)
from sealtrain_together.federated.party_server import PartyService

NOW = 1_790_000_000
RUN_ID = "4f" * 16
PARTIES = ("clinic-a", "clinic-b", "clinic-c")
START = np.zeros(4, "<f4").tobytes()

Altered = Callable[[int, bytes], bytes | None]
"""What the operator makes of a message to a node, or of its answer; ``None`` loses it."""


def rounds(**changed: Any) -> Rounds:
    fields: dict[str, Any] = {
        "rule": "fedavg",
        "rounds": 2,
        "min_parties": 2,
        "round_seconds": 20,
        "parties": PARTIES,
    }
    fields |= changed
    return Rounds(**{"joining_seconds": fields["round_seconds"]} | fields)


def conversation(me: str, *accepts: str, run_id: str = RUN_ID) -> ChannelTerms:
    return keyed(PURPOSE, me, *accepts, context={"run_id": run_id})


def share_of(party: str) -> str:
    """A party's share of the keys of sealed states: the same after it began again."""
    return sha256_hex(f"share of {party}".encode())


class Mean(Merging):
    """The rule: a mean weighted by records."""

    def take(self, party: str, records: int, update: bytes, state: bytes) -> Taken:
        if (
            len(update) != len(state)
            or not np.isfinite(values := np.frombuffer(update, "<f4")).all()
        ):
            raise DataInvalid("no adapter of this run")
        change = values - np.frombuffer(state, "<f4")
        return Taken(party=party, records=records, norm=float(np.linalg.norm(change)), value=values)

    def read_report(self, party: str, document: dict[str, Any]) -> Any:
        return document

    def merge(self, number: int, taken: Sequence[Taken], state: bytes) -> tuple[bytes, Any]:
        weights = [update.records for update in taken]
        mean = np.average([turn.value for turn in taken], axis=0, weights=weights)
        return bytes(mean.astype("<f4").tobytes()), {}


class ByStrategy(Mean):
    """The rule: one of Flower's strategies."""

    def __init__(self, settings: StrategySettings) -> None:
        self.strategy = FlowerStrategy(settings, seed=0)
        self.samples, self.needed = settings.samples, settings.needed

    def choose(self, number: int, present: Any, state: bytes) -> Any:
        chosen = self.strategy.choose(number, present, {"x": np.frombuffer(state, "<f4")})
        return chosen if self.samples else None

    def memory(self) -> bytes:
        return self.strategy.memory()

    def recall(self, memory: bytes) -> None:
        self.strategy.recall(memory)

    def merge(self, number: int, taken: Any, state: bytes) -> tuple[bytes, Any]:
        def given(one: Taken) -> PartyUpdate:
            return PartyUpdate(party=one.party, records=one.records, arrays={"x": one.value})

        merged = self.strategy.merge(number, [given(turn) for turn in taken])
        return bytes(merged["x"].tobytes()), {}


@dataclass
class Adds:
    """A party that adds its number to every value."""

    number: float
    records: int = 10
    countable: bool = True
    patients: int | None = None
    asked: list[int] = field(default_factory=list)
    sealed: SealedState | None = None
    before: Callable[[int], None] = lambda number: None
    answers: Callable[[bytes], bytes] = lambda update: update
    failed: SealtrainError | None = None

    def learn(self, asked: Asked, state: bytes) -> Done:
        number = asked.round
        self.asked.append(number)
        self.sealed = asked.sealed
        self.before(number)
        update = np.frombuffer(state, "<f4") + np.float32(self.number)
        words = {
            "round": number, "records": self.records, "steps": 3, "loss": 0.5,
            "report": {"until": number},
        }  # fmt: skip
        return words, self.answers(update.tobytes())

    def failure(self) -> SealtrainError | None:
        return self.failed

    def finish(self, state: bytes) -> Done:
        return {"hits": int(np.frombuffer(state, "<f4")[0])}, b""


class Relay:
    """What Flower does, in one thread a message: sockets in, sockets out; nothing is understood."""

    def __init__(
        self, lead: Path, parties: Sequence[Path], *, there: Altered = lambda node, data: data
    ) -> None:
        self.parties = list(parties)
        self.there = there
        self.back: Altered = lambda node, data: data
        self.seen: list[bytes] = []
        self._sending = threading.Lock()
        self.lead = socket.socket(socket.AF_UNIX)
        self.lead.connect(str(lead))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.tell()

    def tell(self) -> None:
        nodes = struct.pack(f">{len(self.parties)}Q", *range(1, len(self.parties) + 1))
        self.say(NODES, 0, nodes)

    def close(self) -> None:
        with suppress(OSError):
            self.lead.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self.lead.close()

    def _run(self) -> None:
        while True:
            try:
                frame = receive_frame(self.lead)
            except SealtrainError:
                return
            if not frame:  # the run is over
                return
            node, number, seconds = TO_RELAY.unpack_from(frame)
            arguments = (node, number, seconds, frame[TO_RELAY.size :])
            threading.Thread(target=self._carry, args=arguments, daemon=True).start()

    def _carry(self, node: int, number: int, seconds: int, data: bytes) -> None:
        self.seen.append(data)
        sent = self.there(node, data)
        answer = None if sent is None else self.ask(node, sent, seconds)
        if answer:
            self.seen.append(answer)
            answer = self.back(node, answer)
        if answer:
            self.say(REPLY, number, answer)
        else:
            self.say(LOST, number, b"")

    def ask(self, node: int, data: bytes, seconds: float = 10) -> bytes | None:
        """As a ClientApp: give a message to the party of a node."""
        try:
            with socket.socket(socket.AF_UNIX) as party:
                party.settimeout(seconds)
                party.connect(str(self.parties[node - 1]))
                send_frame(party, data)
                return receive_frame(party)
        except (OSError, SealtrainError):
            return None

    def say(self, kind: int, number: int, data: bytes) -> None:
        with self._sending, suppress(SealtrainError):
            send_frame(self.lead, FROM_RELAY.pack(kind, number) + data)


@dataclass
class FederatedWorld:
    """Everybody."""

    folder: Path
    stack: ExitStack
    log: RunLog
    carrier: Carrier
    relay: Relay
    works: dict[str, Adds] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)
    stops: dict[str, threading.Event] = field(default_factory=dict)
    ended: dict[str, threading.Thread] = field(default_factory=dict)
    skipped: float = 0.0
    each_look: float = 0.0

    def monotonic(self) -> float:
        """The lead's clock: the machine's, and what ``skip`` and each look at it added."""
        self.skipped += self.each_look
        return time.monotonic() + self.skipped

    def skip(self, seconds: float) -> None:
        """Let so many seconds pass for the lead, which looks at its clock twice a second."""
        self.skipped += seconds

    def skip_once(
        self, condition: Callable[[], object], seconds: float, *, each_look: float = 0.0
    ) -> None:
        """Let seconds pass for the lead once a condition holds, such as of its log.

        Args:
            condition: Asked again and again until it holds.
            seconds: How many pass then.
            each_look: How many pass from then on whenever the lead looks at its clock.
        """
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.01):
                if condition():
                    self.skip(seconds)
                    self.each_look += each_look
                    return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        self.stack.callback(thread.join, 10)
        self.stack.callback(over.set)

    def party(self, name: str, at: str | None = None, **changed: Any) -> None:
        """A party that serves until the end; ``at`` another one's place."""
        place = at or name
        work = self.works.setdefault(place, Adds(number=1 + PARTIES.index(name)))
        refused = self.refused.setdefault(place, [])
        stop = self.stops[place] = threading.Event()

        def may_go_on() -> None:
            if stop.is_set():
                raise SealtrainError("told to stop")

        def serve() -> None:
            size = changed.get("turn_bytes", TURN_BYTES)
            with (
                Mailbox(self.folder / f"{place}.sock", turn_bytes=size) as mailbox,
                noting(refused),
            ):
                PartyService(
                    mailbox,
                    changed.get("conversation", conversation(name, "lead")),
                    lambda: PartyJoined(
                        party=name,
                        records=work.records,
                        countable=work.countable,
                        patients=work.patients,
                        share=changed.get("share", share_of(name)),
                        sealed=work.sealed,
                    ),
                    work,
                    may_go_on=may_go_on,
                    patience=changed.get("patience", 60.0),
                    largest=changed.get("largest", MAX_STATE_BYTES),
                    on_refused=lambda error: refused.append(error.code),
                ).run()

        self.ended[place] = thread = threading.Thread(target=serve, daemon=True)
        thread.start()

        self.stack.callback(thread.join, 10)
        self.stack.callback(self.end, place)

    def end(self, place: str) -> None:
        """Have a party end, which it does with its next caller at the latest."""
        self.stops[place].set()
        with suppress(OSError), socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(self.folder / f"{place}.sock"))

    def die(self, place: str) -> None:
        """End a party, and its conversation, before it goes on with its work; called by the work.

        As a killed process it answers nothing any more.
        """
        self.end(place)
        self.ended[place].join(10)

    def federation(self, plan: Rounds | None = None, **changed: Any) -> Federation:
        fields: dict[str, Any] = {
            "conversation": conversation("lead", *PARTIES),
            "merging": Mean(),
            "record": lambda event, fields: self.log.append(event, fields, NOW),
            "monotonic": self.monotonic,
        }
        fields |= changed
        return Federation(replace(plan or rounds(), again_after=0.2), self.carrier, **fields)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [entry["fields"] for entry in self.log.entries if entry["event"] == name]


@contextmanager
def federated_world(places: Sequence[str] = PARTIES) -> Iterator[FederatedWorld]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fed-")))
        carrier = stack.enter_context(Carrier(folder / "lead.sock"))
        carrier.serve()
        relay = Relay(folder / "lead.sock", [folder / f"{place}.sock" for place in places])
        stack.callback(relay.close)
        wait_until(lambda: len(carrier.nodes) == len(places))
        yield FederatedWorld(
            folder=folder, stack=stack, log=RunLog(RUN_ID), carrier=carrier, relay=relay
        )


@contextmanager
def noting(codes: list[str]) -> Iterator[None]:
    """What a party ends with, among what it refused."""
    try:
        yield
    except SealtrainError as error:
        codes.append(error.code)


def values(state: bytes) -> list[float]:
    return [float(value) for value in np.frombuffer(state, "<f4")]
