"""Attacks on a travelling accelerator: by holders, by who records traffic, by who changes state."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from travel_world import (
    HOLDERS,
    KEYS,
    PATIENCE,
    PROGRAM,
    RUN_ID,
    TERMS,
    Tokens,
    TravelWorld,
    travel_world,
)
from world import signer

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.base.clock import from_rfc3339
from sealtrain.base.secret import Secret
from sealtrain.errors import (
    CapabilityRefused,
    ChannelBroken,
    ChannelRefused,
    CheckpointRefused,
    DataInvalid,
    LimitExceeded,
    PeerUnreachable,
    SealRefused,
    SealtrainError,
    TranscriptInvalid,
    TripBroken,
)
from sealtrain.sealing.datakey import DataKey
from sealtrain.signing.runlog import RunLog
from sealtrain_collab.channel.frames import FrameWriter
from sealtrain_collab.channel.proofs import AcceptKey, ProveKey
from sealtrain_collab.travelling import accelerator as accelerators
from sealtrain_collab.travelling.accelerator import CONTROL_PURPOSE
from sealtrain_collab.travelling.capability import Gate, WriteCapability, Written, write_chunk
from sealtrain_collab.travelling.check import Terms, Travelled, travelled
from sealtrain_collab.travelling.control import AcceleratorLane
from sealtrain_collab.travelling.holder import GivingBounds, Holder, Provision
from sealtrain_collab.travelling.parties import joined
from sealtrain_collab.travelling.program import Program
from sealtrain_collab.travelling.standby import Standby

pytestmark = pytest.mark.claim("C71", "C72")

CHUNK = os.urandom(100)


class Port:
    """A write port over a small buffer."""

    def __init__(self) -> None:
        self.buffer = bytearray(300)
        self.gate = Gate(memoryview(self.buffer))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._over = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self.gate.serve_one, args=(sock,), kwargs={"timeout": 3.0}, daemon=True
            ).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def lend(self, start: int = 100, end: int = 200) -> WriteCapability:
        capability = WriteCapability.make(0, start, end, os.urandom)
        self.gate.lend(capability)
        return capability

    def write(self, capability: WriteCapability, chunk: bytes = CHUNK) -> Written:
        return write_chunk(self.address, capability, len(chunk), filling(chunk), timeout=3.0)


def filling(chunk: bytes) -> Callable[[int, memoryview], None]:
    def fill(start: int, part: memoryview) -> None:
        part[:] = chunk[start : start + len(part)]

    return fill


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.close()


def raw_writer(
    port: Port, capability: WriteCapability, key: Secret | None = None
) -> tuple[socket.socket, FrameWriter]:
    """A holder with a program of its own."""
    sock = socket.create_connection(port.address, timeout=3.0)
    sock.sendall(bytes.fromhex(capability.id))
    return sock, FrameWriter(sock, key or capability.key("write"))


def hung_up(sock: socket.socket) -> bool:
    """Whether the accelerator ended the connection without a receipt."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def at(offset: int, data: bytes) -> bytes:
    return struct.pack(">Q", offset) + data


def test_an_honest_write_lands_in_its_range_and_nowhere_else(port: Port) -> None:
    capability = port.lend()
    written = port.write(capability)
    assert port.gate.take_back(capability.id) == written
    assert port.buffer == bytes(100) + CHUNK + bytes(100)


@pytest.mark.parametrize(
    "writes",
    [
        [at(99, b"x")],
        [at(0, b"x")],
        [at(100, bytes(101))],
        [at(100, bytes(50)), at(150, bytes(51))],
        [at(101, b"x")],
        [at(100, bytes(10)), at(100, bytes(10))],
        [at(2**64 - 1, b"x")],
        [at(100, b"")],
        [b"short"],
    ],
    ids=["before", "zero", "over", "over in two", "gap", "twice", "wrap", "nothing", "no offset"],
)
def test_a_write_outside_its_place_is_refused_and_voids_the_trip(
    port: Port, writes: list[bytes]
) -> None:
    capability = port.lend()
    sock, writer = raw_writer(port, capability)
    with sock:
        for message in writes:
            writer.send(message)
        assert hung_up(sock)
    with pytest.raises(CapabilityRefused):
        port.gate.take_back(capability.id)
    assert port.buffer[:100] == bytes(100)
    assert port.buffer[200:] == bytes(100)


