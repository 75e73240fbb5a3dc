"""What a lane's result depends on: its files, what they use, and one digest over all of it.

A lane's digest covers

1. its test files, and the files of ``tests`` and ``benchmarks`` that these name, directly or
   through each other;
2. what the lane owns and uses (``lane_table.SuiteLane``);
3. every other tracked file, unless it is in ``ASIDE``, belongs to another lane, is a test file of
   another lane or the core, or is one of ``sealtrain``'s other packages.

So a file that nobody thought of is covered by every lane.
"""

from __future__ import annotations

import ast
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from lane_table import CORE, LANES, OtherEnvironment, SuiteLane, lane_of

ASIDE = (
    ".ci/",
    ".github/",
    "Makefile",
    "benchmarks/",
    "changes/",
    "docs/",
    "packages/",
    "spec/",
    "src/",
    "tests/",
)
"""What a lane covers only where it names it; pages at the top (``*.md``) too."""
# What tests/conftest.py does beside every test.
_STANDING_SUPPORT = (
    "tests/support/collecting.py",
    "tests/support/forked.py",
    "tests/support/hanging.py",
    "tests/support/keeping.py",
    "tests/support/logs.py",
    "tests/support/programs.py",
    "tests/support/warm_places.py",
)
_STANDING = ("src/sealtrain/", *_STANDING_SUPPORT)
_SUPPORT = ("tests/support/", "benchmarks/")
_CODE = re.compile(r"(?:src|packages/[^/]+)/(.+?)(?:/__init__)?\.py")
_FILE_NAME = re.compile(r"[\w-]+\.\w+")


def tracked_files(root: Path) -> dict[str, str]:
    """SHA-256 of every file that git tracks or would add, by its path with slashes.

    Without git, of every file that is not hidden or compiled.
    """
    if shutil.which("git") and (root / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],  # noqa: S607
            cwd=root,
            check=True,
            capture_output=True,
        ).stdout.decode()
        names = sorted({name for name in listed.split("\0") if name})
    else:
        paths = (path.relative_to(root) for path in root.rglob("*"))
        names = sorted(
            path.as_posix()
            for path in paths
            if not any(part.startswith(".") or part == "__pycache__" for part in path.parts)
        )
    return {
        name: hashlib.sha256((root / name).read_bytes()).hexdigest()
        for name in names
        if (root / name).is_file()
    }


def is_test(path: str) -> bool:
    """Whether pytest collects this file."""
    name = path.rpartition("/")[2]
    return path.startswith("tests/") and name.startswith("test_") and name.endswith(".py")


def support_of(root: Path, tests: Iterable[str], files: Mapping[str, str]) -> set[str]:
    """Files of ``tests`` and ``benchmarks`` that tests name, directly or through each other.

    A Python file names the modules that it imports. Any file names another by its name with its
    ending, and a module of ``tests/support`` by a string that is its name (``-p record_run``). The
    page of the support modules names all, and tests name it only where they mean another README.

    Args:
        root: The repository.
        tests: Paths of the test files.
        files: ``tracked_files(root)``.
    """
    by_name = _paths_by_name(tuple(files))
    found: set[str] = set()
    pending = set(tests)
    while pending:
        path = pending.pop()
        for name in _names_in(root / path, files[path]):
            news = by_name.get(name, set()) - found
            found |= news
            pending |= news
    return found


def files_of(
    lane: SuiteLane, root: Path, files: Mapping[str, str], lanes: Sequence[SuiteLane] = LANES
) -> list[str]:
    """Paths that the lane's digest covers, sorted.

    Args:
        lane: The lane, or ``CORE``, which covers everything.
        root: The repository.
        files: ``tracked_files(root)``.
        lanes: The table that the lane is in.
    """
    if lane is CORE:
        return sorted(files)
    tests = _tests_by_lane(tuple(files), tuple(lanes)).get(lane.name, frozenset())
    own = (*lane.owns, *lane.uses, *_STANDING)
    others = tuple(path for other in lanes if other is not lane for path in other.owns)
    covered = {*tests, *support_of(root, tests, files)}
    for path in files:
        aside = path.startswith((*ASIDE, *others)) or ("/" not in path and path.endswith(".md"))
        if path.startswith(own) or not aside or _is_conftest(path, tests):
            covered.add(path)
    return sorted(covered)


