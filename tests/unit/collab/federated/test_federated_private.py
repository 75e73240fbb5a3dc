"""Rounds private to patients: what one patient can add, what noise hides, what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.errors import UsageError
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.training.errors import PrivacyBroken
from sealtrain_together.errors import UpdateRefused
from sealtrain_together.federated.update import decode_state, encode_state

if not COLLECTING:
    import torch
    from learner_world import NOISE, NORM, PRIVACY, classifier, norm, party, rows_of

    from sealtrain_together.federated.private import (
        PatientBound,
        PatientPlan,
        PatientRounds,
        PrivateMerging,
        plan_rounds,
    )

pytestmark = pytest.mark.claim("C78")

if not COLLECTING:
    EVERYBODY = PatientPlan(privacy=PRIVACY, rate=1.0, rounds=3, noise_multiplier=1.0)


@pytest.mark.slow
def test_a_patient_moves_a_sum_by_the_norm_and_no_more(tmp_path: Path) -> None:
    rows = rows_of({"p1": 1, "p2": 2, "p3": 1})
    with_all, without = rows, [row for row in rows if row["patient"] != "p2"]
    sums = []
    for number, given in enumerate((with_all, without)):
        learner, rounds = party(tmp_path, given, name=f"r{number}")
        sums.append(decode_state(rounds.learn(1, learner.initial(), 1.0), learner.form))
    alone = {name: sums[0][name] - sums[1][name] for name in sums[0]}
    assert NORM * 0.9 < norm(alone) <= NORM, "cut, and to the norm"


@pytest.mark.slow
def test_records_beyond_a_patients_share_change_nothing(tmp_path: Path) -> None:
    rows = rows_of({"p1": 6, "p2": 1})
    told = []
    for number, given in enumerate((rows, rows[:4] + rows[6:])):
        learner, rounds = party(tmp_path, given, name=f"r{number}", most=4)
        told.append(rounds.learn(1, learner.initial(), 1.0))
    assert told[0] == told[1]


@pytest.mark.slow
def test_a_round_is_the_same_again_and_parts_do_not_matter(tmp_path: Path) -> None:
    rows = rows_of({f"p{number}": 1 + number % 3 for number in range(8)})
    learner, rounds = party(tmp_path, rows)
    state = learner.initial()
    first = rounds.learn(1, state, 1.0)
    assert rounds.learn(1, state, 1.0) == first
    assert rounds.patients == 8
    _, smaller = party(tmp_path, rows, name="other", at_once=2)
    for value, other in zip(
        decode_state(first, learner.form).values(),
        decode_state(smaller.learn(1, state, 1.0), learner.form).values(),
        strict=True,
    ):
        torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-6)
    drawn = [rounds.learn(number, state, 0.5) for number in (2, 3, 4)]
    assert len(set(drawn)) == 3, "each round draws anew"


@pytest.mark.slow
def test_nobodys_records_and_other_phases_are_refused(tmp_path: Path) -> None:
    rows = rows_of({"p1": 2})
    rows[1]["patient"] = ""
    with pytest.raises(RecordInvalid):
        party(tmp_path, rows)
    unknown = [row | {"finding": "unheard of"} for row in rows_of({"p1": 2})]
    with pytest.raises(
        RecordInvalid, check=carries(check="labels", expected="one of 2 labels")
    ):  # now, and not in the round that draws it
        party(tmp_path, unknown, name="unknown")
    with pytest.raises(SchemaMismatch):
        party(tmp_path, rows_of({"p1": 2}), name="nobody", patient="other")
    learner, _ = party(tmp_path, rows_of({"p1": 2}), name="good")
    other = classifier().model_copy(update={"phase": "sft"})
    with pytest.raises(RecipeInvalid):
        PatientRounds(
            learner,
            other,
            [],
            promised=PatientBound(patient="p", records_a_patient=1, max_norm=NORM),
            noise=NOISE,
        )


@pytest.mark.slow
def test_a_round_is_given_for_one_adapter_and_one_rate_only(tmp_path: Path) -> None:
    learner, rounds = party(tmp_path, rows_of({"p1": 1, "p2": 1}))
    state = learner.initial()
    other = encode_state({name: tensor + 1 for name, tensor in learner.form.items()})
    rounds.learn(1, state, 0.5)
    for again in ((other, 0.5), (state, 0.6)):
        with pytest.raises(PrivacyBroken, check=carries(check="round", got="1")):
            rounds.learn(1, *again)
    rounds.learn(2, other, 0.6)


@pytest.mark.slow
@pytest.mark.claim("C550")
def test_no_dropout_ties_a_patient_to_those_drawn_before(tmp_path: Path) -> None:
    """One patient more moves the sum by the norm at most, whatever dropout the model brings."""
    rows = rows_of({"p1": 2, "p2": 1, "p3": 2})
    without = [row for row in rows if row["patient"] != "p1"]
    sums = []
    for name, given in (("whole", rows), ("less", without), ("again", rows)):
        torch.manual_seed(len(sums))
        learner, rounds = party(tmp_path, given, name=name, dropout=0.3, max_norm=1e-4)
        sums.append(decode_state(rounds.learn(1, learner.initial(), 1.0), learner.form))
    moved = norm({name: sums[0][name] - sums[1][name] for name in sums[0]})
    assert 0 < moved <= 1e-4
    assert all(torch.equal(sums[0][name], sums[2][name]) for name in sums[0])


if not COLLECTING:
    FORM = {"b": torch.zeros(40, 50), "head": torch.zeros(100)}

    def merging(plan: PatientPlan = EVERYBODY, rate: float = 0.1) -> PrivateMerging:
        return PrivateMerging(plan, NOISE, learning_rate=rate)


def test_noise_is_added_once_whatever_the_number_of_parties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first step of AdamW has the gradient's signs, so look at the gradient itself."""
    patients = dict.fromkeys("abcdefgh", 10)
    sums = dict.fromkeys(patients, FORM)
    weights: list[Any] = []

    class Watched(torch.optim.AdamW):
        def __init__(self, params: Any, **settings: Any) -> None:
            weights.extend(params)
            super().__init__(weights, **settings)

    monkeypatch.setattr(torch.optim, "AdamW", Watched)
    merging().merge(1, sums, FORM, patients=patients)
    drawn = torch.cat([weight.grad.flatten() for weight in weights])
    deviation = EVERYBODY.noise_multiplier * NORM / (10 * len(patients))
    assert float(drawn.std()) == pytest.approx(deviation, rel=0.05)
    assert abs(float(drawn.mean())) < 0.1 * deviation