def test_a_capability_serves_once(port: Port) -> None:
    capability = port.lend()
    written = port.write(capability)
    with pytest.raises((ChannelBroken, PeerUnreachable)):
        port.write(capability, bytes(100))
    assert port.gate.take_back(capability.id) == written
    assert bytes(port.buffer[100:200]) == CHUNK


def test_a_holder_that_keeps_writing_after_the_return_writes_nothing(port: Port) -> None:
    capability = port.lend()
    sock, writer = raw_writer(port, capability)
    with sock:
        writer.send(at(100, b"a" * 10))
        deadline = threading.Event()
        for _ in range(100):
            if port.buffer[100:110] == b"a" * 10:
                break
            deadline.wait(0.02)
        with pytest.raises(CapabilityRefused):
            port.gate.take_back(capability.id)
        with suppress(SealtrainError):
            writer.send(at(110, b"b" * 10))
        deadline.wait(0.1)
    assert port.buffer[110:120] == bytes(10)


def test_who_knows_an_id_but_no_secret_writes_nothing(port: Port) -> None:
    capability = port.lend()
    sock, writer = raw_writer(port, capability, Secret(os.urandom(32)))
    with sock:
        writer.send(at(100, CHUNK))
        assert hung_up(sock)
    assert port.buffer == bytes(300)


def test_recorded_traffic_of_one_trip_is_nothing_on_another(port: Port) -> None:
    """Two holders collude: one recorded the other's trip and has a capability of its own."""
    first = port.lend()
    seen = bytearray()
    sock, _writer = raw_writer(port, first)
    with sock:
        keep, sock_send = seen.extend, sock.sendall

        class Recorder:
            def sendall(self, data: Any) -> None:
                keep(bytes(data))
                sock_send(data)

            def recv_into(self, buffer: memoryview) -> int:
                return sock.recv_into(buffer)

            def close(self) -> None:
                sock.close()

        writer = FrameWriter(Recorder(), first.key("write"))
        writer.send(at(100, CHUNK))
        writer.control(0)
        assert sock.recv(1)
    port.gate.take_back(first.id)
    port.buffer[:] = bytes(300)
    own = port.lend()
    for capability_id in (first.id, own.id):
        with socket.create_connection(port.address, timeout=3.0) as replay:
            replay.sendall(bytes.fromhex(capability_id) + bytes(seen))
            assert hung_up(replay)
    assert port.buffer == bytes(300)
    assert CHUNK not in seen


def test_lent_ranges_never_overlap_and_never_leave_the_buffer(port: Port) -> None:
    port.lend(100, 200)
    for start, end in ((0, 101), (199, 300), (120, 130), (0, 300), (200, 301)):
        with pytest.raises(CapabilityRefused):
            port.lend(start, end)
    port.lend(0, 100)
    port.lend(200, 300)


def run(world: TravelWorld, **changed: Any) -> tuple[Travelled, RunLog]:
    with world.orchestrator(**changed) as orchestrator:
        orchestrator.run()
    return travelled(orchestrator.log.entries, TERMS), orchestrator.log


def test_a_holder_that_names_other_bytes_than_it_sent_loses_its_turn() -> None:
    with travel_world() as world:
        world.made["clinic-b"].provide = lambda asked: (  # type: ignore[method-assign]
            Holder.provide(world.made["clinic-b"], asked) | {"fingerprint": "00" * 32}
        )
        came, _log = run(world)
        assert set(came.refused.values()) == {"clinic-b"}
        assert set(came.tokens) == {"clinic-a", "clinic-c"}
        assert came.tokens["clinic-a"] == 512
        assert not any(world.accelerator.buffer)


