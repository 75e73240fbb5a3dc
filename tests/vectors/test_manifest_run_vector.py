"""Both verifiers end whole runs as their vectors say: a recorded one, and one made without us."""

from __future__ import annotations

import ast
import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from second_verifier import Question, compare, first_refusal, own_answer

from sealtrain.manifest.trust import parse_trust

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "vectors" / "manifest"
RUNS = {name: json.loads((FOLDER / f"{name}.json").read_text("utf-8")) for name in ("run", "whole")}
CASES = [(run, case) for run, document in RUNS.items() for case in document["cases"]]


def asked_of(run: str, case: dict[str, Any], folder: Path) -> Question:
    shared = RUNS[run]
    for name, text in shared["files"].items():
        data = bytearray(base64.b64decode(text))
        if name == case.get("changed"):
            data[-1] ^= 1
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Question(
        label=case["name"],
        manifest=case.get("manifest", shared.get("manifest")).encode(),
        trust=parse_trust(shared["trust"] | case.get("trust", {})),
        artefacts=folder,
        now=shared["now"],
    )


@pytest.mark.parametrize(
    ("run", "case"), CASES, ids=lambda one: one["name"] if isinstance(one, dict) else one
)
def test_a_whole_run_ends_as_it_says(run: str, case: dict[str, Any], tmp_path: Path) -> None:
    report = own_answer(asked_of(run, case, tmp_path))
    ended = "ok" if report.accepted else " ".join(map(str, first_refusal(report)))
    assert ended == case["outcome"]


def test_whole_runs_end_alike_for_both_verifiers(tmp_path: Path) -> None:
    asked = [asked_of(run, case, tmp_path / str(at)) for at, (run, case) in enumerate(CASES)]
    comparison = compare(asked)
    assert comparison.disagreements == ()
    assert comparison.crashes == ()
    assert comparison.undecided.total() == 0
    assert comparison.asked == len(CASES)


def test_the_generator_imports_nothing_of_ours() -> None:
    generators = REPOSITORY / "tools/vectorgen"
    pending, read = ["whole_run"], set[str]()
    while pending:
        name = pending.pop()
        if name in read:
            continue
        read.add(name)
        for node in ast.walk(ast.parse((generators / f"{name}.py").read_text("utf-8"))):
            imported = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(text.startswith("sealtrain") for text in imported), name
            pending += [value for value in imported if (generators / f"{value}.py").is_file()]


@pytest.mark.nightly
def test_the_generator_writes_the_run_that_is_kept(tmp_path: Path) -> None:
    script = REPOSITORY / "tools/vectorgen/whole_run.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    assert (tmp_path / "whole.json").read_bytes() == (FOLDER / "whole.json").read_bytes()
