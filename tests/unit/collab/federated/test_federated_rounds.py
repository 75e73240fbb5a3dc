"""Rounds: who takes part, who drops out and comes again, whose update comes too late."""

from __future__ import annotations

import threading

import pytest
from carrying import carries
from federated_world import PARTIES, RUN_ID, START, federated_world, rounds, values
from polling import wait_until

from sealtrain.base.digests import sha256_hex
from sealtrain.signing.runlog import verify
from sealtrain_together.errors import TooFewParties

pytestmark = pytest.mark.claim("C75")


def test_rounds_merge_what_all_parties_learned_and_the_log_says_so() -> None:
    with federated_world() as world:
        for name in PARTIES:
            world.party(name)
        world.works["clinic-c"].records = 20
        told: list[int] = []
        merged = world.federation(on_merged=lambda number, _loss: told.append(number)).run(START)
        assert values(merged.state) == [4.5] * 4  # (10*1 + 10*2 + 20*3) / 40, twice
        assert merged.counts == {name: {"hits": 4} for name in PARTIES}
        assert merged.reports == {name: {"until": 2} for name in PARTIES}
        assert (merged.steps, told) == (18, [1, 2])
        names = [entry["event"] for entry in world.log.entries]
        assert names[0] == "federation.begun"
        assert sorted(names[1:4]) == ["party.joined"] * 3
        assert names[4:] == [
            "round.begun", *["update.taken"] * 3, "round.merged",
            "round.begun", *["update.taken"] * 3, "round.merged", "federation.finished",
        ]  # fmt: skip
        assert world.log.entries[-1]["fields"] == {"rounds": 2, "state": sha256_hex(merged.state)}
        verify(RUN_ID, world.log.entries, head=world.log.head)


def test_a_party_that_drops_out_and_comes_again_takes_part_again() -> None:
    with federated_world() as world:
        for name in PARTIES:
            world.party(name)
        gone, back = threading.Event(), threading.Event()

        def drops(number: int) -> None:
            if number == 2:
                world.stops["clinic-b"].set()
                gone.set()
                back.wait(20)

        world.works["clinic-b"].before = drops

        def comes_again() -> None:
            gone.wait(20)
            world.works["clinic-b"] = type(world.works["clinic-b"])(number=2)
            world.ended["clinic-b"].join(10)
            world.party("clinic-b")
            back.set()

        threading.Thread(target=comes_again, daemon=True).start()
        merged = world.federation(rounds(rounds=3, min_parties=3)).run(START)
        assert values(merged.state) == [6.0] * 4
        (left,) = world.events("party.left")
        assert left["party"] == "clinic-b"
        assert left["code"] in ("peer-unreachable", "channel-cut")
        assert len(world.events("party.joined")) == 4


def test_a_party_that_no_lead_talks_to_any_more_ends() -> None:
    with federated_world() as world:
        world.party("clinic-a", patience=1.0)
        world.ended["clinic-a"].join(10)
        assert world.refused["clinic-a"] == ["peer-unreachable"]


def test_two_of_three_are_enough_where_the_recipe_says_so() -> None:
    with federated_world() as world:
        for name in PARTIES[:2]:
            world.party(name)
        world.skip_once(lambda: len(world.events("party.joined")) == 2, 20)  # no third one comes
        merged = world.federation(rounds(round_seconds=20)).run(START)
        assert values(merged.state) == [3.0] * 4
        assert [event["parties"] for event in world.events("round.merged")] == [
            list(PARTIES[:2])
        ] * 2


def test_too_few_are_too_few() -> None:
    with federated_world() as world:
        world.party("clinic-a")
        world.skip_once(lambda: world.events("party.joined"), 20)
        with pytest.raises(TooFewParties, check=carries(check="parties", got="1")):
            world.federation(rounds(round_seconds=20)).run(START)
        assert not world.events("round.begun")


def test_a_late_update_does_not_count_and_its_party_takes_part_in_the_next_round() -> None:
    with federated_world() as world:
        for name in PARTIES:
            world.party(name)
        merged_once = threading.Event()
        world.works["clinic-c"].before = lambda number: number == 1 and merged_once.wait(20)

        def hold(number: int) -> None:  # or the rounds are over before the late update arrives
            if number == 2:
                wait_until(lambda: world.events("update.refused"), 10)

        world.works["clinic-a"].before = hold
        world.skip_once(lambda: len(world.events("update.taken")) == 2, 20)
        plan = rounds(rounds=3, round_seconds=20)
        merged = world.federation(plan, on_merged=lambda number, _loss: merged_once.set()).run(
            START
        )
        late = {"round": 1, "party": "clinic-c", "code": "update-refused"}
        assert world.events("update.refused") == [late]
        assert world.events("round.merged")[0]["parties"] == list(PARTIES[:2])
        assert world.works["clinic-c"].asked[0] == 1
        assert set(world.works["clinic-c"].asked) & {2, 3}
        assert values(merged.state)[0] > 4.5
