"""Vector files have the shape that ``vectors/README.md`` says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from sealtrain.errors import error_by_code

FOLDER = Path(__file__).resolve().parents[2] / "vectors"
FILES = sorted(FOLDER.rglob("*.json"))
OTHER_NAMES = {"comment", "error", "result", "refused", "valid", "expect", "vectors"}
"""What ``name``, ``outcome`` and ``cases`` were called once, and no case is called any more."""
OF_A_TALLY = {"approvals/tallies.json": {"expect"}, "one-time-pads/products.json": {"result"}}


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@cache
def read(path: Path) -> Any:
    """What a file says; no test changes it."""
    return json.loads(path.read_bytes(), object_pairs_hook=unique)


def named(path: Path) -> str:
    return path.relative_to(FOLDER).as_posix()


def lists_of(found: dict[str, Any]) -> list[list[dict[str, Any]]]:
    cases = found["cases"]
    return [cases] if isinstance(cases, list) else list(cases.values())


def faults_by_file(faults_of: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What is wrong with each file; a file without a fault is left out."""
    assert FILES
    return {named(path): faults for path in FILES if (faults := faults_of(path))}


def faults_of_form(path: Path) -> list[str]:
    found = read(path)
    if not isinstance(found, dict):
        return ["not an object"]
    faults = []
    for listed in lists_of(found):
        if not isinstance(listed, list) or not listed:
            faults.append("no list of cases")
            continue
        names = [case["name"] for case in listed if "name" in case]
        if len(names) not in (0, len(listed)):
            faults.append("some cases have a name and others have none")
        if len(set(names)) != len(names):
            faults.append("two cases have one name")
        for case in listed:
            renamed = set(case) & (OTHER_NAMES - OF_A_TALLY.get(named(path), set()))
            faults += [f"member {name}" for name in sorted(renamed)]
    return faults


def test_a_file_is_one_object_with_cases() -> None:
    assert faults_by_file(faults_of_form) == {}


def faults_of_outcomes(path: Path) -> list[str]:
    faults = []
    for listed in lists_of(read(path)):
        outcomes = [case["outcome"] for case in listed if "outcome" in case]
        if len(outcomes) not in (0, len(listed)):
            faults.append("some cases have an outcome and others have none")
        for outcome in outcomes:
            if outcome != "ok" and isinstance(outcome, str):
                code = re.fullmatch(r"(?:[a-z-]+ )?([a-z-]+)", outcome)
                if code is None or error_by_code(code[1]).code != code[1]:
                    faults.append(f"outcome {outcome}")
    return faults


def test_a_case_that_can_be_refused_ends_in_ok_or_a_code() -> None:
    assert faults_by_file(faults_of_outcomes) == {}


@cache
def said_of(folder: str) -> str:
    """The pages that say what a file's members are: the README, and those that name its folder."""
    spec = FOLDER.parent / "spec"
    pages = [page.read_text("utf-8") for page in sorted(spec.glob("*.md"))]
    return "\n".join(
        [
            (FOLDER / "README.md").read_text("utf-8"),
            *(page for page in pages if f"vectors/{folder}" in page),
        ]
    )


def members_said_nowhere(path: Path) -> list[str]:
    found = read(path)
    members = set(found).union(*(case for listed in lists_of(found) for case in listed))
    text = said_of(path.parent.name)
    return [
        name
        for name in sorted(members)
        if not re.search(rf"(?<![a-z_]){re.escape(name)}(?![a-z_])", text)
        and name.replace("_", " ") not in text
    ]


def test_each_member_of_a_file_is_said_somewhere() -> None:
    assert faults_by_file(members_said_nowhere) == {}
