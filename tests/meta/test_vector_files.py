"""Vector files have the shape that ``vectors/README.md`` says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sealtrain.errors import error_by_code

FOLDER = Path(__file__).resolve().parents[2] / "vectors"
FILES = sorted(FOLDER.rglob("*.json"))
OTHER_NAMES = {"comment", "error", "result", "refused", "valid", "expect", "vectors"}
"""What ``name``, ``outcome`` and ``cases`` were called once, and no case is called any more."""
OF_A_TALLY = {"approvals/tallies.json": {"expect"}, "one-time-pads/products.json": {"result"}}


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def named(path: Path) -> str:
    return path.relative_to(FOLDER).as_posix()


def lists_of(found: dict[str, Any]) -> list[list[dict[str, Any]]]:
    cases = found["cases"]
    return [cases] if isinstance(cases, list) else list(cases.values())


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_file_is_one_object_with_cases(path: Path) -> None:
    found = json.loads(path.read_bytes(), object_pairs_hook=unique)
    assert isinstance(found, dict)
    for listed in lists_of(found):
        assert isinstance(listed, list)
        assert listed
        names = [case["name"] for case in listed if "name" in case]
        assert len(names) in (0, len(listed))
        assert len(set(names)) == len(names)
        for case in listed:
            assert set(case) & (OTHER_NAMES - OF_A_TALLY.get(named(path), set())) == set()


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_case_that_can_be_refused_ends_in_ok_or_a_code(path: Path) -> None:
    for listed in lists_of(json.loads(path.read_bytes())):
        judged = ["outcome" in case for case in listed]
        assert all(judged) or not any(judged)
        for outcome in (case["outcome"] for case in listed if "outcome" in case):
            if outcome != "ok" and isinstance(outcome, str):
                code = re.fullmatch(r"(?:[a-z-]+ )?([a-z-]+)", outcome)
                assert code is not None
                assert error_by_code(code[1]).code == code[1]


def said_of(path: Path) -> str:
    """The pages that say what a file's members are: the README, and those that name its folder."""
    spec = FOLDER.parent / "spec"
    folder = f"vectors/{path.parent.name}"
    pages = [page.read_text("utf-8") for page in sorted(spec.glob("*.md"))]
    return "\n".join(
        [(FOLDER / "README.md").read_text("utf-8"), *(p for p in pages if folder in p)]
    )


@pytest.mark.parametrize("path", FILES, ids=named)
def test_each_member_of_a_file_is_said_somewhere(path: Path) -> None:
    found = json.loads(path.read_bytes())
    members = set(found).union(*(case for listed in lists_of(found) for case in listed))
    text = said_of(path)
    unsaid = [
        name
        for name in sorted(members)
        if not re.search(rf"(?<![a-z_]){re.escape(name)}(?![a-z_])", text)
        and name.replace("_", " ") not in text
    ]
    assert unsaid == []
