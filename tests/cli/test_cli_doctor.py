"""``sealtrain doctor``: a report about a machine, never a failure because of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sealtrain.base.clock import system_clock
from sealtrain.cli import app
from sealtrain.errors import TrustInvalid, UsageError
from sealtrain_rehearsal.simulator.server import running
from sealtrain_rehearsal.simulator.state import HONEST, ensure

COMPOSE = b'{"name": "doctor"}\n'


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["doctor", *map(str, words)])


def data(*words: str | Path) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_an_empty_machine_is_reported_and_exits_0(tmp_path: Path) -> None:
    found = data("--root", tmp_path)
    assert found["tee"] is None
    topics = list(dict.fromkeys(each["topic"] for each in found["findings"]))
    assert topics == ["tee", "gpu", "clock", "memory", "software"]
    assert all(
        list(each) == ["topic", "name", "level", "found", "refused", "fix"]
        for each in found["findings"]
    )
    text = run("--root", tmp_path)
    assert text.exit_code == 0
    for each in found["findings"]:
        assert each["fix"] is None or each["fix"] in text.stdout


def test_this_machine_can_be_looked_at() -> None:
    found = data("--policy", "preset:snp-genoa")
    assert {"ok", "note", "refused", "missing"} >= {each["level"] for each in found["findings"]}
    assert [each["name"] for each in found["findings"] if each["topic"] == "policy"][:4] == [
        "platform",
        "tier",
        "root",
        "cpu.tee",
    ]


def test_a_guest_is_held_against_a_policy_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    compose, state = tmp_path / "app-compose.json", tmp_path / "state"
    compose.write_bytes(COMPOSE)
    policy = tmp_path / "policy.yaml"
    opened = ensure(state, system_clock())
    policy.write_text(yaml.safe_dump(opened.policy(HONEST).to_dict()))
    with running(tmp_path / "run/dstack.sock", compose, state):
        alone = data("--root", tmp_path, "--policy", policy)
        whole = data(
            "--root", tmp_path, "--policy", policy, "--collateral", f"file:{state}/collateral.json"
        )
        refused = data("--root", tmp_path, "--policy", "preset:dstack-h100")

    def levels(found: Any) -> dict[str, str]:
        return {each["name"]: each["level"] for each in found["findings"]}

    assert alone["tee"] == "dstack"
    assert levels(alone)["cpu.tcb_status"] == "note"
    assert levels(whole)["cpu.tcb_status"] == "ok"
    assert levels(refused)["root"] == levels(refused)["gpu.gpu_count"] == "refused"
    assert levels(refused)["cpu.measurements"] == "refused"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--root", "/no/such/folder"], UsageError),
        (["--policy", "/no/such/policy.yaml"], TrustInvalid),
        (["--policy", "preset:nothing"], UsageError),
        (["--collateral", "ftp://nowhere"], TrustInvalid),
        (["--gpu-collateral", "https://nowhere"], TrustInvalid),
    ],
    ids=lambda value: str(value),
)
def test_usage_is_the_only_failure(words: list[str], error: type[Exception]) -> None:
    result = run(*words)
    assert type(result.exception) is error
    assert result.exception.exit_code == 2
    assert result.stdout == ""


def test_nothing_heavy_is_imported_to_say_which_version_it_has(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from sealtrain.attest.doctor.look import look\n"
        "found = look(pathlib.Path(sys.argv[1]), now=1_800_000_000)\n"
        "assert any(each.name == 'torch' for each in found.findings)\n"
        "heavy = {'torch', 'transformers', 'boto3', 'fastapi', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
