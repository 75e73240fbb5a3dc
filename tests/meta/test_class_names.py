"""A name means one thing: a class in its distribution or folder, a loop variable in its loop.

A loop variable says what it holds: ``for dataset in datasets``, never ``for one in datasets``.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src"

# The recipe as a document, and the recipe of the Python face, which people import by that name.
TWICE = {("sealtrain", "Recipe")}


def classes() -> Iterator[tuple[tuple[str, str], Path]]:
    """Where each class is defined, by the place in which its name may stand once."""
    for path in sorted(SOURCE.rglob("*.py")):
        inside = path.relative_to(SOURCE)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                place = inside.parent.as_posix() if node.name.startswith("_") else inside.parts[0]
                yield (place, node.name), inside


def test_a_class_name_stands_in_one_file() -> None:
    files: defaultdict[tuple[str, str], set[Path]] = defaultdict(set)
    for name, path in classes():
        files[name].add(path)
    assert len(files) > 1_000
    assert {name for name, paths in files.items() if len(paths) > 1} == TWICE


def loop_variables(tree: ast.Module) -> Iterator[ast.Name]:
    """The names that loops and comprehensions bind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield from (name for name in ast.walk(node.target) if isinstance(name, ast.Name))


def test_no_loop_variable_is_called_one() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{name.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        if "one" in (text := path.read_text())
        for name in loop_variables(ast.parse(text))
        if name.id == "one"
    ]
    assert found == []
