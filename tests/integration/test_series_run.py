"""A standing approval over a series, through the command line: three runs on data that grows."""

from __future__ import annotations

import base64
import copy
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from node_judges import node
from stage import RECIPE, Stage, records, stage

pytestmark = [
    pytest.mark.nightly,  # the same series in one process: test_series.py
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.claim("C187"),
    pytest.mark.claim("C188"),
]

ROOT = Path(__file__).resolve().parents[2]
A, B, C = "clinic-a", "clinic-b", "clinic-c"


def recipe() -> dict[str, Any]:
    found = copy.deepcopy(RECIPE)
    found["name"] = "nightly"
    found["datasets"] = [
        {"owner": A, "series": "notes", "role": "train"},
        {"owner": B, "series": "notes", "role": "train"},
        {"owner": C, "name": "notes", "role": "train"},
    ]
    found["trainer"] |= {"max_steps": 4, "logging_steps": 2, "save_steps": 2}
    found["release_policy"]["metrics"] = ["loss"]
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("ser")) as made:
        yield made


@pytest.fixture(scope="module")
def engineer(world: Stage) -> Path:

    folder = world.folder / "nightly"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe()))
    world.run("lock", folder / "recipe.yaml", "--broker", world.broker, "--out", folder)
    world.boot(folder)
    world.inputs.mkdir(exist_ok=True)
    (folder / "sealed").mkdir()
    return folder


def seal(world: Stage, engineer: Path, owner: str, number: int, *words: str | Path) -> Any:
    source = world.inputs / f"{owner}.{number}.jsonl"
    source.write_text(records(owner))
    return world.try_run(
        "seal", source, "--identity", world.identity(owner),
        "--deployment", engineer / "app-compose.json", "--broker", world.broker,
        "--out", engineer / "sealed" / f"{owner}.{number}.sealed", *words,
    )  # fmt: skip


def approve(world: Stage, engineer: Path, owner: str, *words: str) -> Any:
    return world.run(
        "approve", "--deployment", engineer / "app-compose.json",
        "--identity", world.identity(owner), "--broker", world.broker, "--yes", *words,
    )  # fmt: skip


@pytest.fixture(scope="module")
def begun(world: Stage, engineer: Path) -> Path:
    first = seal(world, engineer, A, 1, "--series", "notes", "--min-growth", "10").data
    assert (first["series"]["number"], first["series"]["mode"]) == (1, "append")
    replaces = ("--series", "notes", "--series-mode", "replace")
    assert seal(world, engineer, B, 1, *replaces).data["series"]["mode"] == "replace"
    assert seal(world, engineer, C, 1, "--name", "notes").code == 0
    series = ("--series", "notes")
    signed = approve(world, engineer, A, "--runs", "2", "--until", "2100-01-31", *series)
    assert signed["signed"]["runs"] == 2
    approve(world, engineer, B, "--runs", "5", *series)
    approve(world, engineer, C)
    world.run(*world.train_words(engineer, "run-1"))
    return world.folder / "run-1"


def predicate(run: Path) -> Any:
    manifest = json.loads((run / "manifest.json").read_bytes())
    return json.loads(base64.b64decode(manifest["bundle"]["dsseEnvelope"]["payload"]))["predicate"]


@pytest.fixture(scope="module")
def grown(world: Stage, engineer: Path, begun: Path) -> Path:
    """Both series grow by the owners' signatures alone; nobody approves anew."""
    second = seal(world, engineer, A, 2, "--series", "notes").data
    assert (second["series"]["number"], second["failed"]) == (2, [])
    after = ("--series", "notes", "--after", engineer / "sealed" / f"{B}.1.sealed")
    assert seal(world, engineer, B, 2, *after).data["series"]["number"] == 2
    withheld = world.folder / "withheld"
    shutil.move(engineer / "sealed" / f"{A}.2.sealed", withheld)
    answer = world.try_run(*world.train_words(engineer, "stale"))
    assert (answer.code, answer.error) == (3, "dataset-unknown")
    shutil.move(withheld, engineer / "sealed" / f"{A}.2.sealed")
    world.run(*world.train_words(engineer, "run-2"))
    return world.folder / "run-2"


@pytest.fixture(scope="module")
def trust(world: Stage, engineer: Path) -> Path:
    path = world.folder / "nightly.trust.yaml"
    world.run(
        "trust", "new", "--consortium", "consortium.json",
        "--deployment", engineer / "app-compose.json",
        "--policy", "policy.yaml", "--broker", world.broker, "--out", path,
    )  # fmt: skip
    return path


def test_each_run_reads_what_the_series_hold_and_says_so(
    world: Stage, begun: Path, grown: Path, trust: Path
) -> None:
    found = [
        {member["owner"]: member for member in predicate(run)["series"]} for run in (begun, grown)
    ]
    assert [len(value[A]["members"]) for value in found] == [1, 2]
    assert [len(value[B]["members"]) for value in found] == [1, 1]
    assert [len(value[B]["former"]) for value in found] == [0, 1]
    for run in (begun, grown):
        report = world.run("verify", run / "manifest.json", "--trust", trust)
        assert {check["outcome"] for check in report["checks"]} == {"passed"}


@pytest.mark.claim("C189")
@pytest.mark.needs("node")
def test_the_second_verifier_says_the_same(world: Stage, grown: Path, trust: Path) -> None:
    program = ROOT / "verify" / "node.js"
    done = subprocess.run(
        [
            str(node()),
            str(program),
            str(grown / "manifest.json"),
            str(trust),
            "--artefacts",
            str(grown),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
    )
    checks = {check["name"]: check["outcome"] for check in json.loads(done.stdout)["checks"]}
    assert "failed" not in checks.values()
    judged = ("form", "datasets", "releases", "approvals", "ledger")
    assert {checks[name] for name in judged} == {"passed"}


@pytest.mark.claim("C185")
def test_the_third_run_gets_no_key_and_everybody_sees_why(
    world: Stage, engineer: Path, grown: Path
) -> None:
    words = ("--deployment", engineer / "app-compose.json", "--broker", world.broker)
    shown = world.run("approvals", "status", *words, "--consortium", "consortium.json")
    (used,) = (share for share in next(iter(shown["standing"].values())) if share["owner"] == A)
    assert (used["runs_used"], used["runs"], used["until"]) == (2, 2, "2100-01-31T23:59:59Z")
    told = world.try_run("status", *words)
    assert (told.code, told.data["code"]) == (3, "approval-spent")
    answer = world.try_run(*world.train_words(engineer, "run-3"))
    assert (answer.code, answer.error) == (3, "approval-spent")
    audit = world.run("log", "audit", "--broker", world.broker, "--consortium", "consortium.json")
    assert audit["findings"] == []