def small_holder(most: int, *, forgives: int = 8) -> Holder:
    key = KEYS["clinic-a"]
    return Holder(
        Tokens("x", 100),
        key=key,
        share=lambda: bytes(32),
        bounds=GivingBounds(max_bytes=most, timeout=1.0, patience=1.0, forgives=forgives),
    )


def provision(trip: int, size: int, port: int = 1) -> Provision:
    return Provision(
        run_id=RUN_ID, trip=trip, offset=0, size=size, host="127.0.0.1", port=port,
        capability=WriteCapability.make(trip, 0, size, os.urandom).to_dict(),
    )  # fmt: skip


def test_malformed_chunks_are_refused_and_the_others_go_on() -> None:
    with travel_world() as world:
        world.tokens["clinic-a"].data = b"\xff" * 1024  # tokens beyond the vocabulary
        world.hold("clinic-b", source=Tokens("clinic-b", 16))  # fewer than promised
        came, log = run(world)
        assert list(came.refused.values()).count("clinic-a") == 2
        assert list(came.refused.values()).count("clinic-b") == 2
        assert came.tokens == {"clinic-c": 512}
        codes = {one["fields"]["code"] for one in log.entries if one["event"] == "trip.refused"}
        assert codes == {"data-invalid"}


def test_a_holder_gives_no_more_than_it_wants_to() -> None:
    with travel_world(max_bytes=512) as world:
        came, _log = run(world)
        assert set(came.tokens.values()) == {256}
        assert set(came.refused.values()) == set(world.holders)
    with pytest.raises(LimitExceeded):
        small_holder(10).provide(provision(0, 11))


def test_the_plan_holds_a_holder_to_its_limit() -> None:
    with travel_world() as world:
        came, _log = run(world, plan=world.plan(limits={"clinic-c": 200}))
        assert came.tokens == {"clinic-a": 512, "clinic-b": 512, "clinic-c": 192}


def test_a_state_that_changed_between_two_trips_is_not_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs: list[Program] = []

    def built(*given: Any) -> Program:
        programs.append(Program(*given))
        return programs[-1]

    monkeypatch.setattr(accelerators, "Program", built)
    with travel_world() as world:

        def tamper(trip: Any, _loss: float) -> None:
            if trip.number == 1:
                [program] = programs
                next(program.model.parameters()).data.view(-1)[0] += 1e-3

        with (
            world.orchestrator(on_trip=tamper) as orchestrator,
            pytest.raises(TripBroken) as caught,
        ):
            orchestrator.run()
        assert caught.value.check == "model"
        trained = [one for one in orchestrator.log.entries if one["event"] == "trip.trained"]
        assert [one["fields"]["trip"] for one in trained] == [0, 1]


def test_a_chunk_that_was_not_wiped_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with travel_world() as world:
        monkeypatch.setattr(accelerators, "wipe", lambda view: None)
        with world.orchestrator() as orchestrator, pytest.raises(TripBroken) as caught:
            orchestrator.run()
        assert caught.value.check == "scrub"


def test_a_stranger_is_no_orchestrator_and_no_accelerator() -> None:
    with travel_world() as world:
        stranger = world.parties(proof=ProveKey(signer("mallory")))
        with pytest.raises(SealtrainError), world.orchestrator(parties=stranger):
            pytest.fail("the accelerator obeyed a stranger")
        wary = world.parties(accept_accelerator=AcceptKey(frozenset({signer("another").public})))
        with pytest.raises(ChannelRefused), world.orchestrator(parties=wary):
            pytest.fail("the orchestrator took a stranger for its accelerator")


