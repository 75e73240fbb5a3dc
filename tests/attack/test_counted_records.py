"""A manifest cannot say of its records what no guest counts: case by case, in both verifiers.

The attacker holds the guest's own key and lets a genuine (simulated) guest quote the statement.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from manifest_world import NOW, World, counting, make_world
from second_verifier import Question, compare
from world import OWNERS, RECIPE, digest

from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.errors import Refused
from sealtrain.manifest import form
from sealtrain.manifest.verify import examine, verify_manifest
from sealtrain.signing import dsse, statement

pytestmark = pytest.mark.claim("C571")

RECORDS = 152
TRAINED = [digest(f"dataset {owner} biopsies", 16) for owner in OWNERS]
TESTED = digest(f"dataset {OWNERS[0]} biopsies-test", 16)
HONEST = {"records": RECORDS, "whole": 140, "truncated": 4, "filtered": 0, "empty": 8}
HALF = {"records": RECORDS, "whole": 70, "truncated": 6, "filtered": 0, "empty": 76}


def world_of(folder: Path, **policy: Any) -> World:
    released = {**RECIPE["release_policy"], "logs": "structured"} | policy
    return make_world(folder, {**RECIPE, "release_policy": released})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world_of(tmp_path_factory.mktemp("open"))


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world_of(tmp_path_factory.mktemp("quiet"), logs="none")


def concealing(world: World, honest: bytes, limit: str) -> bytes:
    """The statement without a limit, signed by the guest's key and quoted by the guest."""
    document = json.loads(form.read(honest).signed_statement.payload)
    predicate = document["predicate"]
    predicate["limits"] = [
        each_limit for each_limit in predicate["limits"] if each_limit["id"] != limit
    ]
    payload, public = canonical_json(document), world.guest_key.public
    committed = form.commitment(payload, public, predicate["run_log"]["head"])
    evidence = world.evidence(Binding("manifest", committed))
    return form.write(
        dsse.sign(payload, statement.PAYLOAD_TYPE, world.guest_key),
        dsse.sign(evidence.to_bytes(), form.EVIDENCE_PAYLOAD_TYPE, world.guest_key),
        public,
    )


def every(counts: dict[str, int] | None) -> dict[str, Any]:
    return dict.fromkeys(TRAINED, counts)


def agreed(world: World, data: bytes) -> str:
    """What both verifiers say: ``verified``, or the first refused check and its code."""
    found = compare(
        [Question(label="", manifest=data, trust=world.trust(), artefacts=None, now=NOW)]
    )
    assert not found.disagreements
    assert not found.crashes
    (verdict,) = found.verdicts
    return verdict


def test_honest_counts_verify_in_one_entry_or_several(world: World, quiet: World) -> None:
    for data in (
        counting(world, every(HONEST)),
        counting(world, *({dataset: HONEST} for dataset in TRAINED)),
        counting(world),
    ):
        verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
        assert agreed(world, data) == "verified"
    assert agreed(quiet, counting(quiet, every(None))) == "verified"


LIES: dict[str, list[dict[str, Any]]] = {
    "more-trained": [every(HONEST | {"whole": 148})],
    "fewer-left-out": [every(HONEST | {"empty": 0})],
    "other-total": [every(HONEST | {"whole": 141, "records": RECORDS + 1})],
    "none-trained": [every(HONEST | {"whole": 0, "truncated": 0, "empty": RECORDS})],
    "withheld": [every(None)],
    "one-dataset-left-out": [dict.fromkeys(TRAINED[1:], HONEST)],
    "one-dataset-twice": [every(HONEST), {TRAINED[0]: HONEST}],
    "a-test-split": [every(HONEST) | {TESTED: HONEST}],
    "a-stranger": [dict.fromkeys([*TRAINED[1:], "ab" * 16], HONEST)],
}


@pytest.mark.negative(86)
@pytest.mark.parametrize("name", LIES)
def test_counts_that_do_not_fit_what_was_sealed_are_refused(world: World, name: str) -> None:
    data = counting(world, *LIES[name])
    with pytest.raises(Refused) as caught:
        verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)
    assert (caught.value.code, caught.value.check) == ("claim-contradicted", "counts")


@pytest.mark.negative(86)
def test_counts_that_the_recipe_keeps_in_are_refused(quiet: World) -> None:
    data = counting(quiet, every(HONEST))
    with pytest.raises(Refused) as caught:
        verify_manifest(data, quiet.trust(), artefacts=quiet.artefacts, now=NOW)
    assert (caught.value.code, caught.value.check) == ("egress-refused", "counts")


@pytest.mark.negative(87)
def test_that_half_of_the_records_did_not_train_cannot_be_concealed(world: World) -> None:
    honest = counting(world, every(HALF))
    report = verify_manifest(honest, world.trust(), artefacts=world.artefacts, now=NOW)
    hidden = concealing(world, counting(world, every(HALF)), "records-left-out")
    with pytest.raises(Refused) as caught:
        verify_manifest(hidden, world.trust(), artefacts=world.artefacts, now=NOW)
    assert caught.value.code == "claim-contradicted"
    # A reader is told of it all the same.
    concealed = examine(hidden, world.trust(), artefacts=world.artefacts, now=NOW)
    assert set(concealed.limits) == set(report.limits)
    few = verify_manifest(
        counting(world, every(HONEST)), world.trust(), artefacts=world.artefacts, now=NOW
    )
    assert len(report.limits) == len(few.limits) + 1


@pytest.mark.negative(96)
@pytest.mark.claim("C577")
def test_that_no_record_was_counted_cannot_be_concealed(world: World) -> None:
    silent = world.manifest()
    report = verify_manifest(silent, world.trust(), artefacts=world.artefacts, now=NOW)
    hidden = concealing(world, silent, "records-not-counted")
    with pytest.raises(Refused) as caught:
        verify_manifest(hidden, world.trust(), artefacts=world.artefacts, now=NOW)
    assert caught.value.code == "claim-contradicted"
    concealed = examine(hidden, world.trust(), artefacts=world.artefacts, now=NOW)
    assert set(concealed.limits) == set(report.limits)
    counted = verify_manifest(
        counting(world, every(HONEST)), world.trust(), artefacts=world.artefacts, now=NOW
    )
    assert set(counted.limits) < set(report.limits)


@pytest.mark.claim("C572")
def test_both_verifiers_list_the_same_open_limits(world: World) -> None:
    asked = [
        Question(
            label=name,
            manifest=counting(world, every(HALF)),
            trust=world.trust(**changed),
            artefacts=artefacts,
            now=NOW,
        )
        for name, changed, artefacts in (
            ("files unseen", {}, None),
            ("files seen", {}, world.artefacts),
            ("own brokers", {"brokers": world.brokers(world.broker, datasets="theirs")}, None),
            ("any recipe", {"compose_hash": "any", "app_id": "any"}, None),
        )
    ]
    found = compare(asked)
    assert found.verdicts == {"verified": len(asked)}
    assert found.disagreements == ()


@pytest.mark.long
def test_both_verifiers_end_each_lie_alike(world: World, quiet: World) -> None:
    for counted in LIES.values():
        assert agreed(world, counting(world, *counted)) == "policy claim-contradicted"
    assert agreed(quiet, counting(quiet, every(HONEST))) == "policy egress-refused"
    assert agreed(world, counting(world, every(HALF))) == "verified"
    hidden = concealing(world, counting(world, every(HALF)), "records-left-out")
    assert agreed(world, hidden) == "limits claim-contradicted"
