"""Every numbered negative case has tests, and the page that lists them says which.

Where a row is behind, the failure shows the row's last column as it must read.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from sealtrain.errors import SealtrainError

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "reference" / "negative-cases.md"
CASES = range(1, 71)
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def numbers(module: ast.Module) -> set[int]:
    """Numbers of all markers; one that is no literal stands in the module's table ``NUMBERS``."""
    found: set[int] = set()
    for call in ast.walk(module):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.negative":
            (number,) = call.args
            if isinstance(number, ast.Constant) and isinstance(number.value, int):
                found.add(number.value)
            else:
                found |= set(table(module).values())
    return found


def table(module: ast.Module) -> dict[str, int]:
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "NUMBERS":
            found: dict[str, int] = ast.literal_eval(statement.value)
            return found
    raise AssertionError("the number of a case is neither written out nor in a table NUMBERS")


def marked() -> dict[int, set[Path]]:
    """Files with tests of each case."""
    found: dict[int, set[Path]] = defaultdict(set)
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        text = text_of(path)
        # Parsing is slow; this file speaks of markers and has none.
        if path != Path(__file__) and "pytest.mark.negative(" in text:
            for number in numbers(ast.parse(text)):
                found[number].add(path)
    return found


def places(paths: set[Path]) -> str:
    """The last column of a row."""
    ordered = sorted(paths, key=lambda path: path.stem)
    return ", ".join(
        f"[{path.stem.removeprefix('test_')}](../../{path.relative_to(REPOSITORY).as_posix()})"
        for path in ordered
    )


def every_code(kind: type[SealtrainError] = SealtrainError) -> dict[str, str]:
    """Class names by code."""
    found = {kind.code: kind.__name__}
    for child in kind.__subclasses__():
        found |= every_code(child)
    return found


@cache
def text_of(path: Path) -> str:
    return path.read_text("utf-8")


MARKED = marked()
ROWS = {int(row[1]): row for row in ROW.finditer(PAGE.read_text("utf-8"))}


def test_all_cases_have_tests_and_no_other_number_is_used() -> None:
    assert sorted(MARKED) == list(CASES)


def test_the_page_lists_every_case_once_and_in_order() -> None:
    listed = [int(row[1]) for row in ROW.finditer(PAGE.read_text("utf-8"))]
    assert listed == list(CASES)


@pytest.mark.parametrize("number", CASES)
def test_a_row_names_the_tests_that_carry_its_number(number: int) -> None:
    assert ROWS[number][4] == places(MARKED[number])


CODES = every_code()


@pytest.mark.parametrize("number", CASES)
def test_a_row_names_codes_that_its_tests_ask_for(number: int) -> None:
    codes = re.findall(r"\[([a-z-]+)\]\(errors\.md#\1\)", ROWS[number][3])
    assert codes, "no code"
    assert ", ".join(f"[{code}](errors.md#{code})" for code in codes) == ROWS[number][3]
    texts = [text_of(path) for path in MARKED[number]]
    for code in codes:
        assert code in CODES, f"no such error: {code}"
        spelled = re.compile(rf'\b{CODES[code]}\b|"{re.escape(code)}"')
        assert any(spelled.search(text) for text in texts), f"no test of {number} asks for {code}"
