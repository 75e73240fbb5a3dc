"""Attacks on a travelling run by its own parties: what they answer, when, and in which session."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from channel_world import keyed
from collecting import COLLECTING
from variants import variants

from sealtrain.errors import (
    ConfigError,
    DataInvalid,
    LimitExceeded,
    Refused,
    SealtrainError,
    TripBroken,
    Unreachable,
    UsageError,
)
from sealtrain.manifest.checks.collaborations.travelling import Travelled, check_trips
from sealtrain.training.errors import ChannelBroken, PeerUnreachable
from sealtrain_together.channel.answers import Done, answer
from sealtrain_together.channel.channel import accept
from sealtrain_together.channel.ports import listening
from sealtrain_together.travelling import accelerator as accelerators
from sealtrain_together.travelling.accelerator import CONTROL_PURPOSE, LentAccelerator
from sealtrain_together.travelling.capability import WriteCapability, WriteConnection, Written
from sealtrain_together.travelling.control import Turn, WipeChallenge
from sealtrain_together.travelling.holder import Holder, Provision
from sealtrain_together.travelling.holder_memory import GivenTrips, GivingBounds
from sealtrain_together.travelling.lane_requests import Inbox
from sealtrain_together.travelling.measurement import StateMeter

if not COLLECTING:
    from travel_driver import Driver, driven, filling, lane_to
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

pytestmark = pytest.mark.long


def run(world: TravelWorld) -> Travelled:
    with world.orchestrator() as orchestrator:
        orchestrator.run()
    return check_trips(orchestrator.log.entries, TERMS)


def only_others_train(world: TravelWorld) -> None:
    came = run(world)
    assert set(came.refused.values()) == {"clinic-b"}
    assert came.tokens == {"clinic-a": 512, "clinic-c": 512}
    assert not world.lies_there()


@pytest.mark.claim("C279")
@pytest.mark.parametrize(
    "kind",
    variants(
        [SealtrainError, ConfigError, UsageError, Refused, TripBroken, Unreachable, DataInvalid],
        each_time=[SealtrainError, TripBroken, Unreachable],
    ),
)
def test_a_holder_ends_no_run_whatever_it_refuses_with(kind: type[SealtrainError]) -> None:
    with travel_world() as world:

        def refuses(_asked: Any) -> Any:
            raise kind("no", check="code")

        world.made["clinic-b"].provide = refuses  # type: ignore[method-assign]
        only_others_train(world)


ANSWERS: dict[str, dict[str, Any]] = {
    "a mark that no log may have": {"mark": "x"},
    "a mark in capitals": {"mark": "AB" * 32},
    "a mark that is a number": {"mark": 1},
    "a fingerprint of another form": {"fingerprint": "x"},
    "no size": {"size": None},
    "a size of text": {"size": "512"},
    "a size beyond any": {"size": 10**400},
    "a negative size": {"size": -1},
    "a timer that nobody knows": {"timers": {"measure": 1.0}},
    "a timer beyond any": {"timers": {"open": 10**400}},
    "timers of another kind": {"timers": [1]},
    "a field more": {"more": 1},
}


@pytest.mark.claim("C279")
@pytest.mark.parametrize(
    "name",
    variants(
        ANSWERS,
        each_time=["no size", "a size beyond any", "timers of another kind", "a field more"],
    ),
)
def test_an_answer_of_another_form_costs_its_holder_the_turn_and_spoils_no_log(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with travel_world() as world:
        holder = world.made["clinic-b"]
        holder.provide = lambda asked: (  # type: ignore[method-assign]
            Holder.provide(holder, asked) | ANSWERS[name]
        )
        # The canonical form has no such numbers; a holder may send any bytes.
        monkeypatch.setattr("sealtrain_together.channel.answers.canonical_json", _any_json)
        only_others_train(world)


def _any_json(value: Any) -> bytes:
    import json

    return json.dumps(value).encode()


LOADED = {"code": "00" * 32, "model": "00" * 32, "buffer": 512, "accelerators": []}
TURNED = {
    "tokens": 32, "loss": 1.0, "after": {"code": "00" * 32, "model": "00" * 32},
    "seconds": {"train": 1.0, "measure": 1.0},
}  # fmt: skip


@contextmanager
def answering(answers: list[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    """An accelerator that says these things, one after the other, on each lane."""

    def serve(sock: socket.socket) -> None:
        talk = keyed(CONTROL_PURPOSE, "accelerator", "orchestrator")
        with accept(sock, talk, timeout=PATIENCE) as channel:
            for said in answers:

                def act(said: dict[str, Any] = said) -> Done:
                    return said, b""

                if channel.receive(max_bytes=1 << 20) is None:
                    return
                answer(channel, act)

    with listening(("127.0.0.1", 0), serve, what="accelerator") as address:
        yield address


@pytest.mark.claim("C279")
@pytest.mark.parametrize(
    "answers",
    [
        [{}],
        [LOADED | {"code": "x"}],
        [LOADED | {"buffer": "512"}],
        [LOADED | {"accelerators": "H100"}],
        [LOADED, {}],
        [LOADED, TURNED | {"loss": 10**400}],
        [LOADED, TURNED | {"tokens": -1}],
        [LOADED, TURNED | {"after": {"code": "00" * 32}}],
    ],
)
def test_an_accelerators_answer_of_another_form_is_a_broken_channel(
    monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr("sealtrain_together.channel.answers.canonical_json", _any_json)
    with travel_world() as world, answering(answers) as address:
        world.control = address
        with lane_to(world, "01" * 16, "work") as lane:
            if len(answers) == 1:
                with pytest.raises(ChannelBroken):
                    lane.load(PROGRAM, os.urandom(32))
                return
            lane.load(PROGRAM, os.urandom(32))
            lane.turn(
                Turn(
                    start=0, end=64, id="00" * 16, written=Written(size=64, fingerprint="00" * 32),
                    nonce=bytes(32), seed=bytes(32),
                )
            )  # fmt: skip
            with pytest.raises(ChannelBroken):
                lane.wait_trained()


@pytest.mark.claim("C280")
def test_an_operation_of_the_last_session_ends_before_another_session_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn that trains on while another orchestrator takes over wipes nothing of its data."""
    with driven(monkeypatch) as (driver, program), ExitStack() as stack:
        world, trains, goes_on = driver.world, threading.Event(), threading.Event()
        train = program.train

        def slow(tokens: memoryview) -> tuple[int, float]:
            trains.set()
            assert goes_on.wait(PATIENCE)
            return train(tokens)

        monkeypatch.setattr(program, "train", slow)
        turn = driver.filled(1)
        driver.work.turn(turn)
        assert trains.wait(PATIENCE)
        taken = threading.Event()
        second: list[Driver] = []

        def takes_over() -> None:
            second.append(Driver(world, stack, session="02" * 16))
            taken.set()

        thread = threading.Thread(target=takes_over)
        thread.start()
        # It would have been loaded, and its chunk written, while the old turn still ran.
        assert not taken.wait(0.5)
        goes_on.set()
        assert taken.wait(PATIENCE)
        thread.join()
        chunk = second[0].filled(1)
        there = bytes(world.accelerator.buffer[chunk.start : chunk.end])
        assert there == Tokens("clinic-a", 512).data[: len(there)]
        assert second[0].trained(chunk).tokens == len(there) // 2
        with pytest.raises(TripBroken) as caught:
            driver.loans.lend(WriteCapability.make(9, 0, 64, os.urandom))
        assert caught.value.check == "session"


