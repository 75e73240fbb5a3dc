"""Tests reach our code by its public names, so that what is private stays free to change."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
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


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node, as ``ast.walk`` has them in another order; in half of its time."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        for value in vars(node).values():
            if isinstance(value, list):
                pending += [child for child in value if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST):
                pending.append(value)


@dataclass
class Names:
    """Private names in a file.

    Attributes:
        own: Names that its classes define for themselves.
        reached: Line and text of each that it reaches, and the name, where it is one of ``self``.
    """

    own: set[str] = field(default_factory=set)
    reached: list[tuple[int, str, str | None]] = field(default_factory=list)

    def of_others(self, own: set[str]) -> list[tuple[int, str]]:
        """Line and text of those that are not in ``own`` for ``self``."""
        return [(line, text) for line, text, name in self.reached if name not in own]


def names_in(tree: ast.AST) -> Names:
    """The private names in a file, those in program texts included."""
    names = Names()
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute):
            if (
                isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("self", "cls")
            ):
                names.own.add(node.attr)
            if private(node.attr):
                ours = ast.unparse(node.value) in ("self", "cls", "super()")
                names.reached.append((node.lineno, ast.unparse(node), node.attr if ours else None))
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.FunctionDef):
                    names.own.add(line.name)
                elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    names.own.add(line.target.id)
        elif isinstance(node, ast.ImportFrom):
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            if any(map(private, parts)):
                names.reached.append((node.lineno, ast.unparse(node), None))
        elif isinstance(node, ast.Call):
            if getattr(node.func, "attr", getattr(node.func, "id", None)) in BY_NAME:
                words = [
                    argument.value
                    for argument in node.args[:2]
                    if isinstance(argument, ast.Constant)
                ]
                parts = [
                    part for word in words if isinstance(word, str) for part in word.split(".")
                ]
                if any(map(private, parts)):
                    names.reached.append((node.lineno, ast.unparse(node), None))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and "import " in node.value
        ):
            program = names_in(parsed(node.value))
            names.reached += [
                (node.lineno + line, text, name)
                for line, text, name in program.reached
                if name not in program.own
            ]
    return names


def parsed(text: str) -> ast.Module:
    """A text as the program it is; as an empty one, if it is another text."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module()


def test_no_test_reaches_a_private_name() -> None:
    # Two files work with parts of pytest itself, by names of its own.
    of_pytest = {TESTS / "support/forked.py", TESTS / "support/logs.py"}
    files = {*TESTS.rglob("*.py")} - {Path(__file__)} - of_pytest
    names = {path: names_in(ast.parse(path.read_text("utf-8"))) for path in sorted(files)}
    own = {name for its in names.values() for name in its.own}
    found = [
        f"{path.relative_to(TESTS)}:{line}: {text}"
        for path, its in names.items()
        for line, text in its.of_others(own)
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
        assert names_in(ast.parse(way)).of_others(set()), way
    honest = [
        "class Ours:\n    def __init__(self):\n        self._held = 1",
        "os._exit(1)",
        "found._replace(size=2)",
        "made.__dict__",
    ]
    for text in honest:
        names = names_in(ast.parse(text))
        assert not names.of_others(names.own), text
