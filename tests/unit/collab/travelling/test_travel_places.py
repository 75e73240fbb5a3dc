"""Which bytes of a holder each trip has: none is trained on twice, whatever is refused when."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from collecting import COLLECTING
from hypothesis import given, settings
from hypothesis import strategies as st
from run_logs import fields_of
from variants import examples, variants

from sealtrain.manifest.checks.collaborations.travelling import TravellingTerms, check_trips
from sealtrain.recipe.privacy import SequencePrivacy
from sealtrain.signing.runlog import RunLog
from sealtrain_together.travelling.history import rotation_after, spend_of
from sealtrain_together.travelling.program import TravellingModel
from sealtrain_together.travelling.schedule import (
    ChunkPlaces,
    HolderPlan,
    TravelPlan,
    Trip,
    TripRotation,
)

if not COLLECTING:
    import numpy as np
    from travel_world import HOLDERS, NOW, PROGRAM, RUN_ID, TravelWorld, plan_of, travel_world

pytestmark = [pytest.mark.long, pytest.mark.claim("C81")]

CHUNK = 256
"""Bytes of a trip in the world's small buffer: four steps of two sequences."""
SEQUENCE = 32


def test_a_place_that_no_trip_follows_is_given_back() -> None:
    places = ChunkPlaces(["a", "b"])
    assert [places.lend("a", 4), places.lend("b", 4), places.lend("a", 4)] == [0, 0, 4]
    places.refuse("a", 4, 4)
    assert places.lend("a", 2) == 4
    assert places.given == {"a": 6, "b": 4}


def test_a_place_that_a_later_trip_follows_is_used_up() -> None:
    places = ChunkPlaces(["a"])
    places.lend("a", 4)
    places.lend("a", 4)
    places.refuse("a", 0, 4)
    assert places.next("a") == 8
    assert places.given == {"a": 4}  # of what counts, nothing is lost


def test_places_are_given_back_one_after_the_other_from_the_last_one_on() -> None:
    places = ChunkPlaces(["a"])
    for _ in range(3):
        places.lend("a", 4)
    places.refuse("a", 8, 4)
    places.refuse("a", 4, 4)
    assert places.next("a") == 4


@dataclass
class Played:
    """An orchestrator's order of events: one trip is filled while the one before it is at work."""

    plan: TravelPlan
    log: RunLog
    rotation: TripRotation
    running: Trip | None = None
    trained: list[tuple[str, int, int]] = field(default_factory=list)

    def record(self, event: str, **fields: Any) -> None:
        self.log.append(event, fields_of(event, **fields), NOW)

    def fill(self, half: int, decide: Any) -> Trip | None:
        while (trip := self.rotation.next(half)) is not None:
            self.record(
                "trip.lent", trip=trip.number, holder=trip.holder, start=trip.start, end=trip.end
            )
            if decide("written"):
                return trip
            self.refuse(trip)
        return None

    def finish(self, decide: Any) -> None:
        trip = self.running
        if trip is None:
            return
        if decide("trained"):
            self.trained.append((trip.holder, trip.offset, trip.size))
            self.rotation.went_well(trip)
            tokens = trip.size // self.plan.program.token_bytes
            self.record("trip.trained", trip=trip.number, tokens=tokens)
        else:
            self.refuse(trip)

    def refuse(self, trip: Trip) -> None:
        self.rotation.refuse(trip)
        self.record("trip.refused", trip=trip.number)

    def take_over(self) -> None:
        self.record("travel.taken-over")
        self.rotation, self.running = rotation_after(self.plan, self.log), None


@given(st.data())
@settings(max_examples=examples(50), deadline=None)
def test_no_byte_is_in_two_trained_trips_in_any_order_of_events(data: st.DataObject) -> None:
    names = HOLDERS[: data.draw(st.integers(1, 3))]
    tokens = {name: data.draw(st.integers(1, 900), label=name) for name in names}
    limits = {name: data.draw(st.integers(1, 900)) for name in names}
    most = data.draw(st.none() | st.integers(1, 20))
    plan = TravelPlan(
        program=PROGRAM,
        holders=tuple(
            HolderPlan(name=name, tokens=tokens[name], max_tokens=limits[name]) for name in names
        ),
        buffer_bytes=data.draw(st.sampled_from([2, 4, 7])) * PROGRAM.step_bytes,
        seal_every=1,
        max_steps=most,
    )
    played = Played(plan, RunLog(RUN_ID), TripRotation(plan))

    def decide(_what: str) -> bool:
        return data.draw(st.integers(0, 3)) > 0

    half = 0
    for _ in range(40):
        if data.draw(st.integers(0, 9)) == 0:
            played.take_over()
        filled = played.fill(half, decide)
        played.finish(decide)
        played.running, half = filled, 1 - half
    played.finish(decide)
    for name in names:
        seen: Counter[int] = Counter()
        for holder, offset, size in played.trained:
            if holder == name:
                seen.update(range(offset, offset + size))
        assert max(seen.values(), default=0) <= 1
        width = PROGRAM.token_bytes
        assert max(seen, default=-1) < min(tokens[name], limits[name]) * width
    done = sum(size for _, _, size in played.trained) // PROGRAM.step_bytes
    assert most is None or done <= most