@pytest.mark.claim("C280")
def test_a_turn_that_waited_for_the_last_session_is_not_begun_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with driven(monkeypatch) as (driver, program), ExitStack() as stack:
        trains, goes_on = threading.Event(), threading.Event()
        train = program.train

        def slow(tokens: memoryview) -> tuple[int, float]:
            trains.set()
            assert goes_on.wait(PATIENCE)
            return train(tokens)

        monkeypatch.setattr(program, "train", slow)
        first, second = driver.filled(1), driver.filled(2)
        driver.work.turn(first)
        driver.work.turn(second)
        assert trains.wait(PATIENCE)
        loaded: list[Driver] = []
        thread = threading.Thread(
            target=lambda: loaded.append(Driver(driver.world, stack, session="02" * 16))
        )
        thread.start()
        # Until the accelerator obeys the new session it proves the old one what lies in its range.
        for _ in range(1000):
            with pytest.raises(TripBroken) as caught:
                driver.loans.prove(WipeChallenge(start=0, end=64, nonce="00" * 32, seed="00" * 32))
            if caught.value.check == "session":
                break
            assert caught.value.check == "scrub"
            thread.join(0.01)
        assert caught.value.check == "session"
        goes_on.set()
        driver.work.wait_trained()
        with pytest.raises(TripBroken) as caught:
            driver.work.wait_trained()
        assert caught.value.check == "session"
        thread.join(PATIENCE)
        assert program.steps == 2
        assert loaded[0].loaded["buffer"] == driver.world.buffer_bytes


