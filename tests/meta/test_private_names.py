"""Tests reach our code by its public names, so that what is private stays free to change."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TESTS = Path(__file__).resolve().parents[1]
OF_OTHERS = {
    "_exit",  # os: ends a process as a crash does
    "_asdict", "_fields", "_make", "_replace",  # of named tuples, documented
    "_Element",  # lxml: the type of its elements, which has no other name
    "_obj",  # ctypes: what an argument by reference refers to
    "_strip_protocol",  # fsspec: what a file system of another kind defines
}  # fmt: skip
BY_NAME = {"setattr", "getattr", "hasattr", "delattr"}
ADVICE = (
    "a test reaches a private name: pass clock, transport, randomness or limit as an argument, "
    "test through the public function, or make the name public where it is part of the contract"
)


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in {"_", *OF_OTHERS}


def own_names(trees: list[ast.Module]) -> set[str]:
    """Private names that classes of the tests define for themselves."""
    found: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                    found.add(node.attr)
            elif isinstance(node, ast.ClassDef):
                for line in node.body:
                    if isinstance(line, ast.FunctionDef):
                        found.add(line.name)
                    elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                        found.add(line.target.id)
    return found


def reached(tree: ast.AST, own: set[str]) -> Iterator[tuple[int, str]]:
    """Line and text of each private name that is not the test's own, program texts included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            if not (ast.unparse(node.value) in ("self", "cls", "super()") and node.attr in own):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            if any(map(private, parts)):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func).rsplit(".", 1)[-1]
            words = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
            names = [part for word in words if isinstance(word, str) for part in word.split(".")]
            if called in BY_NAME and any(map(private, names)):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            program = parsed(node.value)
            for line, text in reached(program, own | own_names([program])):
                yield node.lineno + line, text


def parsed(text: str) -> ast.Module:
    """A text as the program it is; as an empty one, if it is another text."""
    try:
        return ast.parse(text if "import " in text else "")
    except SyntaxError:
        return ast.Module()


def test_no_test_reaches_a_private_name() -> None:
    # Workers are forked from pytest itself, whose own names that one file uses.
    files = {*TESTS.rglob("*.py")} - {Path(__file__), TESTS / "support/forked.py"}
    trees = {path: ast.parse(path.read_text("utf-8")) for path in files}
    own = own_names(list(trees.values()))
    found = [
        f"{path.relative_to(TESTS)}:{line}: {text}"
        for path, tree in sorted(trees.items())
        for line, text in reached(tree, own)
    ]
    assert not found, "\n".join([ADVICE, *found])


def test_the_search_finds_every_way_to_a_private_name() -> None:
    ways = [
        "made._held",
        "from sealtrain.base.byte_budget import _room",
        "from sealtrain._hidden import room",
        "monkeypatch.setattr(module, '_MAX', 3)",
        "monkeypatch.setattr('sealtrain.base.byte_budget._MAX', 3)",
        "getattr(made, '_held')",
        "class Ours(Theirs):\n    def act(self):\n        return self._theirs",
        "PROGRAM = 'import sealtrain\\nsealtrain._held = 3\\n'",
    ]
    for way in ways:
        assert list(reached(ast.parse(way), set())), way
    honest = [
        "class Ours:\n    def __init__(self):\n        self._held = 1",
        "os._exit(1)",
        "found._replace(size=2)",
        "made.__dict__",
    ]
    for text in honest:
        tree = ast.parse(text)
        assert not list(reached(tree, own_names([tree]))), text
