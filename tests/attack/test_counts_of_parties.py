"""No party's word on its records enters a run unless it fits what the party's owner sealed.

A lead refuses a lying report. Where the lead itself lies, both verifiers refuse its manifest: the
attacker holds the guest's own key and lets a genuine (simulated) guest quote the statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from manifest_world import (
    FEDERATED,
    FINISHED,
    NOW,
    RELEASED,
    RUN_ID,
    START,
    World,
    limits_of,
    make_joint,
    party,
    records_of,
)
from run_logs import chained, fields_of
from second_verifier import Question, compare
from world import OWNERS, RECIPE, digest

from sealtrain.base.canonical import canonical_json
from sealtrain.consortium.members import Consortium
from sealtrain.errors import EgressRefused, Refused
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.verify import verify_manifest
from sealtrain_together.parties.joint import check_report
from sealtrain_together.parties.party import PartyReport

A, B, C = OWNERS
RECORDS = 152
TRAINED = {owner: digest(f"dataset {owner} biopsies", 16) for owner in OWNERS}
TESTED = digest(f"dataset {A} biopsies-test", 16)
HONEST = {"records": RECORDS, "whole": 140, "truncated": 4, "filtered": 0, "empty": 8}
STRUCTURED = {**RECIPE["release_policy"], "logs": "structured"}
TRAVELS: dict[str, Any] = {
    "phase": "cpt",
    "model": {
        "config": {
            "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 64,
        },
        "init_seed": 7,
    },
    "datasets": [dataset for dataset in RECIPE["datasets"] if dataset["role"] == "train"],
    "columns": {"tokens": "tokens"},
    "trainer": {
        "max_steps": 300, "block_size": 16, "per_device_train_batch_size": 2,
        "learning_rate": 0.01, "lr_scheduler_type": "constant",
    },
    "peft": None,
}  # fmt: skip
HIDES = {"noise_multiplier": 1.0, "max_sequence_norm": 0.5, "delta": 1e-5}
TOGETHER = {"kind": "travelling", "policy": "policy.yaml", "buffer_bytes": 128}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_joint(tmp_path_factory.mktemp("open"), release_policy=STRUCTURED)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_joint(tmp_path_factory.mktemp("quiet"), FEDERATED)


@pytest.fixture(scope="module")
def hiding(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Single sequences are hidden by noise."""
    return make_joint(
        tmp_path_factory.mktemp("hiding"),
        TOGETHER | {"sequence_privacy": HIDES},
        release_policy=STRUCTURED,
        **TRAVELS,
    )


# -- what a lead takes -----------------------------------------------------------------------------


def reported(
    world: World,
    counts: dict[str, Any] | None,
    name: str = A,
    *,
    lists: Callable[[list[Any]], list[Any]] = list,
) -> PartyReport:
    """What a lead takes of a party's report with these counts, and with its datasets as listed."""
    document = party(name) | {
        "version": 4,
        "datasets": lists(
            [
                envelope.to_dict()
                for key, envelope in world.datasets.items()
                if key.startswith(f"{name}/")
            ]
        ),
        "releases": [],
        "closings": [],
        "counts": counts,
    }
    lead: Any = SimpleNamespace(
        run_id=RUN_ID,
        recipe=world.locked.lock.recipe,
        consortium=Consortium.model_validate_json(canonical_json(world.facts["consortium"])),
    )
    return check_report(lead, PartyReport.from_bytes(canonical_json(document)))


@pytest.mark.claim("C614")
def test_a_lead_takes_counts_that_fit_what_was_sealed(world: World, quiet: World) -> None:
    taken = reported(world, {TRAINED[A]: HONEST}).counts
    assert taken is not None
    assert {name: turn and turn.to_dict() for name, turn in taken.items()} == {TRAINED[A]: HONEST}
    assert reported(quiet, {TRAINED[A]: None}).counts == {TRAINED[A]: None}