def test_parties_sums_are_added() -> None:
    given = {"head": torch.full((100,), 0.01), "b": torch.zeros(40, 50)}
    twice = {name: 2 * argument for name, argument in given.items()}
    parts = merging().merge(1, {"a": given, "b": given}, FORM, patients={"a": 10, "b": 10})
    whole = merging().merge(1, {"a": twice}, FORM, patients={"a": 20})
    assert encode_state(parts) == encode_state(whole)


def test_the_noise_of_a_round_is_never_used_for_another_sum() -> None:
    one = merging()
    one.merge(2, {"a": FORM}, FORM, patients={"a": 10})
    for again in (1, 2):
        with pytest.raises(PrivacyBroken):
            one.merge(again, {"a": FORM}, FORM, patients={"a": 10})
    one.merge(3, {"a": FORM}, FORM, patients={"a": 10})
    with pytest.raises(PrivacyBroken):
        one.merge(4, {"a": FORM}, FORM, patients={"a": 10})


def test_a_sum_that_nobody_clipped_is_refused() -> None:
    huge = {"head": torch.full((100,), 1.0), "b": torch.zeros(40, 50)}
    with pytest.raises(UpdateRefused):
        merging().merge(1, {"a": huge}, FORM, patients={"a": 10})
    with pytest.raises(UsageError):
        merging().merge(1, {}, FORM, patients={})


def test_a_gradient_is_followed() -> None:
    given = {"head": torch.linspace(-1, 1, 100) * 10, "b": torch.zeros(40, 50)}
    plan = PatientPlan(privacy=PRIVACY, rate=1.0, rounds=3, noise_multiplier=0.1)
    merged = merging(plan).merge(1, {"a": given}, FORM, patients={"a": 1000})
    signs = np.sign(merged["head"].numpy())
    assert (signs == -np.sign(given["head"].numpy())).all()


def test_the_plan_spends_no_more_than_was_promised() -> None:
    promised = PRIVACY.model_copy(update={"noise_multiplier": None})
    plan = plan_rounds(promised, patients=1000, rounds=40)
    assert plan.epsilon(0) == 0
    assert plan.epsilon(20) < plan.epsilon(40) <= 8.0
    # The moments accountant of the subsampled Gaussian, as Opacus has it.
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(plan.noise_multiplier, 0.05, 40)]
    assert plan.epsilon(40) == pytest.approx(accountant.get_epsilon(delta=1e-4))
    with pytest.raises(PrivacyBroken):
        plan_rounds(PRIVACY, patients=60, rounds=400)
    with pytest.raises(PrivacyBroken):
        plan_rounds(promised, patients=40, rounds=4)


def test_fewer_patients_never_mean_less_noise() -> None:
    promised = PRIVACY.model_copy(update={"noise_multiplier": None})
    noises = [
        plan_rounds(promised, patients=patients, rounds=20).noise_multiplier
        for patients in (2000, 1000, 200, 50)
    ]
    assert noises == sorted(noises)
    assert noises[0] < noises[-1]