@pytest.mark.claim("C281")
def test_a_state_that_changed_while_a_long_answer_was_sent_is_not_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next turn is there already, so the accelerator does not wait for that."""
    with driven(monkeypatch) as (driver, program):
        state = program.state

        def changed_meanwhile() -> bytes:
            sent = state()
            next(program.model.parameters()).data.view(-1)[0] += 1e-3
            return sent

        monkeypatch.setattr(program, "state", changed_meanwhile)
        first, second = driver.filled(1), driver.filled(2)
        driver.work.turn(dataclasses.replace(first, export=True))
        driver.work.turn(second)
        assert driver.work.wait_trained().state
        with pytest.raises(TripBroken) as caught:
            driver.work.wait_trained()
        assert caught.value.check == "model"
        assert program.steps == 2


@pytest.mark.claim("C281")
def test_a_turn_that_came_while_the_state_was_measured_begins_without_another_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state was read as shortly before the training as it ever is."""
    looked: list[int] = []
    unchanged, take, empty = StateMeter.check_unchanged, StateMeter.take, Inbox.empty.fget
    measuring, armed = threading.Event(), threading.Event()

    def counted(meter: StateMeter) -> None:
        looked.append(1)
        unchanged(meter)

    def taken(meter: StateMeter, key: bytes) -> str:
        if armed.is_set():
            measuring.set()
        return take(meter, key)

    def is_empty(asked: Inbox) -> bool:
        if armed.is_set():
            armed.clear()
            deadline = time.monotonic() + 5.0
            while empty(asked) and time.monotonic() < deadline:
                time.sleep(0.001)
        return bool(empty(asked))

    # Before the program is loaded: afterwards the accelerator would notice.
    monkeypatch.setattr(StateMeter, "check_unchanged", counted)
    monkeypatch.setattr(StateMeter, "take", taken)
    monkeypatch.setattr(Inbox, "empty", property(is_empty))
    with driven(monkeypatch) as (driver, program):
        first, second = driver.filled(1), driver.filled(2)
        armed.set()
        driver.work.turn(first)
        assert measuring.wait(PATIENCE)
        driver.work.turn(second)
        driver.work.wait_trained()
        driver.work.wait_trained()
        assert len(looked) == 2  # after the loading, and before the first
        assert program.steps == 3


