"""Vector files have the shape that ``vectors/README.md`` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "vectors"
FILES = sorted(FOLDER.rglob("*.json"))
CASES = ("cases", "vectors", "malformed", "well_formed", "read", "refused")
WITHOUT = {
    "evidence/event-log.json",
    "ledger/tree.json",
    "one-time-pads/pads.json",
    "sealed-file/roots.json",
}
"""Files whose lists have names of their own, after what they hold."""


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def named(path: Path) -> str:
    return path.relative_to(FOLDER).as_posix()


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_file_is_one_object_with_cases(path: Path) -> None:
    found = json.loads(path.read_bytes(), object_pairs_hook=unique)
    assert isinstance(found, dict)
    listed = [found[word] for word in CASES if word in found]
    if named(path) in WITHOUT:
        assert not listed
        listed = [part for part in found.values() if isinstance(part, list)]
    elif named(path) == "approvals/series.json":
        listed = [found["chains"], found["forms"]]
    assert listed
    assert all(isinstance(cases, (list, dict)) and cases for cases in listed)
