"""What a run log may say of a cut run, and what contradicts itself, the recipe or the owners."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from carrying import carries
from world import digest, founded, identity

from sealtrain.base.clock import to_rfc3339
from sealtrain.consortium.consents import Consent, ConsentedDataset
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.errors import RunMismatch, SignatureInvalid
from sealtrain.manifest.checks.collaborations.cut import CutTerms, check_received
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.collaborations.cut import Cut
from sealtrain.signing.target import Target

pytestmark = pytest.mark.claim("C84")

START, UNTIL = 1_790_000_000, 1_790_000_500
RUN_ID = "5a" * 16
A, B = "hospital-a", "hospital-b"
TARGET = Target(app_id="22" * 20, compose_hash=digest("compose"), recipe_hash=digest("recipe"))
CONSORTIUM = founded("cut", (A, B))


def dataset(owner: str, records: int | None = 40) -> DatasetManifest:
    return DatasetManifest.model_validate(
        {
            "version": 1,
            "dataset_id": digest(f"dataset {owner}", 16),
            "name": "records",
            "owner": owner,
            "owner_id": identity(owner).public.owner_id,
            "root": digest(f"root {owner}"),
            "shards": 1,
            "records": records,
            "tokens": None,
            "schema_digest": digest("schema"),
            "app_id": TARGET.app_id,
            "compose_hash": TARGET.compose_hash,
            "sealed_at": to_rfc3339(START),
            "previous": None,
        }
    )


TERMS = CutTerms(
    how=Cut(kind="cut", policy="policy.yaml", layers=2, spf_share=0.05, wire="int8"),
    consortium=CONSORTIUM,
    run_id=RUN_ID,
    target=TARGET,
    owners=(A, B),
    parties={A: UNTIL, B: UNTIL},
    started=START,
    datasets=(dataset(A), dataset(B)),
)


def consent(owner: str, *, signer: str | None = None, **changed: Any) -> dict[str, Any]:
    held = dataset(owner)
    pinned: dict[str, Any] = {
        "dataset_id": held.dataset_id,
        "name": held.name,
        "root": held.root,
        "rows": 40,
    }
    values: dict[str, Any] = {
        "datasets": [ConsentedDataset(**pinned | changed.pop("pinned", {}))],
        "run_id": RUN_ID,
        "target": TARGET,
        "consortium_id": CONSORTIUM.consortium_id,
        "owner": identity(owner).public,
        "signed_at": START + 20,
    }
    return sign_owned(Consent.of(**values | changed), identity(signer or owner).signer).to_dict()


def came(owner: str, rows: int = 40) -> dict[str, Any]:
    return {
        "party": owner,
        "dataset_id": dataset(owner).dataset_id,
        "rows": rows,
        "messages": 1,
        "bytes": 9000,
        "digest": digest(f"messages {owner}"),
    }


def log() -> list[dict[str, Any]]:
    events: list[tuple[str, dict[str, Any]]] = [
        ("run.started", {}),
        ("cut.begun", {"layers": 2, "wire": "int8", "spf_share": 0.05}),
        ("cut.joined", {"party": A, "consent": consent(A)}),
        ("cut.joined", {"party": B, "consent": consent(B)}),
        ("cut.received", came(A)),
        ("cut.received", came(B, 24)),
        ("cut.finished", {"entries": 12}),
        ("training.finished", {}),
    ]
    return [{"event": event, "fields": fields} for event, fields in events]


def test_an_honest_log_says_what_came() -> None:
    found = check_received(log(), TERMS)
    assert (sorted(found.consents), found.rows, found.entries) == ([A, B], 64, 12)


def changed(number: int, **fields: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(entries: list[dict[str, Any]]) -> None:
        entries[number]["fields"] |= fields

    return change


def dropped(number: int) -> Callable[[list[dict[str, Any]]], None]:
    return lambda entries: entries.__delitem__(number)


def twice(number: int) -> Callable[[list[dict[str, Any]]], None]:
    return lambda entries: entries.insert(number, copy.deepcopy(entries[number]))


def swapped(one: int, other: int) -> Callable[[list[dict[str, Any]]], None]:
    def change(entries: list[dict[str, Any]]) -> None:
        entries[one], entries[other] = entries[other], entries[one]

    return change


def named(number: int, event: str) -> Callable[[list[dict[str, Any]]], None]:
    return lambda entries: entries[number].update(event=event)


ORDER = "cut.begun → cut.joined → cut.received → cut.finished"


def settings(**changes: object) -> dict[str, str]:
    return {"got": str({"layers": 2, "wire": "int8", "spf_share": 0.05} | changes)}


def records(found: int, of: str, allowed: int) -> dict[str, str]:
    return {"got": f"{found} records of {of}", "expected": f"at most {allowed} of {A}"}


CONTRADICTIONS: list[tuple[Callable[[list[dict[str, Any]]], None], dict[str, str]]] = [
    (changed(1, layers=1), settings(layers=1)),
    (changed(1, wire="bfloat16"), settings(wire="bfloat16")),
    (changed(1, spf_share=0.0), settings(spf_share=0.0)),
    (changed(1, more=1), {"check": "cut.begun", "field": "more"}),
    (dropped(1), {"expected": ORDER}),
    (twice(1), {"expected": ORDER}),
    (dropped(6), {"expected": ORDER}),
    (swapped(3, 4), {"expected": ORDER}),
    (named(4, "cut.sent"), {"got": "cut.sent"}),
    (dropped(3), {"got": str([A])}),
    (twice(3), {"got": B, "expected": B}),
    (changed(2, party=B), {"got": A, "expected": B}),
    (
        changed(2, consent=consent(A, signed_at=START - 301)),
        {"got": to_rfc3339(START - 301)},
    ),
    (
        changed(2, consent=consent(A, signed_at=UNTIL + 301)),
        {"got": to_rfc3339(UNTIL + 301)},
    ),
    (
        changed(2, consent=consent(A, pinned={"root": digest("older")})),
        {"got": "2", "expected": "2"},
    ),
    (
        changed(2, consent=consent(A, pinned={"dataset_id": "ab" * 16})),
        {"got": "2", "expected": "2"},
    ),
    (changed(2, consent=consent(A, pinned={"rows": 41})), records(40, A, 40)),
    (changed(2, consent=consent(A, pinned={"rows": 39})), records(40, A, 39)),
    (dropped(4), {"got": "1"}),
    (twice(4), {"got": "3"}),
    (changed(4, rows=41), records(41, A, 40)),
    (changed(4, party=B), records(40, B, 40)),
    (changed(4, rows=-1), {"check": "cut.received", "field": "rows"}),
    (changed(4, digest="00"), {"check": "cut.received", "field": "digest"}),
    (changed(6, entries="many"), {"check": "cut.finished", "field": "entries"}),
]


def counted(**parts: int) -> dict[str, Any]:
    counts = {"records": 41, "whole": 37, "truncated": 3, "filtered": 0, "empty": 1} | parts
    return {"event": "data.counted", "fields": {dataset(A).dataset_id: counts}}


@pytest.mark.claim("C616")
@pytest.mark.negative(101)
def test_as_many_records_count_as_train_as_their_owner_consented_to_send() -> None:
    hidden = {"event": "data.counted", "fields": {dataset(A).dataset_id: None}}
    for honest in (counted(), hidden):
        assert check_received([*log(), honest], TERMS).rows == 64
    for lie in (counted(whole=38, empty=0), counted(truncated=2, empty=2)):
        with pytest.raises(ClaimContradicted, check=carries(check="collaboration")):
            check_received([*log(), lie], TERMS)


@pytest.mark.parametrize(("change", "said"), CONTRADICTIONS)
def test_a_log_that_contradicts_is_refused(
    change: Callable[[list[dict[str, Any]]], None], said: dict[str, str]
) -> None:
    entries = log()
    change(entries)
    with pytest.raises(ClaimContradicted, check=carries(**said)):
        check_received(entries, TERMS)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (consent(A, run_id="77" * 16), RunMismatch),
        (consent(A, target=replace(TARGET, recipe_hash=digest("another"))), RunMismatch),
        (consent(A, target=replace(TARGET, compose_hash=digest("another"))), RunMismatch),
        (consent(A) | {"payload": consent(A)["payload"]}, SignatureInvalid),
    ],
)
def test_a_consent_to_something_else_or_forged_is_refused(
    given: dict[str, Any], kind: type[Exception]
) -> None:
    entries = log()
    entries[2]["fields"]["consent"] = given
    with pytest.raises(kind):
        check_received(entries, TERMS)


def test_parties_of_the_manifest_are_those_who_consented() -> None:
    with pytest.raises(ClaimContradicted, check=carries(check="collaboration")):
        check_received(log(), replace(TERMS, parties={A: UNTIL}))
    with pytest.raises(ClaimContradicted, check=carries(check="collaboration")):
        check_received(log(), replace(TERMS, owners=(A, B, "hospital-c")))


def test_an_owner_may_keep_its_number_of_records_private() -> None:
    terms = replace(TERMS, datasets=(dataset(A, None), dataset(B)))
    assert check_received(log(), terms).rows == 64