LIES: dict[str, dict[str, Any] | None] = {
    "nothing": None,
    "no dataset": {},
    "withheld": {TRAINED[A]: None},
    "more than the dataset has": {TRAINED[A]: HONEST | {"whole": 141, "records": RECORDS + 1}},
    "parts of another sum": {TRAINED[A]: HONEST | {"empty": 7}},
    "none that trains": {TRAINED[A]: HONEST | {"whole": 0, "truncated": 0, "empty": RECORDS}},
    "another party's dataset": {TRAINED[B]: HONEST},
    "another party's besides": {TRAINED[A]: HONEST, TRAINED[B]: HONEST},
    "a test split": {TRAINED[A]: HONEST, TESTED: HONEST},
}


@pytest.mark.claim("C614")
@pytest.mark.negative(99)
@pytest.mark.parametrize("name", LIES)
def test_a_lead_refuses_a_party_that_lies_about_its_records(world: World, name: str) -> None:
    with pytest.raises(ClaimContradicted) as caught:
        reported(world, LIES[name])
    assert caught.value.check == "counts"
    assert caught.value.owner == A


@pytest.mark.claim("C614")
@pytest.mark.parametrize(
    ("lists", "counts"),
    [
        (lambda _: [], {}),
        (lambda datasets: datasets[1:], {}),
        (lambda datasets: datasets[:1], {TRAINED[A]: HONEST}),
        (lambda datasets: [*datasets, datasets[0]], {TRAINED[A]: HONEST}),
    ],
    ids=["none", "a test split alone", "no test split", "one twice"],
)
def test_a_lead_refuses_a_party_that_does_not_list_its_datasets_once_each(
    world: World, lists: Callable[[list[Any]], list[Any]], counts: dict[str, Any]
) -> None:
    with pytest.raises(ClaimContradicted) as caught:
        reported(world, counts, lists=lists)
    assert (caught.value.check, caught.value.owner) == ("parties", A)


@pytest.mark.claim("C614")
def test_a_lead_refuses_another_partys_dataset_of_the_same_name(world: World) -> None:
    theirs = world.datasets[f"{B}/biopsies"].to_dict()
    counts = {TRAINED[A]: HONEST, TRAINED[B]: HONEST}
    for lists in (lambda own: [theirs, *own], lambda own: [*own, theirs]):
        with pytest.raises(ClaimContradicted) as caught:
            reported(world, counts, lists=lists)
        assert (caught.value.check, caught.value.owner) == ("parties", A)


@pytest.mark.claim("C614")
@pytest.mark.negative(99)
def test_a_lead_refuses_counts_that_may_not_leave_the_party(quiet: World, hiding: World) -> None:
    for closed in (quiet, hiding):
        with pytest.raises(EgressRefused) as caught:
            reported(closed, {TRAINED[A]: HONEST})
        assert caught.value.check == "counts"


# -- what verifiers take ---------------------------------------------------------------------------

Fact = tuple[str, dict[str, Any]]


def rounds(world: World) -> list[Fact]:
    """Three rounds of all parties."""
    told: list[Fact] = [
        ("federation.begun", {
            "rule": "fedavg", "rounds": 3, "min_parties": 2, "parties": list(OWNERS),
            "state": _state(0),
        }),
        *(
            ("party.joined", {"party": name, "records": records_of(world, name)})
            for name in OWNERS
        ),
    ]  # fmt: skip
    for number in (1, 2, 3):
        told.append(("round.begun", {"round": number, "state": _state(number - 1)}))
        told += [
            ("update.taken", {
                "round": number, "party": name, "digest": _state(number), "norm": 0.5,
                "records": records_of(world, name),
            })
            for name in OWNERS
        ]  # fmt: skip
        told.append(("round.merged", {
            "round": number, "rule": "fedavg", "parties": list(OWNERS), "state": _state(number),
        }))  # fmt: skip
    return [*told, ("federation.finished", {"rounds": 3, "state": _state(3)})]


