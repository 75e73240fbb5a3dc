"""An engineer's own training scripts: their files, their text, and their imports.

1. The guest runs the first file. The others lie in its folder or below; the Python files among them
   are modules: ``lib/data.py`` beside ``train.py`` is imported as ``lib.data``.
2. The lock holds their text, so owners read the code that runs: visible characters and line feeds
   only, ``MAX_SCRIPT_BYTES`` for all files together. A name in Python code is ASCII: a Cyrillic or
   Greek letter in it would make two names that look like one.
3. An import statement names the standard library, sealtrain, a pinned package or one of the files.
   An import whose failure the script handles itself, or that only a type checker reads, may name
   any module: in the run it fails as if the package were not installed.
"""

from __future__ import annotations

import ast
import keyword
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from pydantic import AfterValidator, StringConstraints

from sealtrain.base.files import read_bounded
from sealtrain.base.version import PACKAGES
from sealtrain.errors import LimitExceeded
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.fields import printable, resolve_inside

MAX_SCRIPTS: Final = 32
MAX_PACKAGES: Final = 64
MAX_SCRIPT_BYTES: Final = 64 << 10
"""UTF-8 bytes of all scripts of a recipe together."""

_TYPES_ONLY: Final = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
_ABSENCE: Final = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


def _visible_lines(text: str) -> str:
    for number, line in enumerate(text.split("\n"), 1):
        try:
            printable(line)
        except ValueError as error:
            raise ValueError(
                f"line {number} holds a character that is not in the table of visible ones; end "
                "lines with a line feed, indent with spaces, write others as escapes"
            ) from error
    return text


ScriptText = Annotated[
    str, StringConstraints(max_length=MAX_SCRIPT_BYTES), AfterValidator(_visible_lines)
]
"""Text of a script: visible characters and line feeds."""
ScriptPackage = Annotated[
    str,
    StringConstraints(
        max_length=200,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?==[A-Za-z0-9.+!_-]{1,64}$",
    ),
]
"""A package at one version, ``name==version`` or ``name[extra]==version``."""


@dataclass(frozen=True, slots=True)
class ScriptProblem:
    """Why scripts cannot run as they are pinned.

    Attributes:
        message: The problem and its place.
        module: The module with the problem.
        hint: Action for the engineer.
        script: The file that imports it; ``None`` where it is among the scripts itself.
        line: Its line there.
    """

    message: str
    module: str
    hint: str
    script: str | None = None
    line: int | None = None


def find_name_fault(scripts: Sequence[str], packages: Sequence[str]) -> str | None:
    """Why files and packages cannot be imported as they are named; ``None`` if they can."""
    names = [re.sub(r"[-_.]+", "-", re.split(r"[\[=]", package)[0]).lower() for package in packages]
    if len(set(names)) != len(names):
        return "packages name one twice"
    if packages and not scripts:
        return "packages are what scripts import; leave them out"
    if not scripts:
        return None
    if len(set(scripts)) != len(scripts):
        return "scripts name a file twice"
    if not scripts[0].endswith(".py"):
        return "scripts begin with the Python file to run"
    folder = PurePosixPath(scripts[0]).parent
    modules = []
    for path in scripts[1:]:
        if not PurePosixPath(path).is_relative_to(folder):
            return f"scripts: {path} is not in the folder of {scripts[0]} or below"
        if path.endswith(".py"):
            module = _module_of(path, folder)
            if not all(part.isidentifier() and not keyword.iskeyword(part) for part in module):
                return f"scripts: {path} has no name that Python could import"
            modules.append(module)
    if any(module[:1] == () or module[0] in PACKAGES for module in modules):
        return "scripts: a module needs a name of its own"
    return "scripts name a module twice" if len(set(modules)) != len(modules) else None


def modules_of(scripts: Sequence[str]) -> dict[str, str]:
    """Dotted names of the modules among a recipe's scripts, each with its file."""
    if not scripts:
        return {}
    folder = PurePosixPath(scripts[0]).parent
    return {
        ".".join(_module_of(path, folder)): path for path in scripts[1:] if path.endswith(".py")
    }


