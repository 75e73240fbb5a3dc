"""Both verifiers end the recorded run as its vector says."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from second_verifier import Question, compare

from sealtrain.manifest.trust import parse_trust

RUN: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[2] / "vectors/manifest/run.json").read_text("utf-8")
)


@pytest.mark.parametrize("case", RUN["cases"], ids=lambda case: case["name"])
def test_a_whole_run_ends_as_it_says_for_both_verifiers(
    case: dict[str, Any], tmp_path: Path
) -> None:
    for name, text in RUN["files"].items():
        data = bytearray(base64.b64decode(text))
        if name == case.get("file"):
            data[-1] ^= 1
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    asked = Question(
        label=case["name"],
        manifest=RUN["manifest"].encode(),
        trust=parse_trust(RUN["trust"] | case.get("trust", {})),
        artefacts=tmp_path,
        now=RUN["now"],
    )
    comparison = compare([asked])
    assert comparison.disagreements == ()
    assert comparison.undecided.total() == 0
    expected = "verified" if case["outcome"] == "ok" else case["outcome"]
    assert comparison.verdicts == {expected: 1}
