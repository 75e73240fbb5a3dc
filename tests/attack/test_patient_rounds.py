"""Rounds that hide patients, tried by parties that give too much and by a lead that hides less."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING
from federated_world import (
    NOW,
    PARTIES,
    Adds,
    FederatedWorld,
    federated_world,
    rounds,
)
from polling import wait_until

from sealtrain.manifest.checks.collaborations.federated import (
    FederatedTerms,
    RoundResults,
    check_rounds,
)
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.collaborations.federated import Federated
from sealtrain.recipe.collaborations.patients import PatientPrivacy
from sealtrain.sealing.datakey import DataKey
from sealtrain.training.errors import PrivacyBroken
from sealtrain.training.privacy.noise import NoiseSource
from sealtrain_together.channel.answers import Done
from sealtrain_together.errors import TooFewParties
from sealtrain_together.federated.guest.merging import PatientMerge
from sealtrain_together.federated.mathematics import Taken
from sealtrain_together.federated.messages import Asked, PartyJoined
from sealtrain_together.federated.update import decode_state, encode_state

if not COLLECTING:
    import torch
    from learner_world import NORM, norm, party, rows_of

pytestmark = [pytest.mark.long, pytest.mark.claim("C78"), pytest.mark.slow]

PROMISED = PatientPrivacy(
    patient="whose",
    records_a_patient=2,
    patients_a_round=20,
    target_epsilon=9.0,
    delta=1e-4,
    accountant="rdp",
)
TERMS = Federated(
    kind="federated",
    policy="policy.yaml",
    rounds=2,
    local_steps=1,
    min_parties=2,
    aggregation="ffa",
    patient_privacy=PROMISED,
)
if not COLLECTING:
    FORM = {"a": torch.zeros(2, 2)}
RUN: Any = SimpleNamespace(recipe=SimpleNamespace(trainer=SimpleNamespace(learning_rate=0.1)))


class Lead(PatientMerge):
    """The project's own, whose parties' reports are nothing."""

    def __init__(self) -> None:
        super().__init__(RUN, TERMS, FORM)

    def read_report(self, party: str, document: dict[str, Any]) -> Any:
        return document


class SaysLess(Lead):
    """Adds half of the noise that it planned, and the log says so."""

    def merge(self, number: int, taken: Sequence[Taken], state: bytes) -> tuple[bytes, Any]:
        merged, told = super().merge(number, taken, state)
        return merged, {"noise_multiplier": told["noise_multiplier"] / 2}


class PlansLess(Lead):
    """Plans half of the noise, and says the epsilon that the right plan has."""

    def plan(self, present: Sequence[str]) -> dict[str, Any]:
        planned = super().plan(present)
        assert self._plan is not None
        half = self._plan.noise_multiplier / 2
        self._plan = type(self._plan)(
            privacy=PROMISED, rate=self._plan.rate, rounds=2, noise_multiplier=half
        )
        return planned | {"noise_multiplier": half}


class CountsMore(Lead):
    """Says that there are more patients, so that a smaller rate seems to need less noise."""

    def plan(self, present: Sequence[str]) -> dict[str, Any]:
        self._patients = {name: 10 * count for name, count in self._patients.items()}
        return super().plan(present)


@dataclass
class Sums(Adds):
    """A party that gives a sum of the length of its number."""

    patients: int | None = 100

    def learn(self, asked: Asked, state: bytes) -> Done:
        self.asked.append(asked.round)
        self.before(asked.round)
        assert asked.rate is not None
        words = {"round": asked.round, "records": self.records, "steps": 1, "loss": None,
                 "report": {}}  # fmt: skip
        return words, self.answers(encode_state({"a": torch.full((2, 2), self.number / 2)}))

    def finish(self, state: bytes) -> Done:
        return {}, b""


def ran(world: FederatedWorld, lead: PatientMerge, *, min_parties: int = 2) -> None:
    for number, name in enumerate(PARTIES):
        world.works.setdefault(name, Sums(number=1 + number))
        world.party(name)
    plan = rounds(rule="ffa", min_parties=min_parties)
    world.federation(plan, merging=lead).run(encode_state(FORM))


def judged(entries: Iterable[dict[str, Any]]) -> RoundResults:
    terms = FederatedTerms(
        rule="ffa",
        rounds=2,
        min_parties=2,
        holders=PARTIES,
        records=dict.fromkeys(PARTIES, 10),
        windows=dict.fromkeys(PARTIES, (NOW, NOW)),
        promised=PROMISED,
    )
    return check_rounds(entries, terms)


def test_the_log_of_an_honest_lead_is_accepted_and_tells_no_figure() -> None:
    with federated_world() as world:
        ran(world, Lead())
        found = judged(world.log.entries)
        assert found.hiding.plan is not None
        assert found.hiding.plan.rate == 20 / 300
        assert found.hiding.plan.epsilon <= 9
        given = world.events("update.taken")
        assert {(argument["digest"], argument["norm"]) for argument in given} == {(None, None)}


@pytest.mark.parametrize(
    ("lead", "where", "field"),
    [
        (SaysLess, "run log entry 10", "noise_multiplier"),
        (PlansLess, "run log entry 5", "epsilon"),
        (CountsMore, "run log entry 5", "patients"),
    ],
)
def test_a_lead_that_hides_less_than_it_planned_is_refused(
    lead: Callable[[], Lead], where: str, field: str
) -> None:
    with federated_world() as world:
        ran(world, lead())
        with pytest.raises(ClaimContradicted, check=carries(got=where, field=field)):
            judged(world.log.entries)


def test_a_log_whose_epsilon_was_lowered_is_refused() -> None:
    with federated_world() as world:
        ran(world, Lead())
        entries = deepcopy(list(world.log.entries))
        plan = next(entry["fields"] for entry in entries if entry["event"] == "federation.planned")
        plan["epsilon"] /= 10
        with pytest.raises(ClaimContradicted, check=carries(check="rounds", got="run log entry 5")):
            judged(entries)


def test_a_sum_that_its_patients_cannot_have_is_refused_and_the_others_are_merged() -> None:
    with federated_world() as world:
        world.works["clinic-c"] = Sums(number=1.001, patients=1)
        ran(world, Lead())
        assert {(event["party"], event["code"]) for event in world.events("update.refused")} == {
            ("clinic-c", "update-refused")
        }
        assert [event["parties"] for event in world.events("round.merged")] == [
            list(PARTIES[:2])
        ] * 2


def test_a_party_that_tells_no_patients_or_others_than_before_is_not_let_in() -> None:
    with federated_world() as world:
        world.works["clinic-b"] = Sums(number=1, patients=None)

        def again(number: int) -> None:
            if number == 1:
                world.stops["clinic-c"].set()
                world.works["clinic-c"] = Sums(number=3, patients=99)

        world.works["clinic-a"] = Sums(number=1)
        world.works["clinic-c"] = Sums(number=3, before=again)
        for name in PARTIES:
            world.party(name)
        joined, refused = (
            partial(world.events, "party.joined"),
            partial(world.events, "party.refused"),
        )
        world.skip_once(lambda: len(joined()) == 2 and refused(), 20)  # nobody else joins
        world.skip_once(lambda: len(refused()) == 2, 0, each_look=10)
        plan = rounds(rule="ffa", round_seconds=20, parties=PARTIES)
        lead = Lead()
        federation = world.federation(plan, merging=lead)

        def comes_again() -> None:
            world.ended["clinic-c"].join(60)
            world.party("clinic-c")

        threading.Thread(target=comes_again, daemon=True).start()
        with pytest.raises(TooFewParties):
            federation.run(encode_state(FORM))
        assert {event["code"] for event in world.events("party.refused")} == {"update-refused"}
        assert "clinic-b" not in {event["party"] for event in world.events("party.joined")}
        assert {event["patients"] for event in world.events("party.joined")} == {100}


def test_who_comes_after_the_plan_changes_neither_rate_nor_noise() -> None:
    with federated_world() as world:
        for number, name in enumerate(PARTIES):
            world.works[name] = Sums(number=1 + number)
        for name in PARTIES[:2]:
            world.party(name)
        came: list[int] = []

        def comes(number: int) -> None:
            if number == 1 and not came:
                came.append(number)
                world.party(PARTIES[2])
                wait_until(lambda: world.works[PARTIES[2]].asked, 20)

        world.works[PARTIES[0]].before = comes
        world.federation(rounds(rule="ffa", round_seconds=6), merging=Lead()).run(
            encode_state(FORM)
        )
        found = judged(world.log.entries)
        assert found.hiding.plan is not None
        assert found.hiding.plan.patients == dict.fromkeys(PARTIES[:2], 100)
        assert found.hiding.plan.rate == 20 / 200
        assert found.merged[-1] == PARTIES
        noises = {event["noise_multiplier"] for event in world.events("round.merged")}
        assert noises == {found.hiding.plan.noise_multiplier}


# Noise cannot be averaged away.


def test_a_lead_merges_no_round_twice_and_no_two_leads_have_one_noise() -> None:
    merged = []
    for lead in (Lead(), Lead()):
        for name in PARTIES[:2]:
            lead.admit(PartyJoined(party=name, records=1000, countable=False, patients=100))
        lead.plan(PARTIES[:2])
        taken = [
            lead.take(name, 10, encode_state(FORM), encode_state(FORM)) for name in PARTIES[:2]
        ]
        merged.append(lead.merge(1, taken, encode_state(FORM))[0])
        with pytest.raises(PrivacyBroken, check=carries(check="round", got="1")):
            lead.merge(1, taken, encode_state(FORM))
    assert merged[0] != merged[1]


def test_a_lead_merges_nothing_before_it_planned() -> None:
    lead = Lead()
    with pytest.raises(PrivacyBroken, check=carries(check="plan")):
        lead.merge(1, [], encode_state(FORM))


def test_a_party_that_was_killed_gives_the_same_sum_and_no_other(tmp_path: Path) -> None:
    """Also with dropout: neither another draw nor another mask can be had of one round."""
    rows = rows_of({f"p{number}": 1 + number % 2 for number in range(6)})
    told = []
    for place in ("before", "after"):
        learner, sums = party(tmp_path, rows, name=place, dropout=0.2)
        told.append([sums.learn(number, learner.initial(), 0.5) for number in (1, 2)])
    assert told[0] == told[1]
    other = encode_state({name: tensor + 0.01 for name, tensor in learner.form.items()})
    with pytest.raises(PrivacyBroken, check=carries(check="round", got="1")):
        sums.learn(1, other, 0.5)
    strange = NoiseSource(DataKey(bytes(32)))
    learner, sums = party(tmp_path, rows, name="other-run", dropout=0.2, noise=strange)
    assert sums.learn(1, learner.initial(), 0.5) != told[0][0]


def test_a_patient_with_fifty_records_moves_a_sum_no_further_than_one(tmp_path: Path) -> None:
    usual, many = {"p1": 1, "p2": 1}, {"p1": 1, "p2": 1, "poisoner": 50}
    given = []
    for place, patients in (("without", usual), ("with", many)):
        learner, sums = party(tmp_path, rows_of(patients), most=50, name=place)
        given.append(decode_state(sums.learn(1, learner.initial(), 1.0), learner.form))
    moved = {name: given[1][name] - given[0][name] for name in given[0]}
    assert 0 < norm(moved) <= NORM