def _module_of(path: str, folder: PurePosixPath) -> tuple[str, ...]:
    parts = PurePosixPath(path).relative_to(folder).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def read_scripts(scripts: Sequence[str], base_dir: Path) -> dict[str, str]:
    """Text of a recipe's scripts by path.

    Raises:
        ModelInvalid: A file is missing, or lies behind a symbolic link.
        RecipeInvalid: The files are too long, not UTF-8, or break rule 2.
    """
    texts: dict[str, str] = {}
    for path in scripts:
        try:
            data = read_bounded(resolve_inside(base_dir, path), MAX_SCRIPT_BYTES)
            texts[path] = _visible_lines(data.decode("utf-8"))
        except LimitExceeded as error:
            raise _refuse(f"script {path} is too long", expected=error.expected) from None
        except UnicodeDecodeError:
            raise _refuse(f"script {path} is not UTF-8") from None
        except ValueError as error:
            raise _refuse(f"script {path}: {error}") from None
    if too_long(texts):
        raise _refuse(
            "the scripts together are too long", expected=f"at most {MAX_SCRIPT_BYTES} bytes"
        )
    return texts


def too_long(texts: Mapping[str, str]) -> bool:
    """Whether scripts hold more than ``MAX_SCRIPT_BYTES`` together."""
    return sum(len(text.encode()) for text in texts.values()) > MAX_SCRIPT_BYTES


def script_problem(
    texts: Mapping[str, str], scripts: Sequence[str], importable: Collection[str]
) -> ScriptProblem | None:
    """The first import statement that breaks rule 3, or a module that hides behind another.

    Args:
        texts: Text of each script.
        scripts: As in the recipe.
        importable: Top-level names of pinned packages.

    Returns:
        ``None`` where the scripts can run.

    Raises:
        RecipeInvalid: A script is not Python, or has a name that is not ASCII.
    """
    known = {*sys.stdlib_module_names, *importable, *PACKAGES}
    for name in modules_of(scripts):
        if name.split(".")[0] in known:
            return ScriptProblem(
                f"module {name} among the scripts has the name of an installed one",
                name,
                "give the file another name, and lock again",
            )
    own = {part for name in modules_of(scripts) for part in _prefixes(name)}
    for path in scripts:
        if not path.endswith(".py"):
            continue
        tree = _parse(path, texts[path])
        _require_ascii_names(path, tree)
        for line, module in sorted(_list_needed(tree)):
            top = module.split(".")[0]
            if top not in known and module not in own:
                return ScriptProblem(
                    f"script {path}, line {line}, imports what the lock does not pin",
                    module,
                    "add the package to packages (name==version), or the file to scripts, and "
                    "lock again",
                    script=path,
                    line=line,
                )
    return None


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _parse(path: str, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise _refuse(
            f"script {path} is not Python" + (f", line {line}" if line else ""),
            got=type(error).__name__,
        ) from None


def _require_ascii_names(path: str, tree: ast.AST) -> None:
    """Rule 2: Python shows a name only in the tree's fields of text, beside literals."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            continue
        for _, value in ast.iter_fields(node):
            names = value if isinstance(value, list) else [value]
            if any(isinstance(name, str) and not name.isascii() for name in names):
                line = getattr(node, "lineno", None)
                raise _refuse(
                    f"script {path} has a name that is not ASCII"
                    + (f", line {line}" if line else "")
                )


def _list_needed(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Modules that must be importable, each with the line of its import statement."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.lineno, node.module
        elif isinstance(node, ast.Try) and any(map(_catches_absence, node.handlers)):
            pending += [*node.handlers, *node.orelse, *node.finalbody]
        elif isinstance(node, ast.If) and ast.unparse(node.test) in _TYPES_ONLY:
            pending += node.orelse
        else:
            pending += ast.iter_child_nodes(node)


def _catches_absence(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or getattr(kind, "id", None) in _ABSENCE for kind in kinds)


def _refuse(message: str, *, got: str | None = None, expected: object = None) -> RecipeInvalid:
    return RecipeInvalid(message, check="scripts", got=got, expected=expected)
