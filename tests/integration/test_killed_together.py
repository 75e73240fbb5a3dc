"""Every role of a federation is killed at random moments, and the run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.claim("C224", "C226", "C265")
def test_a_federation_outlives_each_of_its_roles(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    script = repository / "examples" / "killed_together.py"
    done = subprocess.run(
        [sys.executable, str(script), "--seed", "1", "--json", "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert {killed["role"] for killed in told["killed"]} >= {"lead", "supernode", "superlink"}
    assert told["codes"] == ["peer-unreachable"]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.claim("C246", "C263", "C264", "C275", "C276")
@pytest.mark.parametrize(
    ("kind", "roles"),
    [
        (
            "travelling",
            {
                "orchestrator at once",
                "orchestrator",
                "standby",
                "accelerator",
                "library-a",
                "library-b",
                "library-c",
            },
        ),
        ("pads", {"guest", "accelerator", "dealer"}),
        (
            "cut",
            {
                "server",
                "client clinic-a",
                "client clinic-b",
                "operator's older state",
                "all at once",
            },
        ),
    ],
)
def test_a_run_together_outlives_its_roles_or_says_what_died(
    repository: Path, tmp_path: Path, kind: str, roles: set[str]
) -> None:
    script = repository / "examples" / "killed_together.py"
    out = str(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, str(script), "--kind", kind, "--seed", "1", "--json", "--out", out],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert {killed["role"] for killed in told["killed"]} == roles
    assert told["held"]
