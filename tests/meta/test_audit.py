"""The audit of dependencies says what it found, or that it did not run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
Told = Callable[[list[dict[str, Any]]], str]


def loaded() -> ModuleType:
    path = REPOSITORY / "tools" / "audit.py"
    spec = importlib.util.spec_from_file_location("audit", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


AUDIT = loaded()


def played(folder: Path, told: Told) -> int:
    """The audit, whose pip-audit tells of each list what ``told`` makes of a clean answer."""
    program = folder / "bin" / "pip-audit"
    program.parent.mkdir(parents=True)
    program.touch()

    def run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        lines = Path(words[-1]).read_text("utf-8").splitlines()
        pinned = [line.split("==") for line in lines if not line.startswith("#")]
        clean = [{"name": name, "version": version, "vulns": []} for name, version in pinned]
        return subprocess.CompletedProcess(words, 1, told(clean), "")

    code: int = AUDIT.audit(folder, run=run)
    return code


def whole(answer: list[dict[str, Any]]) -> str:
    return json.dumps({"dependencies": answer})


def test_nothing_known_and_something_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played(tmp_path / "clean", whole) == 0
    capsys.readouterr()
    fault = {"id": "CVE-0000-1", "fix_versions": ["9.9"]}
    assert played(tmp_path / "a", lambda one: whole([{**one[0], "vulns": [fault]}, *one[1:]])) == 1
    assert "CVE-0000-1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "told",
    [
        lambda answer: "",  # no network
        lambda answer: "{}",
        lambda answer: whole(answer[1:]),  # one is left out
        lambda answer: whole([{"name": "a", "skip_reason": "unknown"}, *answer[1:]]),
        lambda answer: whole([{"name": "a", "version": "1"}, *answer[1:]]),
        lambda answer: json.dumps([1]),
    ],
    ids=["nothing", "no list", "short", "skipped", "no verdict", "no table"],
)
def test_an_answer_that_is_not_whole_is_no_audit(tmp_path: Path, told: Told) -> None:
    assert played(tmp_path / "a", told) == AUDIT.NOT_RUN


def test_without_pip_audit_nothing_is_said_to_be_sound(tmp_path: Path) -> None:
    def run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, 1, "", "no network")

    assert AUDIT.audit(tmp_path / "none", run=run) == AUDIT.NOT_RUN
