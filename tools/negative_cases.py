"""Keep the column of tests in ``docs/reference/negative-cases.md`` in step with the tests' markers.

Usage: ``python tools/negative_cases.py [--check]``

Number, case and codes of a row are written by hand and kept as they are. With ``--check`` nothing
is written; a stale page exits 1.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "reference" / "negative-cases.md"
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
"""Number, case, codes, tests."""

_MARKER = "pytest.mark.negative"


def find_marked() -> dict[int, set[Path]]:
    """Files with tests of each case."""
    found: dict[int, set[Path]] = defaultdict(set)
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        if f"{_MARKER}(" in text:
            for number in _numbers(ast.parse(text)):
                found[number].add(path)
    return found


def places(paths: set[Path]) -> str:
    """The last column of a row."""
    ordered = sorted(paths, key=lambda path: path.stem)
    return ", ".join(
        f"[{path.stem.removeprefix('test_')}](../../{path.relative_to(REPOSITORY).as_posix()})"
        for path in ordered
    )


def render(page: str) -> str:
    """The page with the last column of its rows as the markers have it."""
    tests = find_marked()

    def fresh(row: re.Match[str]) -> str:
        return f"| {row[1]} | {row[2]} | {row[3]} | {places(tests[int(row[1])])} |"

    return ROW.sub(fresh, page)


def _numbers(module: ast.Module) -> set[int]:
    """Numbers of all markers; one that is no literal stands in the module's table ``NUMBERS``."""
    found: set[int] = set()
    for call in ast.walk(module):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == _MARKER:
            (number,) = call.args
            if isinstance(number, ast.Constant) and isinstance(number.value, int):
                found.add(number.value)
            else:
                found |= _table(module)
    return found


def _table(module: ast.Module) -> set[int]:
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "NUMBERS":
            return set(ast.literal_eval(statement.value).values())
    raise SystemExit("the number of a case is neither written out nor in a table NUMBERS")


def main() -> None:
    """Rewrite the page, or with ``--check`` compare it."""
    page = PAGE.read_text("utf-8")
    fresh = render(page)
    if fresh == page:
        return
    if "--check" in sys.argv[1:]:
        raise SystemExit(f"{PAGE.name} is stale: run python tools/negative_cases.py")
    PAGE.write_text(fresh, "utf-8")


if __name__ == "__main__":
    main()