def _state(number: int) -> str:
    return f"{number:064x}"


def counting(world: World, counted: dict[str, Any], before: Iterable[Fact] = ()) -> bytes:
    """The manifest of a joint run whose log counts so."""
    told = [
        ("run.started", fields_of("run.started"), START),
        *((event, fields, RELEASED) for event, fields in before),
        ("data.counted", counted, FINISHED),
        ("training.finished", fields_of("training.finished"), FINISHED),
    ]

    def change(facts: dict[str, Any]) -> None:
        facts["run_log"] = chained(facts["run"]["run_id"], told)
        facts["limits"] = limits_of(facts)

    return world.manifest(change)


def every(counts: dict[str, int] | None) -> dict[str, Any]:
    return dict.fromkeys(TRAINED.values(), counts)


FALSE: dict[str, Callable[[], dict[str, Any]]] = {
    "more than a party has": lambda: every(HONEST | {"whole": 141, "records": RECORDS + 1}),
    "parts of another sum": lambda: every(HONEST | {"empty": 0}),
    "a party's withheld": lambda: every(HONEST) | {TRAINED[B]: None},
    "a party left out": lambda: dict.fromkeys(list(TRAINED.values())[1:], HONEST),
    "data of no party": lambda: every(HONEST) | {digest("dataset of none", 16): HONEST},
    "a test split": lambda: every(HONEST) | {TESTED: HONEST},
}


@pytest.mark.claim("C615")
def test_a_joint_run_says_what_trained_and_both_verifiers_agree(world: World) -> None:
    data = counting(world, every(HONEST), rounds(world))
    verified = verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
    ids = {limit.id for limit in verified.predicate.limits}
    assert not ids & {"records-not-counted", "records-left-out"}
    half = every(HONEST | {"whole": 72, "truncated": 0, "empty": 80})
    left_out = verify_manifest(
        counting(world, half, rounds(world)), world.trust(), artefacts=world.artefacts, now=NOW
    )
    assert "records-left-out" in {limit.id for limit in left_out.predicate.limits}
    assert agreed(world, data) == "verified"


@pytest.mark.claim("C615")
@pytest.mark.negative(100)
@pytest.mark.parametrize("name", FALSE)
def test_counts_that_are_not_of_the_parties_records_are_refused(world: World, name: str) -> None:
    data = counting(world, FALSE[name](), rounds(world))
    with pytest.raises(Refused) as caught:
        verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
    assert (caught.value.code, caught.value.check) == ("claim-contradicted", "counts")


@pytest.mark.claim("C615")
@pytest.mark.negative(100)
def test_counts_of_hidden_sequences_are_refused(hiding: World) -> None:
    data = counting(hiding, every(HONEST))
    with pytest.raises(Refused) as caught:
        verify_manifest(data, hiding.trust(), artefacts=hiding.artefacts, now=NOW)
    assert (caught.value.code, caught.value.check) == ("egress-refused", "counts")
    assert agreed(hiding, data) == "policy egress-refused"
    assert not agreed(hiding, counting(hiding, every(None))).startswith("policy")


@pytest.mark.claim("C615")
def test_both_verifiers_end_each_lie_of_a_joint_run_alike(world: World, quiet: World) -> None:
    for false in FALSE.values():
        data = counting(world, false(), rounds(world))
        assert agreed(world, data) == "policy claim-contradicted"
    assert agreed(quiet, counting(quiet, every(HONEST), rounds(quiet))) == "policy egress-refused"
    assert agreed(quiet, counting(quiet, every(None), rounds(quiet))) == "verified"


def agreed(world: World, data: bytes) -> str:
    """What both verifiers say: ``verified``, or the first refused check and its code."""
    found = compare(
        [Question(label="", manifest=data, trust=world.trust(), artefacts=None, now=NOW)]
    )
    assert not found.disagreements
    assert not found.crashes
    (verdict,) = found.verdicts
    return verdict