@pytest.mark.claim("C218")
def test_a_challenge_is_not_known_before_its_range_was_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is drawn and its proof is computed ahead, but nothing of it is sent."""
    seen: list[bytes] = []
    operation = accelerators.operation

    def noted(message: bytes, known: Any) -> Any:
        seen.append(message)
        return operation(message, known)

    monkeypatch.setattr(accelerators, "operation", noted)
    with travel_world() as world, world.orchestrator() as orchestrator:
        orchestrator.run()
    scrubs = [
        entry["fields"] for entry in orchestrator.log.entries if entry["event"] == "trip.scrubbed"
    ]
    assert len(scrubs) == 12
    for scrub in scrubs:
        shown = next(at for at, message in enumerate(seen) if scrub["nonce"].encode() in message)
        told = next(at for at, message in enumerate(seen) if scrub["seed"].encode() in message)
        assert told < shown
    assert not any(scrub["proof"].encode() in message for scrub in scrubs for message in seen)


@pytest.mark.claim("C219")
def test_as_many_holders_as_a_run_has_keep_a_connection_each() -> None:
    """More than a port serves at a time where nothing else is said."""
    many = 40
    accelerator = LentAccelerator(many * 100, patience=PATIENCE)
    talk = keyed(CONTROL_PURPOSE, "accelerator", "orchestrator")
    with (
        ExitStack() as stack,
        accelerator.listening(
            ("127.0.0.1", 0), ("127.0.0.1", 0), talk, holders=many, timeout=PATIENCE
        ) as (_control, writes),
    ):
        holders = [WriteConnection(writes, timeout=PATIENCE) for _ in range(many)]
        for holder in holders:
            stack.callback(holder.close)
        for trip in range(2):
            for number, holder in enumerate(holders):
                chunk = os.urandom(100)
                capability = WriteCapability.make(
                    trip * many + number, number * 100, number * 100 + 100, os.urandom
                )
                accelerator.gate.lend(capability)
                written = holder.write(capability, 100, filling(chunk))
                assert accelerator.gate.take_back(capability.id) == written
                assert bytes(accelerator.buffer[number * 100 : number * 100 + 100]) == chunk


@pytest.mark.claim("C279")
@pytest.mark.parametrize("kind", [DataInvalid, UsageError, TripBroken])
def test_a_refused_chunk_leaves_no_answer_that_is_taken_for_the_next_one(
    kind: type[SealtrainError],
) -> None:
    """The report is asked for with the chunk; it comes although the chunk was refused."""
    reports: list[tuple[str, bytes]] = []
    refused: list[int] = []
    with travel_world() as world:
        for name in HOLDERS:
            world.hold(name, report=name.encode)
        holder = world.made["clinic-b"]

        def refuses_once(asked: Any) -> Any:
            if not refused:
                refused.append(asked.trip)
                raise kind("not this time", check="code")
            return Holder.provide(holder, asked)

        holder.provide = refuses_once  # type: ignore[method-assign]
        with world.orchestrator(
            reported=lambda name, report: reports.append((name, report))
        ) as orchestrator:
            orchestrator.run()
        came = check_trips(orchestrator.log.entries, TERMS)
    assert came.refused == {refused[0]: "clinic-b"}
    assert came.tokens == dict.fromkeys(HOLDERS, 512)
    assert reports
    assert all(report == name.encode() for name, report in reports)


@pytest.mark.claim("C71")
def test_an_accelerator_that_denies_what_it_received_gets_no_more_of_a_holders_bytes() -> None:
    """Together with an orchestrator it breaks off each write when all of the chunk is there."""
    received: list[int] = []
    denies = socket.create_server(("127.0.0.1", 0))

    def take_and_deny() -> None:
        while True:
            try:
                sock, _ = denies.accept()
            except OSError:
                return
            with sock:
                sock.settimeout(0.3)
                size = 0
                while True:
                    try:
                        part = sock.recv(1 << 16)
                    except TimeoutError:
                        break
                    if not part:
                        break
                    size += len(part)
                received.append(size)

    thread = threading.Thread(target=take_and_deny, daemon=True)
    thread.start()
    host, port = denies.getsockname()[:2]
    holder = Holder(
        Tokens("clinic-a", 400),
        given=GivenTrips(RUN_ID, GivingBounds(max_bytes=300, timeout=PATIENCE, patience=PATIENCE)),
        key=KEYS["clinic-a"],
        share=lambda: bytes(32),
    )

    def give(trip: int, offset: int, size: int) -> None:
        holder.provide(
            Provision(
                run_id=RUN_ID, trip=trip, offset=offset, size=size, host=host, port=port,
                capability=WriteCapability.make(trip, 0, size, os.urandom).to_dict(),
            )
        )  # fmt: skip

    try:
        for trip, offset in enumerate((0, 200, 0, 50)):
            with pytest.raises((ChannelBroken, PeerUnreachable)):
                give(trip, offset, 150 if offset == 200 else 100)
        assert all(size > 100 for size in received)
        before = len(received)
        for trip, offset in ((10, 350), (11, 400), (12, 500), (13, 150)):
            with pytest.raises(LimitExceeded):
                give(trip, offset, 100)
        assert len(received) == before
        assert holder.given == ()
    finally:
        denies.shutdown(socket.SHUT_RDWR)
        denies.close()
        holder.close()
        thread.join(PATIENCE)