def test_a_new_session_wipes_what_the_last_one_left() -> None:
    def lane(world: TravelWorld, session: str, name: str) -> Any:
        context: dict[str, JsonValue] = {"run_id": RUN_ID, "session": session, "lane": name}
        parties = world.parties()
        talk = parties.conversation(
            CONTROL_PURPOSE, context, parties.accept_accelerator, os.urandom
        )
        return closing(AcceleratorLane.open(world.control, talk, timeout=PATIENCE))

    with travel_world() as world, lane(world, "01" * 16, "work") as first:
        first.load(PROGRAM)
        with lane(world, "01" * 16, "loans") as loans:
            capability = WriteCapability.make(0, 0, 100, os.urandom)
            loans.lend(capability)()
            write_chunk(world.writes, capability, 100, filling(CHUNK), timeout=PATIENCE)
        assert any(world.accelerator.buffer)
        assert first.measure()
        with lane(world, "02" * 16, "work") as second:
            with pytest.raises(
                TripBroken, check=carries(check="program")
            ):  # answered once it is served
                second.measure()
            assert not any(world.accelerator.buffer)
        with pytest.raises(TripBroken, check=carries(check="session")):
            first.measure()


def test_another_orchestrator_takes_over_and_ends_with_the_same_model(tmp_path: Path) -> None:
    key = DataKey.generate()
    with travel_world() as world:
        whole, _log = run(world)
    # Holders give what they have once: what was lost with the orchestrator does not count.
    with travel_world(max_bytes=1024) as world:
        standby = Standby(tmp_path, key, RUN_ID)

        def dies(trip: Any, _loss: float) -> None:
            if trip.number == 6:
                raise KeyboardInterrupt

        def seal(state: bytes) -> None:
            standby.seal(first.plan, {"log": first.log.entries, "kept": [1]}, state)

        first = world.orchestrator(on_trip=dies, sealed=seal)
        with first, pytest.raises(KeyboardInterrupt):
            first.run()
        taken = Standby(tmp_path, key, RUN_ID).newest()
        assert taken.journal["kept"] == [1]
        log = RunLog.restore(RUN_ID, taken.journal["log"])
        with world.orchestrator(plan=taken.plan, log=log) as second:
            second.run(taken.state)
        came = travelled(second.log.entries, TERMS)
        assert came.tokens == whole.tokens
        assert came.takeovers == 1
        assert came.model == whole.model
        with pytest.raises(SealRefused):
            Standby(tmp_path, DataKey.generate(), RUN_ID).newest()
        with pytest.raises(SealRefused):
            Standby(tmp_path, key, "00" * 16).newest()


def test_a_state_of_another_moment_does_not_fit_the_log(tmp_path: Path) -> None:
    key = DataKey.generate()
    with travel_world() as world:
        standby = Standby(tmp_path, key, RUN_ID)

        def seal(state: bytes) -> None:
            standby.seal(orchestrator.plan, {"log": orchestrator.log.entries}, state)

        orchestrator = world.orchestrator(sealed=seal)
        with orchestrator:
            orchestrator.run()
        taken = standby.newest()
        fresh = Program(taken.plan.program).state()
        log = RunLog.restore(RUN_ID, taken.journal["log"])
        with (
            world.orchestrator(plan=taken.plan, log=log) as second,
            pytest.raises(TripBroken),
        ):
            second.run(fresh)


def test_a_holder_does_not_follow_an_orchestrator_back_to_an_old_state() -> None:
    with travel_world() as world:
        holder = world.hold("clinic-a", bounds={"forgives": 3})

        def give(run_id: str, trip: int, size: int) -> None:
            capability = WriteCapability.make(trip, 0, size, os.urandom)
            world.accelerator.gate.lend(capability)
            host, port = world.writes
            holder.provide(
                Provision(
                    run_id=run_id, trip=trip, offset=0, size=size, host=host, port=port,
                    capability=capability.to_dict(),
                )
            )  # fmt: skip
            world.accelerator.gate.take_back(capability.id)

        def join(trip: int) -> None:
            lane, _joined = joined(world.parties(), RUN_ID, "clinic-a", trip, os.urandom)
            lane.close()

        for trip in range(0, 12, 3):
            give(RUN_ID, trip, 10 + trip)
        give("00" * 16, 50, 10)
        with pytest.raises(CheckpointRefused) as caught:
            join(6)
        assert caught.value.check == "trips"
        join(7)
        assert holder.given(RUN_ID) == (10, 13, 16)
        assert holder.given("00" * 16) == (10,)
        # What was forgiven counts no more, so it can be given again; nothing else can.
        give(RUN_ID, 9, 30)
        assert holder.given(RUN_ID) == (10, 13, 16, 30)
        with pytest.raises(DataInvalid):
            give(RUN_ID, 6, 16)


