"""Rounds of which the lead sees sums only: parties that come, die and lie while they are summed."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
from carrying import carries
from federated_world import (
    MASKING,
    PARTIES,
    START,
    FederatedWorld,
    federated_world,
    rounds,
    values,
)

from sealtrain.errors import MasksRefused, SealtrainError, TooFewParties
from sealtrain_collab.federated.federation import Merged

pytestmark = pytest.mark.claim("C255")


def run(world: FederatedWorld, **plan: object) -> Merged:
    return world.federation(rounds(masking=MASKING, **plan)).run(START)


def near(merged: Merged, wanted: float) -> bool:
    return bool(np.allclose(values(merged.state), wanted, rtol=0, atol=2**-23))


@pytest.mark.claim("C253")
def test_rounds_merge_sums_and_the_log_has_no_figure_of_an_update() -> None:
    with federated_world() as world:
        for name in PARTIES:
            world.masked(name)
        world.works["clinic-c"].records = 20
        merged = run(world)
        assert near(merged, 4.5)
        assert merged.steps == 18
        taken = world.events("update.taken")
        assert [one["party"] for one in taken] == [*PARTIES, *PARTIES]
        assert {(one["digest"], one["norm"]) for one in taken} == {(None, None)}
        for one in world.events("round.merged"):
            assert one["masked"] == {"members": list(PARTIES), "opened_by": 3}
            assert one["parties"] == list(PARTIES)
        steps = ["introduce", "share", "upload", "agree", "unmask"]
        assert all(work.steps == steps * 2 for work in world.works.values())


@pytest.mark.parametrize("step", ["share", "upload", "agree", "unmask"])
def test_a_party_that_dies_in_a_step_ends_no_round(step: str) -> None:
    with federated_world() as world:
        for name in PARTIES:
            world.masked(name)
        dying = world.works["clinic-c"]

        def dies(at: str) -> None:
            if at == step and len(dying.asked) == 1:
                world.die("clinic-c")

        dying.at_step = dies
        merged = run(world, round_seconds=6)
        first = world.events("round.merged")[0]["parties"]
        counted = step in ("agree", "unmask")
        assert first == list(PARTIES if counted else PARTIES[:2])
        assert near(merged, (2.0 if counted else 1.5) + 1.5)


def test_a_party_that_comes_again_learns_again_and_takes_part() -> None:
    with federated_world() as world:
        for name in PARTIES:
            world.masked(name)
        first = world.works["clinic-b"]
        gone = threading.Event()

        def dies(at: str) -> None:
            if at == "introduce" and not gone.is_set():
                gone.set()
                world.die("clinic-b")

        first.at_step = dies

        def comes_again() -> None:
            gone.wait(20)
            world.ended["clinic-b"].join(10)
            world.works["clinic-b"] = type(first)(number=2)
            world.masked("clinic-b", least=3)

        threading.Thread(target=comes_again, daemon=True).start()
        merged = run(world, min_parties=3, rounds=2)
        assert near(merged, 4.0)
        assert world.works["clinic-b"].asked[0] == 1


def test_too_few_that_stay_open_nothing() -> None:
    with federated_world() as world:
        for name in PARTIES[:2]:
            world.masked(name)

        def dies(at: str) -> None:
            if at == "upload":
                world.die("clinic-b")

        world.works["clinic-b"].at_step = dies
        world.skip_once(lambda: len(world.events("party.joined")) == 2, 3)  # no third one comes
        with pytest.raises(TooFewParties, check=carries(check="parties")):
            run(world, round_seconds=3)
        assert not world.events("round.merged")
        assert not world.events("update.taken")


def test_a_vector_of_another_length_is_left_out_and_told() -> None:
    with federated_world() as world:
        for name in PARTIES:
            world.masked(name)
        world.works["clinic-c"].answers = lambda data: data[:-8]
        merged = run(world)
        assert near(merged, 3.0)
        refused = {"party": "clinic-c", "code": "update-refused"}
        assert world.events("update.refused") == [refused | {"round": one} for one in (1, 2)]


def test_a_party_that_sends_its_update_in_the_clear_is_refused() -> None:
    with federated_world() as world:
        for name in PARTIES:
            world.masked(name)
        honest = world.works["clinic-c"].learn
        world.works["clinic-c"].learn = lambda asked, state: (honest(asked, state)[0], state)  # type: ignore[method-assign]
        assert near(run(world), 3.0)
        assert {one["code"] for one in world.events("update.refused")} == {"update-refused"}


def test_a_party_without_an_introduction_is_not_let_in() -> None:
    with federated_world() as world:
        for name in PARTIES[:2]:
            world.masked(name)
        world.party("clinic-c")
        joined, refused = (
            partial(world.events, "party.joined"),
            partial(world.events, "party.refused"),
        )
        world.skip_once(lambda: len(joined()) == 2 and refused(), 20)
        assert near(run(world, round_seconds=20), 3.0)
        assert world.events("party.refused") == [{"code": "update-refused"}]


@pytest.mark.claim("C254")
def test_what_parties_refuse_their_lead_is_what_its_operator_sees() -> None:
    """Its sums are of fewer parties than theirs have to be, as with other code at the lead."""
    with federated_world() as world:
        for name in PARTIES:
            world.masked(name, least=3)
        dying = world.works["clinic-c"]
        dying.at_step = lambda at: world.die("clinic-c") if at == "upload" else None
        with pytest.raises(MasksRefused, check=carries(check="members")):
            run(world, round_seconds=4)
        assert not world.events("round.merged")
        assert not world.events("update.taken")


class Died(SealtrainError):
    """The lead's process was killed."""


def killed_after_the_sum(world: FederatedWorld) -> None:
    """A lead that opened the first sum, and sealed and recorded nothing of it."""

    def record(event: str, fields: object) -> None:
        if event == "update.taken":
            raise Died("killed")

    with pytest.raises(Died):
        world.federation(rounds(masking=MASKING), record=record).run(START)


def test_a_lead_that_died_with_an_opened_sum_is_followed_by_one_that_opens_it_again() -> None:
    with federated_world() as world:
        for name in PARTIES:
            world.masked(name)
        killed_after_the_sum(world)
        assert near(run(world), 4.0)
        assert [work.asked for work in world.works.values()] == [[1, 1, 2]] * 3


@pytest.mark.claim("C254")
def test_the_lead_that_follows_opens_no_sum_of_others_though_guests_began_again() -> None:
    """The difference to the first sum would be the update of the one that it leaves out."""
    with federated_world() as world:
        for name in PARTIES:
            world.masked(name)
        killed_after_the_sum(world)
        for name in PARTIES:
            world.stops[name].set()
            world.ended[name].join(10)
        for name in PARTIES[:2]:
            world.works[name] = type(world.works[name])(number=1)
            world.masked(name)
        world.skip_once(lambda: len(world.events("party.joined")) == 2, 20)
        with pytest.raises(MasksRefused, check=carries(check="second sum")):
            run(world, round_seconds=20)
        assert not world.events("round.merged")
