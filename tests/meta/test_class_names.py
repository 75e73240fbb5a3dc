"""A name means one thing: a class in the core and all rooms, a loop variable in its loop.

A loop variable says what it holds: ``for dataset in datasets``, and is never called ``one``.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from source_tree import source_modules

REPOSITORY = Path(__file__).parents[2]

# A loop over ``one``, and ``one`` as the last of several variables of a loop.
LOOP = re.compile(r"\bfor (?:\w+, |\(\w+, )*one\)? in ")


@cache
def named() -> list[tuple[Path, set[str], list[tuple[int, str]]]]:
    """Of each file the classes that it defines, and line and name of each loop's variables."""
    found = []
    for name, path in source_modules(REPOSITORY).items():
        classes: set[str] = set()
        variables: list[tuple[int, str]] = []
        pending: list[ast.AST] = [ast.parse(path.read_text())]
        while pending:  # as ``ast.walk``, in half of its time
            node = pending.pop()
            if isinstance(node, ast.ClassDef):
                classes.add(node.name)
            elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                variables += [
                    (name.lineno, name.id)
                    for name in ast.walk(node.target)
                    if isinstance(name, ast.Name)
                ]
            for value in vars(node).values():
                if isinstance(value, list):
                    pending += [child for child in value if isinstance(child, ast.AST)]
                elif isinstance(value, ast.AST):
                    pending.append(value)
        found.append((Path(name), classes, variables))
    return found


def test_a_class_name_stands_in_one_file() -> None:
    files: defaultdict[str, set[Path]] = defaultdict(set)
    for path, classes, _ in named():
        for name in classes:
            files[name].add(path)
    assert len(files) > 1_000
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}


def test_no_loop_variable_is_called_one() -> None:
    found = [
        f"{path}:{line}"
        for path, _, variables in named()
        for line, name in variables
        if name == "one"
    ]
    assert found == []


def test_no_loop_of_a_test_or_a_tool_holds_one() -> None:
    """By the text: parsing every test would take longer than this catches."""
    found = [
        path.relative_to(REPOSITORY).as_posix()
        for folder in ("tests", "tools", "benchmarks", "examples")
        for path in (REPOSITORY / folder).rglob("*.py")
        if LOOP.search(path.read_text())
    ]
    assert found == []
