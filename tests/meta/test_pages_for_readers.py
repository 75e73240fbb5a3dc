"""The pages that follow a row and a quote through the code name functions that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted((REPOSITORY / "docs/concepts").glob("follow-one-*.md"))
PLACE = re.compile(r"`(sealtrain\w*/[\w/]+\.py):([\w.]+)`")
STEP = re.compile(r"^\| (\d+) \| `[^`]+` \| [^|]+\. \|$", re.MULTILINE)


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Functions and classes of a module, and methods as ``Class.method``."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, kinds)]
    inner = {
        f"{node.name}.{method.name}"
        for node in top
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, kinds)
    }
    return frozenset({node.name for node in top} | inner)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_step_names_a_place_that_there_is(page: Path) -> None:
    text = page.read_text()
    numbers = [int(number) for number in STEP.findall(text)]
    assert numbers == list(range(1, len(numbers) + 1))
    places = PLACE.findall(text)
    assert len(places) >= len(numbers) > 20
    missing = [
        f"{module}:{name}"
        for module, name in places
        if name not in defined_in(REPOSITORY / "src" / module)
    ]
    assert missing == []


def test_both_pages_are_there() -> None:
    assert [page.stem for page in PAGES] == ["follow-one-quote", "follow-one-row"]
