"""What people are shown of the records that trained: the manifest's claim, in every place alike."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from manifest_world import World, counting
from typer.testing import CliRunner
from world import OWNERS, digest, identity

from sealtrain.cli import app
from sealtrain.manifest import form
from sealtrain.manifest.trainedrecords import StatedRecords, read_stated, records_in_words

pytestmark = pytest.mark.claim("C582")

TRAINED = {owner: digest(f"dataset {owner} biopsies", 16) for owner in OWNERS}
MOST = {"records": 152, "whole": 140, "truncated": 4, "filtered": 3, "empty": 5}
HALF = {"records": 152, "whole": 70, "truncated": 6, "filtered": 0, "empty": 76}


def stated(manifest: bytes) -> StatedRecords:
    return read_stated(form.read(manifest).predicate)


def every(counts: dict[str, int] | None) -> dict[str, Any]:
    return dict.fromkeys(TRAINED.values(), counts)


@pytest.mark.parametrize(
    ("counts", "limits"), [(MOST, []), (HALF, ["records-left-out"]), (None, [])]
)
def test_each_dataset_that_trains_has_its_counts(
    world: World, counts: dict[str, int] | None, limits: list[str]
) -> None:
    said = stated(counting(world, every(counts))).to_dict()
    assert [
        (record["owner"], record["dataset"], record["counts"]) for record in said["records"]
    ] == [(owner, "biopsies", counts) for owner in sorted(OWNERS)]
    assert said["limits_of_records"] == limits


def test_a_run_that_counts_nothing_says_so(world: World, honest: bytes) -> None:
    said = stated(honest).to_dict()
    assert [record["counts"] for record in said["records"]] == [None] * len(OWNERS)
    assert said["limits_of_records"] == ["records-not-counted"]
    one = next(iter(TRAINED.values()))
    words = [records_in_words(counted, one) for counted in ({}, {one: None}, {one: MOST})]
    assert len(set(words)) == 3
    assert all(f"{MOST[part]} " in words[2] for part in MOST if part != "records")


@pytest.mark.parametrize(
    "fields",
    [
        every({**MOST, "whole": "<b>140</b>"}),  # type: ignore[dict-item]
        every({**MOST, "left": 1}),
        every({"records": 152}),
        {"no id": MOST},
        [],
        None,
    ],
)
def test_what_no_guest_writes_is_passed_over(world: World, honest: bytes, fields: Any) -> None:
    predicate = form.read(honest).predicate
    entry = {"seq": 9, "at": predicate.run.finished_at, "event": "data.counted", "fields": fields}
    log = predicate.run_log.model_copy(update={"entries": (*predicate.run_log.entries, entry)})
    lock = {**predicate.recipe.lock, "recipe": {"datasets": [fields, {"role": "train"}]}}
    found = read_stated(predicate.model_copy(update={"run_log": log}))
    assert [dataset.counts for dataset in found.datasets] == [None] * len(OWNERS)
    assert not read_stated(
        predicate.model_copy(
            update={
                "recipe": predicate.recipe.model_copy(update={"lock": lock}),
                "datasets": (*predicate.datasets, {}),
            }
        )
    ).datasets


def answer(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_inspect_and_open_show_what_the_manifest_says(world: World, tmp_path: Path) -> None:
    run = shutil.copytree(world.artefacts, tmp_path / "run")
    manifest = counting(world, every(HALF))
    (run / "manifest.json").write_bytes(manifest)
    expected = stated(manifest).to_dict()
    mine, _ = identity(OWNERS[0]).save_pair(tmp_path / "keys")
    opened = answer("open", run, "--identity", mine, "--out", tmp_path / "opened")
    for said in (opened, answer("inspect", run), answer("inspect", run / "manifest.json")):
        assert said["run_id"] == form.read(manifest).predicate.run.run_id
        assert {name: said[name] for name in expected} == expected
