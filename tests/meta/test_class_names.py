"""A class name means one thing: public ones in their distribution, private ones in their folder."""

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
