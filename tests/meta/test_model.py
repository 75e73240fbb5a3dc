"""The model of releases names claims that exist, and every fault that it can be given is found."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "model"))

from explore import FAULTS, MODEL, claims_of, search  # noqa: E402

PAGE = MODEL.with_name("README.md").read_text("utf-8")
TEXT = MODEL.read_text("utf-8")


def test_assertions_name_claims_that_stand() -> None:
    stand = set(re.findall(r"^\| (C\d+) \|", (ROOT / "spec/claims.md").read_text("utf-8"), re.M))
    assert claims_of(TEXT)
    assert set(claims_of(TEXT)) <= stand
    assert set(claims_of(TEXT)) <= set(re.findall(r"\bC\d+\b", PAGE))


def test_page_and_searches_have_every_fault() -> None:
    faults = set(re.findall(r"\bFAULT_[A-Z]+\b", TEXT))
    assert set(re.findall(r"\bFAULT_[A-Z]+\b", PAGE)) == faults
    assert {word for fault in FAULTS for word in fault.words if word.startswith("FAULT_")} == faults


@pytest.mark.needs("spin", "compiler")
def test_a_rule_that_is_taken_away_is_missed(tmp_path: Path) -> None:
    found = search(FAULTS[0], tmp_path)
    assert found.violated is not None
    assert not found.whole