def test_reports_come_before_anything_is_trained_on() -> None:
    seen: list[str] = []
    with travel_world() as world:
        for name in HOLDERS:
            world.hold(name, report=name.encode)
        orchestrator = world.orchestrator(
            reported=lambda name, report: seen.append(f"{name}:{report.decode()}")
        )
        with orchestrator:
            orchestrator.run()
        trips = [one["fields"] for one in orchestrator.log.entries if one["event"] == "trip.lent"]
        assert seen == [f"{trip['holder']}:{trip['holder']}" for trip in trips]

        def refuses(_name: str, _report: bytes) -> None:
            raise TripBroken("this report does not hold", check="report")

        for name in HOLDERS:  # none has given anything yet
            world.hold(name, report=name.encode)
        with world.orchestrator(reported=refuses, log=RunLog(RUN_ID)) as orchestrator:
            orchestrator.run()
        assert travelled(orchestrator.log.entries, TERMS).tokens == {}


@pytest.fixture(scope="module")
def honest() -> list[dict[str, Any]]:
    with travel_world() as world:
        _came, log = run(world)
    return log.entries


def _rewritten(
    entries: list[dict[str, Any]], change: Callable[[list[dict[str, Any]]], Any]
) -> list[dict[str, Any]]:
    """Entries of another run, which no chain contradicts."""
    changed: list[dict[str, Any]] = parse_canonical(canonical_json(entries))
    change(changed)
    return changed


def _first(entries: list[dict[str, Any]], event: str, trip: int = 0) -> dict[str, Any]:
    found = (
        one["fields"] for one in entries
        if one["event"] == event and one["fields"].get("trip", trip) == trip
    )  # fmt: skip
    return next(found)


