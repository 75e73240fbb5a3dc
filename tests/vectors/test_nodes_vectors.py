"""Runs of several nodes against vectors of an independent generator (tools/vectorgen)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.clock import from_rfc3339
from sealtrain.errors import UsageError
from sealtrain.manifest.checks.collaborations.nodes import NodesTerms, meetings_hold
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.signing.parties import node_run_id

pytestmark = pytest.mark.claim("C163", "C762")

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "nodes"


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["cases"]
    assert found
    return found


def terms(vector: dict[str, Any]) -> NodesTerms:
    others = {name: tuple(vector[name]) for name in ("resume_nodes", "resume_ranks")}
    named = {name: vector[name] for name in ("run_id", "nodes", "ranks", "world_size")}
    return NodesTerms(**named, **others)


@pytest.mark.parametrize("vector", vectors("run_ids"), ids=lambda vector: vector["name"])
def test_a_nodes_run_id_is_the_vectors(vector: dict[str, Any]) -> None:
    assert node_run_id(vector["run_id"], vector["session"], vector["node"]) == vector["own"]


def test_no_two_nodes_sessions_or_runs_share_an_id() -> None:
    ids = [vector["own"] for vector in vectors("run_ids")]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("run_id", "session", "node"),
    [
        ("5A" * 16, "5a" * 16, 1),
        ("5a" * 16, "5a" * 15, 1),
        ("5a" * 16, "5a" * 16, 0),
        ("5a" * 16, "5a" * 16, -1),
    ],
)
def test_what_is_no_node_of_a_session_has_no_id(run_id: str, session: str, node: int) -> None:
    with pytest.raises(UsageError):
        node_run_id(run_id, session, node)


@pytest.mark.parametrize("vector", vectors("run_logs"), ids=lambda vector: vector["name"])
def test_a_run_log_is_taken_or_refused_as_the_vector_says(vector: dict[str, Any]) -> None:
    if vector["outcome"] != "ok":
        with pytest.raises(ClaimContradicted):
            meetings_hold(vector["entries"], terms(vector))
        return
    meetings = meetings_hold(vector["entries"], terms(vector))
    began = [entry for entry in vector["entries"] if entry["event"] == "nodes.joined"]
    assert [meeting.joined.session for meeting in meetings] == [
        entry["fields"]["session"] for entry in began
    ]
    ended = next(entry for entry in vector["entries"] if entry["event"] == "training.finished")
    assert meetings[-1].until == from_rfc3339(ended["at"])


def test_a_node_counts_until_the_last_entry_before_the_run_went_on() -> None:
    vector = next(vector for vector in vectors("run_logs") if vector["name"] == "interrupted once")
    first, _second = meetings_hold(vector["entries"], terms(vector))
    sealed = next(entry for entry in vector["entries"] if entry["event"] == "checkpoint.sealed")
    assert first.until == from_rfc3339(sealed["at"])


def test_a_second_run_of_the_generator_writes_the_same(repository: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, repository / "tools/vectorgen/nodes.py", tmp_path],
        check=True,
        timeout=60,
    )
    for path in FOLDER.glob("*.json"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