def _is_conftest(path: str, tests: Iterable[str]) -> bool:
    """Whether pytest loads this file with one of the tests."""
    folder = path.removesuffix("conftest.py")
    return _last(path) == "conftest.py" and any(test.startswith(folder) for test in tests)


def digest_of(
    lane: SuiteLane, root: Path, files: Mapping[str, str], lanes: Sequence[SuiteLane] = LANES
) -> str:
    """SHA-256 over the paths and contents of what the lane covers, in hexadecimal letters."""
    return _digest(files_of(lane, root, files, lanes), files)


def files_with_tests(environment: OtherEnvironment, root: Path, files: Iterable[str]) -> set[str]:
    """Paths of the environment's test files.

    Args:
        root: The repository.
        files: Paths of its files.
    """
    return {
        path
        for path in files
        if path in environment.tests
        or (
            environment.mark is not None
            and is_test(path)
            and environment.mark in (root / path).read_text("utf-8")
        )
    }


def files_of_environment(
    environment: OtherEnvironment, root: Path, files: Mapping[str, str]
) -> list[str]:
    """Paths that an environment's digest covers, sorted.

    Args:
        root: The repository.
        files: ``tracked_files(root)``.
    """
    tests = files_with_tests(environment, root, files)
    named = {name for path in tests for name in _names_in(root / path, files[path])}
    covered = tests | support_of(root, tests, files)
    for path in files:
        code = _CODE.match(path)
        imported = code is not None and f"import {code[1].replace('/', '.')}" in named
        used = path.startswith((*environment.uses, *_STANDING_SUPPORT))
        if imported or used or _is_conftest(path, tests):
            covered.add(path)
    return sorted(covered)


def digest_of_environment(
    environment: OtherEnvironment, root: Path, files: Mapping[str, str]
) -> str:
    """SHA-256 over the paths and contents of what the environment covers, in hexadecimal."""
    return _digest(files_of_environment(environment, root, files), files)


def _digest(covered: Iterable[str], files: Mapping[str, str]) -> str:
    whole = hashlib.sha256()
    for path in covered:
        whole.update(f"{path}\0{files[path]}\n".encode())
    return whole.hexdigest()


@cache
def _paths_by_name(paths: tuple[str, ...]) -> dict[str, set[str]]:
    """Files of ``tests`` and ``benchmarks`` by how others name them (``support_of``)."""
    by_name: dict[str, set[str]] = {}
    for path in paths:
        if is_test(path):
            by_name.setdefault(_last(path), set()).add(path)
        elif path.startswith(_SUPPORT) and not path.endswith(".md"):
            inside = path.removeprefix("tests/support/").removeprefix("benchmarks/")
            module = inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            by_name.setdefault(_last(path), set()).add(path)
            by_name.setdefault(f"import {module}", set()).add(path)
            if path.startswith("tests/support/"):
                by_name.setdefault(module, set()).add(path)
    return by_name


@cache
def _tests_by_lane(
    paths: tuple[str, ...], lanes: tuple[SuiteLane, ...]
) -> Mapping[str, frozenset[str]]:
    """Test files by the name of their lane."""
    tests: dict[str, set[str]] = {}
    for path in paths:
        if is_test(path):
            tests.setdefault(lane_of(_last(path), lanes).name, set()).add(path)
    return {name: frozenset(found) for name, found in tests.items()}


@cache
def _names_in(path: Path, digest: str) -> frozenset[str]:
    """Names in the file that had these bytes when its digest was taken, so read once."""
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return frozenset()
    names = set(_FILE_NAME.findall(text))
    if path.suffix == ".py":
        for node in _nodes_of(ast.parse(text)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    names.update(_enclosing_names(alias.name))
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    names.update(_enclosing_names(f"{node.module}.{alias.name}"))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return frozenset(names)


def _nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
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


def _enclosing_names(module: str) -> Iterator[str]:
    """A module and the packages that it is in."""
    while module:
        yield f"import {module}"
        module = module.rpartition(".")[0]


def _last(path: str) -> str:
    return path.rpartition("/")[2]
