"""What a manifest may say of rounds that hide patients, and everything it may not."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from manifest_world import FEDERATED, NOW, RELEASED, World, limits_of, make_joint, records_of
from world import OWNERS

from sealtrain.base.clock import to_rfc3339
from sealtrain.manifest.checks.collaborations.federated import FederatedTerms, check_rounds
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.exports.model_card import model_card
from sealtrain.manifest.exports.model_facts import model_facts_of
from sealtrain.manifest.exports.training_summary import training_summary
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import examine, verify_manifest
from sealtrain.recipe.collaborations.patients import PatientPrivacy
from sealtrain.signing.runlog import RunLog

pytestmark = pytest.mark.claim("C78")

Entries = list[dict[str, Any]]
Facts = dict[str, Any]
PROMISED: dict[str, Any] = {
    "patient": "whose",
    "records_a_patient": 4,
    "patients_a_round": 30,
    "target_epsilon": 5.0,
    "delta": 1e-4,
}
PLAN = {
    "patients": dict(zip(OWNERS, (100, 200, 300), strict=True)),
    "rate": 0.05,
    "noise_multiplier": 0.8,
    "epsilon": 1.6,  # the accountant of training says 1.594
}


def digest(number: int) -> str:
    return f"{number:064x}"


def log() -> Entries:
    """Three parties, three rounds; the last drops out and comes again."""
    noise = PLAN["noise_multiplier"]

    def joined(name: str) -> tuple[str, Facts]:
        return "party.joined", {"party": name, "records": None, "patients": PLAN["patients"][name]}  # type: ignore[index]

    def one(number: int, *parties: str) -> list[tuple[str, Facts]]:
        return [
            *(("update.taken", {"round": number, "party": name, "digest": None, "records": None,
                                "norm": None}) for name in parties),
            ("round.merged", {"round": number, "rule": "ffa", "parties": list(parties),
                              "state": digest(number), "noise_multiplier": noise}),
        ]  # fmt: skip

    told: list[tuple[str, Facts]] = [
        ("federation.begun", {"rule": "ffa", "rounds": 3, "min_parties": 2,
                              "parties": list(OWNERS), "state": digest(0)}),
        *(joined(name) for name in OWNERS),
        ("federation.planned", deepcopy(PLAN)),
        ("round.begun", {"round": 1, "state": digest(0)}),
        *one(1, *OWNERS),
        ("party.left", {"party": OWNERS[2], "code": "peer-unreachable"}),
        ("round.begun", {"round": 2, "state": digest(1)}),
        *one(2, *OWNERS[:2]),
        ("round.begun", {"round": 3, "state": digest(2)}),
        joined(OWNERS[2]),
        *one(3, *OWNERS),
        ("federation.finished", {"rounds": 3, "state": digest(3)}),
    ]  # fmt: skip
    return [
        {"seq": place + 1, "at": to_rfc3339(RELEASED + place), "event": event, "fields": fields}
        for place, (event, fields) in enumerate(told)
    ]


def terms(promised: dict[str, Any] | None = PROMISED, **changed: Any) -> FederatedTerms:
    fields: dict[str, Any] = {
        "rule": "ffa",
        "rounds": 3,
        "min_parties": 2,
        "holders": OWNERS,
        "records": dict.fromkeys(OWNERS),
        "windows": dict.fromkeys(OWNERS, (RELEASED, RELEASED + 60)),
        "promised": None if promised is None else PatientPrivacy.model_validate(promised),
    }
    return FederatedTerms(**fields | changed)


def put(event: str, nth: int = 0, **changed: Any) -> Callable[[Entries], None]:
    def change(entries: Entries) -> None:
        [entry for entry in entries if entry["event"] == event][nth]["fields"].update(changed)

    return change


def drop(event: str) -> Callable[[Entries], None]:
    return lambda entries: entries.remove(
        next(entry for entry in entries if entry["event"] == event)
    )


def later(entries: Entries) -> None:
    """The noise planned once the first round was merged."""
    plan = next(entry for entry in entries if entry["event"] == "federation.planned")
    entries.remove(plan)
    entries.insert(len(entries) - 1, plan)


def again(entries: Entries) -> None:
    plan = next(entry for entry in entries if entry["event"] == "federation.planned")
    entries.insert(entries.index(plan), deepcopy(plan))


def test_an_honest_log_is_accepted() -> None:
    found = check_rounds(log(), terms())
    assert found.hiding.patients == PLAN["patients"]
    assert found.hiding.plan is not None
    assert found.hiding.plan.epsilon == PLAN["epsilon"]


@pytest.mark.parametrize(
    ("change", "where", "field"),
    [
        (put("federation.planned", epsilon=0.9), "run log entry 5", "epsilon"),
        (put("federation.planned", noise_multiplier=0.5), "run log entry 5", "epsilon"),
        (put("federation.planned", epsilon=5.1), "run log entry 5", "target_epsilon"),
        (put("federation.planned", noise_multiplier=0.0), "run log entry 5", "noise_multiplier"),
        (put("federation.planned", rate=0.01), "run log entry 5", "rate"),
        (
            put("federation.planned", patients={**PLAN["patients"], OWNERS[0]: 99}),
            "run log entry 5",
            "patients",
        ),  # type: ignore[dict-item]
        (put("federation.planned", patients={OWNERS[0]: 100}), "run log entry 5", "patients"),
        (put("party.joined", 1, patients=9000), "run log entry 5", "patients"),
        (put("party.joined", 3, patients=301), "run log entry 17", "patients"),
        (put("party.joined", patients=None), "run log entry 2", "patients"),
        (drop("federation.planned"), "run log entry 6", "event"),
        (later, "run log entry 6", "event"),
        (again, "run log entry 5", "event"),
        (put("round.merged", noise_multiplier=0.4), "run log entry 10", "noise_multiplier"),
        (put("round.merged", 2, noise_multiplier=None), "run log entry 21", "noise_multiplier"),
        (put("update.taken", norm=1.5), "run log entry 7", "norm"),
        (put("update.taken", 4, digest=digest(7)), "run log entry 14", "norm"),
    ],
)
def test_a_log_of_less_privacy_is_refused(
    change: Callable[[Entries], None], where: str, field: str | None
) -> None:
    entries = log()
    change(entries)
    with pytest.raises(ClaimContradicted, check=carries(field=field)) as caught:
        check_rounds(entries, terms())
    assert (caught.value.got or caught.value.check) == where


def test_noise_that_the_recipe_names_is_the_noise_that_was_planned() -> None:
    check_rounds(log(), terms(PROMISED | {"noise_multiplier": 0.8}))
    with pytest.raises(ClaimContradicted, check=carries(check="rounds", got="run log entry 5")):
        check_rounds(log(), terms(PROMISED | {"noise_multiplier": 0.9}))


def test_noise_may_not_be_planned_for_a_recipe_that_promises_none() -> None:
    with pytest.raises(ClaimContradicted, check=carries(check="rounds", got="run log entry 2")):
        check_rounds(log(), terms(None))
    entries = log()
    for entry in entries:
        entry["fields"].pop("patients", None)
    with pytest.raises(ClaimContradicted, check=carries(check="run log entry 5", field="patients")):
        check_rounds(entries, terms(None))


# The whole manifest.


def section() -> Facts:
    return {
        "dp": "patients",
        "epsilon": PLAN["epsilon"],
        "delta": 1e-4,
        "accountant": "prv",
        "noise_multiplier": 0.8,
        "max_patient_norm": 1.0,
        "records_a_patient": 4,
        "sampling": "poisson",
        "unit": "patient",
        "sample_rate": 0.05,
        "rounds": 3,
        "parties": [{"name": name, "patients": PLAN["patients"][name]} for name in OWNERS],  # type: ignore[index]
    }


def hiding(folder: Path) -> World:
    how = FEDERATED | {"local_steps": 1, "aggregation": "ffa", "patient_privacy": PROMISED}
    world = make_joint(
        folder,
        how,
        phase="classify",
        columns={"text": "note", "label": "finding"},
        labels=["benign", "malignant"],
        trainer={"max_steps": 3},
        release_policy={
            "metrics": ["accuracy"],
            "round_to": 4,
            "model": {"recipients": list(OWNERS)},
        },
    )
    # The log's records are what the datasets' manifests say.
    made = RunLog(world.facts["run"]["run_id"])
    for entry in log():
        fields = dict(entry["fields"])
        if "records" in fields:
            fields["records"] = records_of(world, fields["party"])
        made.append(entry["event"], fields, RELEASED)
    world.facts["run_log"] = {"head": made.head, "entries": made.entries}
    world.facts["run"] |= {"steps": 3, "history": [], "metrics": {"accuracy": 0.9}}
    world.facts["privacy"] = section()
    world.facts["limits"] = limits_of(world.facts)
    return world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return hiding(tmp_path_factory.mktemp("hiding"))


def verify(world: World, change: Callable[[Facts], None] | None = None) -> Any:
    data = world.manifest(change)
    return verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)


def test_a_manifest_says_what_a_patient_paid(world: World) -> None:
    verified = verify(world)
    details = {check.name: check.detail for check in verified.checks}
    assert "epsilon 1.6 at delta 0.0001 for one patient" in details["collaboration"]
    assert any("hides single patients" in limit for limit in verified.limits)
    assert not any("trained without differential privacy" in limit for limit in verified.limits)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 1.0),
        ("delta", 1e-6),
        ("accountant", "rdp"),
        ("noise_multiplier", 1.4),
        ("max_patient_norm", 0.5),
        ("records_a_patient", 1),
        ("sample_rate", 0.01),
        ("rounds", 2),
        ("parties", [{"name": name, "patients": 1000} for name in OWNERS]),
        ("parties", [{"name": OWNERS[0], "patients": 100}]),
    ],
)
def test_another_mechanism_or_price_is_refused(world: World, name: str, value: Any) -> None:
    with pytest.raises(ClaimContradicted, check=carries(check="privacy")):
        verify(world, lambda facts: facts["privacy"].update({name: value}))


def test_a_manifest_that_conceals_or_boasts_is_refused(world: World, tmp_path: Path) -> None:
    def conceals(facts: Facts) -> None:
        facts |= {"privacy": {"dp": "none"}}
        facts |= {"limits": limits_of(facts)}

    def boasts(facts: Facts) -> None:
        facts |= {"privacy": section()}
        facts |= {"limits": limits_of(facts)}

    def softens(facts: Facts) -> None:
        facts["limits"] = [limit for limit in facts["limits"] if limit["id"] != "patient-scope"]

    with pytest.raises(ClaimContradicted, check=carries(check="privacy", got="none")):
        verify(world, conceals)
    with pytest.raises(ClaimContradicted, check=carries(check="privacy", got="patients")):
        verify(make_joint(tmp_path), boasts)
    with pytest.raises(ClaimContradicted, check=carries(check="limits")):
        verify(world, softens)


def test_report_card_and_summary_say_it(world: World) -> None:
    found = examine(world.manifest(), world.trust(), artefacts=world.artefacts, now=NOW)
    page = render(found)
    assert "epsilon 1.6 at delta 0.0001 for one patient of one party" in page
    assert "noise multiplier 0.8" in page
    assert "at most epsilon 5 for one patient of one party" in page
    for export in (model_card, training_summary):
        text = export(model_facts_of(found)).decode().replace("\\", "")
        assert "epsilon 1.6 at delta 0.0001 for one patient of one party" in text
    assert b"differential-privacy" in model_card(model_facts_of(found))