CHANGES: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "a trip left out": lambda entries: [
        entries.pop(entries.index(one)) for one in list(entries) if one["fields"].get("trip") == 1
    ],
    "a scrub left out": lambda entries: entries.pop(
        next(at for at, one in enumerate(entries) if one["event"] == "trip.scrubbed")
    ),
    "another proof": lambda entries: _first(entries, "trip.scrubbed").update(proof="00" * 32),
    "another holder": lambda entries: _first(entries, "trip.lent").update(holder="nobody"),
    "a range outside": lambda entries: _first(entries, "trip.lent").update(end=1 << 20),
    "one capability twice": lambda entries: _first(entries, "trip.lent", 1).update(
        id=_first(entries, "trip.lent")["id"]
    ),
    "more written than lent": lambda entries: _first(entries, "trip.written").update(size=9999),
    "more tokens than written": lambda entries: _first(entries, "trip.trained").update(tokens=999),
    "another model before": lambda entries: _first(entries, "trip.trained", 2)["before"].update(
        model="00" * 32
    ),
    "another code after": lambda entries: _first(entries, "trip.trained")["after"].update(
        code="00" * 32
    ),
    "another model at the end": lambda entries: entries[-1]["fields"].update(model="00" * 32),
    "no end": lambda entries: entries.pop(),
    "something after the end": lambda entries: entries.append(entries[-1]),
    "two beginnings": lambda entries: entries.insert(1, entries[0]),
    "no beginning": lambda entries: entries.pop(0),
    "more given than there was": lambda entries: entries[0]["fields"]["holders"].update(
        {"clinic-a": 100}
    ),
    "another program": lambda entries: entries[0]["fields"]["program"].update(n_layer=2),
    "another learning rate": lambda entries: entries[0]["fields"]["program"].update(
        learning_rate=0.02
    ),
    "another device": lambda entries: entries[0]["fields"]["program"].update(device="cloud"),
    "another buffer": lambda entries: entries[0]["fields"].update(buffer=1024),
    "a holder too many": lambda entries: entries[0]["fields"]["holders"].update({"mallory": 5}),
    "a holder too few": lambda entries: entries[0]["fields"]["holders"].pop("clinic-c"),
    "a mark that is none": lambda entries: _first(entries, "trip.written").update(mark="x"),
    "half a step": lambda entries: _first(entries, "trip.trained").update(tokens=33),
    "another orchestrator with another state": lambda entries: entries.insert(
        -1, entries[0] | {"event": "travel.taken-over", "fields": {"code": "0", "model": "0"}}
    ),
    "privacy that nobody asked for": lambda entries: entries[-1]["fields"].update(privacy={}),
    "a movement that nothing bounds": lambda entries: _first(entries, "trip.trained").update(
        moved=0.1
    ),
    "an unknown event": lambda entries: entries[3].update(event="trip.blessed"),
    "a field of another kind": lambda entries: _first(entries, "trip.trained").update(tokens="1"),
    "trained before written": lambda entries: entries.insert(
        2, entries.pop(entries.index(next(o for o in entries if o["event"] == "trip.trained")))
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_log_that_does_not_hold_together_is_refused(
    honest: list[dict[str, Any]], name: str
) -> None:
    with pytest.raises(TranscriptInvalid):
        travelled(_rewritten(honest, CHANGES[name]), TERMS)


def test_the_honest_log_holds_and_other_events_are_not_looked_at(
    honest: list[dict[str, Any]],
) -> None:
    other = honest[0] | {"event": "outputs.sealed", "fields": {}}
    assert travelled([other, *honest, other], TERMS).trips == 12


def _terms(**changed: Any) -> Terms:
    return dataclasses.replace(TERMS, **changed)


def test_trips_keep_the_limits_of_the_recipe(honest: list[dict[str, Any]]) -> None:
    moment = from_rfc3339(honest[0]["at"])
    assert travelled(honest, _terms(max_steps=48)).steps == 48
    whole = dict.fromkeys(TERMS.limits, (moment, moment))
    travelled(honest, _terms(windows=whole))
    for terms in (
        _terms(max_steps=47),
        _terms(limits=dict(TERMS.limits) | {"clinic-b": 511}),
        _terms(windows=whole | {"clinic-b": (moment + 301, moment + 302)}),
        _terms(windows=whole | {"clinic-b": (moment - 302, moment - 301)}),
    ):
        with pytest.raises(TranscriptInvalid):
            travelled(honest, terms)


def test_nothing_in_the_log_tells_what_a_chunk_holds(honest: list[dict[str, Any]]) -> None:
    """Neither losses nor digests that a guess could be compared with."""
    for name in TERMS.limits:
        data = Tokens(name, 512).data
        for start in range(0, len(data), 256):
            digest = hashlib.sha256(data[start : start + 256]).hexdigest()
            assert digest not in canonical_json(honest).decode()
    assert not any("loss" in one["fields"] for one in honest)


def test_no_message_shows_a_secret() -> None:
    capability = WriteCapability.make(0, 0, 10, os.urandom)
    assert capability.secret.reveal().hex() not in repr(capability)
    with pytest.raises(CapabilityRefused) as caught:
        WriteCapability.from_dict(capability.to_dict() | {"end": "x"})
    assert capability.to_dict()["secret"] not in str(caught.value)
    asked = Provision(
        run_id=RUN_ID, trip=0, offset=0, size=1, host="h", port=1, capability=capability.to_dict()
    )
    assert capability.to_dict()["secret"] not in repr(asked)
