"""Every numbered negative case has tests, and the page that lists them says which."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

from sealtrain.errors import every_error

REPOSITORY = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location(
    "negative_cases", REPOSITORY / "tools" / "negative_cases.py"
)
assert SPEC is not None
assert SPEC.loader is not None
LIST = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(LIST)

CASES = (*range(1, 97), 99, 100, 101, 105, 106, 119, 120, 121, 127)
PAGE = LIST.PAGE.read_text("utf-8")
CODES_OF = {int(row[1]): row[3] for row in LIST.ROW.finditer(PAGE)}


@cache
def marked() -> dict[int, set[Path]]:
    """Files of tests by the number of the case that they are marked with."""
    found: dict[int, set[Path]] = LIST.find_marked()
    return found


@cache
def text_of(path: Path) -> str:
    return path.read_text("utf-8")


CODES = {kind.code: kind.__name__ for kind in every_error()}


def test_all_cases_have_tests_and_no_other_number_is_used() -> None:
    assert sorted(marked()) == list(CASES)


def test_the_page_lists_every_case_once_and_in_order() -> None:
    assert [int(row[1]) for row in LIST.ROW.finditer(PAGE)] == list(CASES)


def test_the_page_names_the_tests_that_carry_the_numbers() -> None:
    assert LIST.render(PAGE) == PAGE, "run python tools/negative_cases.py"


def test_a_row_that_is_behind_is_written_anew() -> None:
    row = next(LIST.ROW.finditer(PAGE))
    stale = PAGE.replace(row[0], f"| {row[1]} | {row[2]} | {row[3]} | nowhere |")
    assert stale != PAGE
    assert LIST.render(stale) == LIST.render(PAGE)


def faults_of_row(number: int) -> list[str]:
    codes = re.findall(r"\[([a-z-]+)\]\(errors\.md#\1\)", CODES_OF[number])
    faults = [] if codes else ["no code"]
    if ", ".join(f"[{code}](errors.md#{code})" for code in codes) != CODES_OF[number]:
        faults.append("more than links to codes")
    for code in codes:
        if code not in CODES:
            faults.append(f"no such error: {code}")
            continue
        spelled = re.compile(rf'\b{CODES[code]}\b|"{re.escape(code)}"')
        if not any(spelled.search(text_of(path)) for path in marked()[number]):
            faults.append(f"no test asks for {code}")
    return faults


def test_a_row_names_codes_that_its_tests_ask_for() -> None:
    assert {number: faults for number in CASES if (faults := faults_of_row(number))} == {}
