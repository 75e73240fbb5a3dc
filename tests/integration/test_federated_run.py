"""Lead and parties as real processes: one is killed and joins again, and a manifest says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from federated_stage import RECIPE, Stage, stage
from federated_world import Relay
from language_world import BERT
from manifest_world import FEDERATED
from world import OWNERS

from sealtrain.base.clock import system_clock
from sealtrain.manifest import form
from sealtrain.manifest.verify import verify_manifest

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.claim("C75", "C76"),
    pytest.mark.timeout(280),
]

HIDING: dict[str, Any] = {
    "phase": "classify",
    "model": {"config": BERT, "init_seed": 3, "tokenizer": {"kind": "bytes"}},
    "columns": {"text": "note", "label": "finding"},
    "datasets": [  # the first owner has a name of its own for the column
        *(
            {"owner": owner, "name": "biopsies", "role": "train"}
            | ({"columns": {"pid": "whose"}} if owner == OWNERS[0] else {})
            for owner in OWNERS
        ),
        {"owner": OWNERS[0], "name": "biopsies-test", "role": "test"},
    ],
    "labels": ["benign", "malignant"],
    "trainer": {"max_steps": 4, "per_device_train_batch_size": 8, "max_length": 32},
    "peft": {"method": "lora", "r": 2, "target_modules": ["query", "value"]},
    "release_policy": RECIPE["release_policy"] | {"metrics": ["accuracy"]},
    "collaboration": FEDERATED | {
        "rounds": 4,
        "local_steps": 1,
        "aggregation": "ffa",
        "patient_privacy": {
            "patient": "whose",
            "records_a_patient": 2,
            "patients_a_round": 6,
            "target_epsilon": 20.0,
            "delta": 1e-3,
            "accountant": "rdp",
        },
    },
}  # fmt: skip


def visits(owner: str) -> str:
    """Two visits of each of five patients, and a sixth who came five times."""
    whose = [f"{owner} {number % 5}" for number in range(10)] + [f"{owner} 5"] * 5
    name = "pid" if owner == OWNERS[0] else "whose"
    rows = (
        {"note": f"visit {number}", "finding": ("benign", "malignant")[number % 2], name: owner}
        for number, owner in enumerate(whose)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


def met(made: Stage) -> tuple[Relay, str]:
    """Lead and all parties as processes, what carries their messages, and the run's id."""
    made.lead()
    run_id = made.said("lead", "federation ready").rsplit(" ", 1)[-1]
    relay = Relay(made.relay("lead"), [made.relay(owner) for owner in OWNERS])
    for owner in OWNERS:
        made.join(owner, run_id)
    return relay, run_id


@pytest.mark.claim("C78")
def test_rounds_that_hide_patients_say_their_price_and_no_figure(tmp_path: Path) -> None:
    with stage(tmp_path, rows=visits, **HIDING) as made:
        relay, _ = met(made)
        made.said(OWNERS[2], "round 1")
        made.parts[OWNERS[2]].kill()
        outcome = made.ended("lead")
        relay.close()
        assert outcome["metrics"].keys() == {"accuracy"}
        manifest = Path(outcome["manifest"])
        found = verify_manifest(
            manifest.read_bytes(), made.at.trust(), artefacts=manifest.parent, now=system_clock()
        )
        privacy = found.predicate.privacy.to_dict()
        assert (privacy["dp"], privacy["rounds"], privacy["sample_rate"]) == ("patients", 4, 1 / 3)
        assert 0 < privacy["epsilon"] <= 20
        assert {"name": OWNERS[0], "patients": 6} in privacy["parties"]
        details = {check.name: check.detail for check in found.checks}
        assert "for one patient of one party" in details["collaboration"]
        entries = form.read(manifest.read_bytes()).predicate.run_log.entries
        given = [entry["fields"] for entry in entries if entry["event"] == "update.taken"]
        assert given
        assert {(argument["digest"], argument["norm"]) for argument in given} == {(None, None)}
        assert "loss" not in json.dumps(entries)
        # Records were judged, and no exact count of them is told.
        (counted,) = [entry["fields"] for entry in entries if entry["event"] == "data.counted"]
        assert len(counted) == len(privacy["parties"])
        assert set(counted.values()) == {None}


@pytest.mark.nightly
def test_a_federation_of_processes_ends_in_a_manifest_that_verifies(tmp_path: Path) -> None:
    how = FEDERATED | {"rounds": 6, "local_steps": 2, "aggregation": "exact", "min_parties": 2}
    with stage(tmp_path, collaboration=how) as made:
        relay, run_id = met(made)
        made.said("lead", "round 1 of 6")
        lost = OWNERS[2]
        made.parts[lost].kill()
        made.join(lost, run_id)
        outcome = made.ended("lead")
        relay.close()
        rounds = {owner: made.ended(owner)["rounds"] for owner in OWNERS[:2]}
        assert list(rounds.values()) == [[1, 2, 3, 4, 5, 6]] * 2

        manifest = Path(outcome["manifest"])
        found = verify_manifest(
            manifest.read_bytes(), made.at.trust(), artefacts=manifest.parent, now=system_clock()
        )
        assert found.predicate.collaboration is not None
        entries = form.read(manifest.read_bytes()).predicate.run_log.entries
        merges = [
            entry["fields"]["parties"] for entry in entries if entry["event"] == "round.merged"
        ]
        left = [entry["fields"]["party"] for entry in entries if entry["event"] == "party.left"]
        assert len(merges) == 6
        assert merges[0] == list(OWNERS)
        assert left == [lost]
        assert outcome["metrics"].keys() == {"loss"}
        # Who carried it knows the recipe, out of the evidence, and no record, tensor or receipt.
        carried = b"".join(relay.seen)
        assert len(carried) > 100_000
        for word in (b"hospital-a 0", b"lora_A", b'"F32"', b'"receipt"'):
            assert word not in carried
