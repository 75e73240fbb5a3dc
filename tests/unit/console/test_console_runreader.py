"""Runs on this machine are read once each, found by their id, and read again when they change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from manifest_world import RUN_ID, World, make_world

from sealtrain_console.web.runfolders import chains_of, run_paths
from sealtrain_console.web.runreader import RunReader

pytestmark = pytest.mark.claim("C692")
OTHER = "7e" * 16
LIVE = {
    "version": 1,
    "run_id": OTHER,
    "lock": "recipe.lock.json",
    "platform": "simulator",
    "guest": "guest.sock",
    "collateral": None,
    "gpu_collateral": None,
    "brokers": [],
    "data": [],
    "base": ".",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def completed(folder: Path, data: bytes) -> Path:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(data)
    return folder


def live(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(LIVE))
    return folder


def test_folders_and_manifests_are_found_by_their_id(world: World, tmp_path: Path) -> None:
    done = completed(tmp_path / "runs/done", world.manifest())
    going = live(tmp_path / "runs/going")
    alone = tmp_path / "alone.json"
    alone.write_bytes(world.manifest())
    places = [tmp_path / "runs", alone]
    reader = RunReader()
    assert {run.path for run in reader.find(places, RUN_ID)} == {done, alone}
    assert [run.path for run in reader.find(places, OTHER)] == [going]
    assert reader.find(places, "00" * 16) == []
    summaries = {run.path: run for run in reader.summaries(run_paths(places))}
    assert summaries[going].running
    assert [run.running for run in (summaries[done], summaries[alone])] == [False, False]
    assert summaries[done].completed == summaries[alone].completed
    assert summaries[done].completed is not None
    assert chains_of([*summaries.values()]) == []


def test_a_folder_with_another_runs_manifest_is_neither_run(world: World, tmp_path: Path) -> None:
    folder = live(tmp_path / "runs/going")
    (folder / "manifest.json").write_bytes(world.manifest())
    reader = RunReader()
    for run_id in (RUN_ID, OTHER):
        assert reader.find([tmp_path / "runs"], run_id) == []
    [summary] = reader.summaries([folder])
    assert summary.error is not None
    assert summary.error.code == "claim-contradicted"


def test_what_changes_is_read_again(world: World, tmp_path: Path) -> None:
    folder = live(tmp_path / "runs/going")
    reader = RunReader()
    [before] = reader.summaries([folder])
    assert before.completed is None
    assert reader.summaries([folder])[0] is before
    (folder / "run.json").write_text(json.dumps(LIVE | {"run_id": RUN_ID}))
    (folder / "manifest.json").write_bytes(world.manifest())
    [after] = reader.summaries([folder])
    assert after.completed is not None
    assert [run.path for run in reader.find([folder], RUN_ID)] == [folder]
    (folder / "manifest.json").write_bytes(b"{")
    assert reader.summaries([folder])[0].error is not None
    shutil.rmtree(folder)
    assert reader.find([tmp_path / "runs"], RUN_ID) == []


@pytest.mark.parametrize("data", [b"", b"[" * 100_000, b"[]", b'{"bundle": {"dsseEnvelope": 3}}'])
def test_a_manifest_of_no_form_is_no_run_and_has_its_error(data: bytes, tmp_path: Path) -> None:
    folder = completed(tmp_path / "runs/one", data)
    reader = RunReader()
    assert reader.find([tmp_path / "runs"], RUN_ID) == []
    [summary] = reader.summaries([folder])
    assert summary.error is not None
    assert summary.run_id is None


def test_the_newest_run_comes_first_and_no_file_is_read_for_it(tmp_path: Path) -> None:
    for number in range(1000):
        completed(tmp_path / f"runs/{number:04}", b"")
    paths = run_paths([tmp_path / "runs"])
    assert len(paths) == 1000
    assert len(RunReader().summaries(paths[:25])) == 25
