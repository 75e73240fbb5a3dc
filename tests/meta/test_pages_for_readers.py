"""The pages for readers of the code name functions that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from source_tree import source_modules

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted((REPOSITORY / "docs/concepts").glob("follow-one-*.md"))
PLACE = re.compile(r"`(sealtrain\w*/[\w/]+\.py):([\w.]+)`")
EXTENDING = REPOSITORY / "docs/concepts/extend-training.md"
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


def missing_places(text: str) -> list[str]:
    """The places of a page that the code does not have."""
    return [
        f"{module}:{name}"
        for module, name in PLACE.findall(text)
        if name not in defined_in(source_modules(REPOSITORY)[module])
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_step_names_a_place_that_there_is(page: Path) -> None:
    text = page.read_text()
    numbers = [int(number) for number in STEP.findall(text)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(PLACE.findall(text)) >= len(numbers) > 20
    assert missing_places(text) == []


def test_the_page_about_additions_names_places_that_there_are() -> None:
    text = EXTENDING.read_text()
    assert len(PLACE.findall(text)) > 20
    assert missing_places(text) == []
    tests = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert [path for path in tests if not (REPOSITORY / path).is_file()] == []


def test_both_pages_are_there() -> None:
    assert [page.stem for page in PAGES] == ["follow-one-quote", "follow-one-row"]
