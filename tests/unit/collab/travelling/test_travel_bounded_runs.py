"""Whole runs of a travelling accelerator under bounds; the order in which chunks come and go."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.manifest.checks.collaborations.travelling import TravellingTerms, check_trips
from sealtrain.manifest.errors import TranscriptInvalid
from sealtrain.recipe.privacy import SequencePrivacy
from sealtrain_together.channel.channel import AttestedChannel
from sealtrain_together.travelling.orchestrator import Orchestrator

if not COLLECTING:
    from travel_world import HOLDERS, PROGRAM, travel_world

pytestmark = pytest.mark.long


def finished(run: Orchestrator) -> dict[str, Any]:
    return dict(run.log.entries[-1]["fields"])


def of(run: Orchestrator, event: str) -> list[dict[str, Any]]:
    return [entry["fields"] for entry in run.log.entries if entry["event"] == event]


def test_a_private_run_says_what_it_spent_of_each_holder() -> None:
    privacy = SequencePrivacy(noise_multiplier=1.0, max_sequence_norm=1.0, delta=1e-5)
    program = PROGRAM.model_copy(update={"privacy": privacy})
    with (
        travel_world(tokens=256) as world,
        world.orchestrator(world.plan(program=program, limits={HOLDERS[2]: 1})) as run,
    ):
        run.run()
    spent = finished(run)["privacy"]
    assert spent[HOLDERS[0]] == {
        "epsilon": pytest.approx(4.387, abs=0.01), "delta": 1e-5, "sequences": 16,
    }  # fmt: skip
    assert spent[HOLDERS[0]] == spent[HOLDERS[1]]
    assert spent[HOLDERS[2]] == {"epsilon": 0.0, "delta": 0.0, "sequences": 0}
    assert run.progress.losses == [0.0] * len(run.progress.losses)


def test_a_run_without_privacy_says_nothing_of_it() -> None:
    with travel_world(tokens=256) as world, world.orchestrator() as run:
        run.run()
    assert "privacy" not in finished(run)
    assert all("moved" not in entry for entry in of(run, "trip.trained"))


def test_a_bounded_run_says_how_far_each_chunk_wanted_to_go() -> None:
    program = PROGRAM.model_copy(update={"max_update_norm": 0.01})
    with travel_world(tokens=256) as world, world.orchestrator(world.plan(program=program)) as run:
        run.run()
    moved = [entry["moved"] for entry in of(run, "trip.trained")]
    assert len(moved) > 2
    assert all(value > 0.01 for value in moved)


def test_a_log_shows_what_its_program_is_bounded_by() -> None:
    privacy = SequencePrivacy(noise_multiplier=1.0, max_sequence_norm=1.0, delta=1e-5)
    program = PROGRAM.model_copy(update={"privacy": privacy, "max_update_norm": 0.5})
    with travel_world(tokens=256) as world, world.orchestrator(world.plan(program=program)) as run:
        run.run()
    meant = {name: value for name, value in program.to_dict().items() if name != "device"}
    limits: dict[str, int | None] = dict.fromkeys(HOLDERS)
    buffer = run.log.entries[0]["fields"]["buffer"]
    terms = TravellingTerms(program=meant, buffer_bytes=buffer, limits=limits)
    assert check_trips(run.log.entries, terms).trips > 2
    for event, told in (("trip.trained", "moved"), ("travel.finished", "privacy")):
        silent = [
            entry
            | {"fields": {key: value for key, value in entry["fields"].items() if key != told}}
            if entry["event"] == event
            else entry
            for entry in run.log.entries
        ]
        with pytest.raises(TranscriptInvalid, check=carries(check="trips")):
            check_trips(silent, terms)


def test_a_half_is_wiped_before_it_is_lent_again_and_each_lane_moves_its_keys_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: Counter[tuple[int, str]] = Counter()
    ratchet = AttestedChannel.ratchet

    def watched(self: AttestedChannel) -> None:
        if lane := self.context.get("lane"):
            served[id(self), str(lane)] += 1
        ratchet(self)

    monkeypatch.setattr(AttestedChannel, "ratchet", watched)
    with travel_world(tokens=512) as world, world.orchestrator() as run:
        run.run()
    holds: dict[int, int] = {}
    for entry in run.log.entries:
        fields = entry["fields"]
        if entry["event"] == "trip.lent":
            assert fields["start"] not in holds
            holds[fields["start"]] = fields["trip"]
        elif entry["event"] == "trip.scrubbed":
            holds = {start: trip for start, trip in holds.items() if trip != fields["trip"]}
    trips = len(of(run, "trip.trained"))
    assert trips > 4
    assert not holds
    # Both ends of both lanes.
    assert sorted(lane for _channel, lane in served) == ["loans", "loans", "work", "work"]
    assert set(served.values()) == {trips}