def private_world_run(
    world: TravelWorld, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, **changed: Any
) -> tuple[Counter[bytes], RunLog, list[tuple[str, int]], TravelPlan]:
    """A run that hides sequences; how often each was trained on, and what holders were asked."""
    trained: list[bytes] = []
    train = TravellingModel.train

    def watched(self: TravellingModel, part: memoryview) -> tuple[int, float]:
        done = train(self, part)
        if any(part):  # all zeros are the rehearsal's
            trained.append(bytes(part))
        return done

    monkeypatch.setattr(TravellingModel, "train", watched)
    asked: list[tuple[str, int]] = []
    for name in HOLDERS:
        if name not in names:
            del world.holders[name]
    for name in names:
        holder = world.made[name]

        def provide(wanted: Any, holder: Any = holder, name: str = name) -> Any:
            asked.append((name, wanted.offset))
            return type(holder).provide(holder, wanted)

        monkeypatch.setattr(holder, "provide", provide)
    privacy = SequencePrivacy(noise_multiplier=2.0, max_sequence_norm=1.0, delta=1e-5)
    program = PROGRAM.model_copy(update={"privacy": privacy})
    plan = plan_of(
        {name: world.tokens[name] for name in names},
        **{"program": program, "buffer_bytes": 2 * CHUNK, "seal_every": 1 << 20} | changed,
    )
    with world.orchestrator(plan) as run:
        run.run()
    sequences = Counter(
        part[at : at + SEQUENCE] for part in trained for at in range(0, len(part), SEQUENCE)
    )
    return sequences, run.log, asked, plan


def mark_sequences(world: TravelWorld, *bad: int) -> None:
    """Make all sequences different, and chunks of the first holder untrainable, by number."""
    for number, source in enumerate(world.tokens.values()):
        data = np.frombuffer(bytearray(source.data), dtype="<u2").reshape(-1, SEQUENCE // 2).copy()
        data[:, 0], data[:, 1], data[:, 2] = number, range(len(data)), 0
        data[:, 1] %= 64
        data[:, 2] = np.arange(len(data)) // 64
        source.data = data.tobytes()
    source = world.tokens[HOLDERS[0]]
    spoiled = bytearray(source.data)
    for chunk in bad:
        spoiled[chunk * CHUNK : chunk * CHUNK + 2] = b"\xff\xff"  # beyond the vocabulary
    source.data = bytes(spoiled)


@pytest.mark.parametrize(
    ("many", "bad"),
    variants(
        [(1, (0,)), (1, (1, 7)), (1, (0, 1, 3)), (2, (0, 2)), (2, (5,)), (3, (0, 4))],
        each_time=[(1, (1, 7)), (3, (0, 4))],
    ),
)
def test_a_chunk_that_is_refused_while_the_next_one_is_lent_brings_no_sequence_into_two_steps(
    many: int, bad: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = HOLDERS[:many]
    with travel_world(tokens=1024) as world:
        for name in names[1:]:
            world.tokens[name].data = world.tokens[name].data[: 2 * CHUNK]  # in the end one is left
        mark_sequences(world, *bad)
        sequences, log, _asked, plan = private_world_run(world, names, monkeypatch)
    assert set(sequences.values()) == {1}
    limits: dict[str, int | None] = dict.fromkeys(names)
    meant = {key: value for key, value in plan.program.to_dict().items() if key != "device"}
    came = check_trips(
        log.entries, TravellingTerms(program=meant, buffer_bytes=2 * CHUNK, limits=limits)
    )
    assert came.refused
    spent = spend_of(plan, log)
    assert spent is not None
    told = sum(share["sequences"] for share in spent.values())  # type: ignore[call-overload,index]
    assert told == len(sequences) == sum(came.tokens.values()) * 2 // SEQUENCE


def test_a_holder_goes_on_behind_a_chunk_that_was_refused_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with travel_world(tokens=1024) as world:
        mark_sequences(world, 1)
        sequences, log, asked, _plan = private_world_run(world, HOLDERS[:1], monkeypatch)
    assert [offset for _, offset in asked] == [at * CHUNK for at in range(8)]
    refused = [entry["fields"] for entry in log.entries if entry["event"] == "trip.refused"]
    assert [(refusal["trip"], refusal["code"]) for refusal in refused] == [(1, "data-invalid")]
    assert len(sequences) == 7 * CHUNK // SEQUENCE


def test_another_orchestrator_goes_on_behind_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with travel_world(tokens=1024) as world:
        mark_sequences(world, 1)
        _sequences, log, _asked, plan = private_world_run(world, HOLDERS[:1], monkeypatch)
    entries = log.entries
    for end in range(1, len(entries)):
        part = RunLog(RUN_ID)
        done: list[int] = []
        lent: list[int] = []
        for entry in entries[:end]:
            part.append(entry["event"], dict(entry["fields"]), NOW)
            if entry["event"] == "trip.lent":
                lent.append(entry["fields"]["trip"])
            if entry["event"] == "trip.trained":
                done.append(entry["fields"]["trip"])
        following = rotation_after(plan, part).next(0)
        # Trip number and number of the chunk agree in this run: each was asked for once.
        reached = max(done, default=-1)
        if following is None:
            assert reached == 7
        else:
            assert following.offset >= (reached + 1) * CHUNK
            assert following.number == len(lent)
