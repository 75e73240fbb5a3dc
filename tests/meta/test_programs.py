"""A machine without a program that tests need passes, and one line says what was skipped."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import programs
import pytest
from programs import PROGRAMS, VARIABLE, missing_programs

REPOSITORY = Path(__file__).resolve().parents[2]
SUPPORT = REPOSITORY / "tests/support"
ASKED = re.compile(r"\b(?:needs?|found)\(((?:\"[a-z0-9-]+\"(?:, )?)+)\)")
TINY = """
import programs
import pytest

@pytest.fixture
def opened():
    return programs.need("softhsm", "openssl")

@pytest.mark.needs("bubblewrap", "openssl")
def test_marked(): pass

@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("number", range(3))
def test_marked_often(number): pass

def test_by_a_fixture(opened): pass

def test_called(): programs.need("bubblewrap")

def test_without_any(): pass

def test_skipped_for_another_reason(): pytest.skip("needs rest")
"""


def played(folder: Path, without: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """The tiny file under this repository's own settings, on a machine without some programs."""
    (folder / "test_tiny.py").write_text(TINY)
    words = ["-c", REPOSITORY / "pyproject.toml", "-p", "no:cacheprovider"]
    for plugin in ("conftest", "pytest_timeout", "xdist"):
        words += ["-p", plugin]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words, *flags, folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=folder,
        env={
            **os.environ,
            VARIABLE: without,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join([str(SUPPORT.parent), str(SUPPORT)]),
        },
    )


@pytest.mark.parametrize("flags", [(), ("-n", "2")], ids=["alone", "two workers"])
def test_one_line_says_what_was_skipped(tmp_path: Path, flags: tuple[str, ...]) -> None:
    done = played(tmp_path, "bubblewrap,softhsm,openssl", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("skipped without")]
    assert lines == [
        "skipped without bubblewrap, openssl, softhsm: 6 tests "
        "(apt-get install bubblewrap openssl softhsm2)"
    ]
    assert re.search(r"1 passed, 7 skipped", done.stdout)


def test_a_name_that_is_not_in_the_table_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "bubblewrap,postgres")
    with pytest.raises(pytest.UsageError):
        programs.pytest_configure()


def test_a_hidden_program_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    here = set(missing_programs())
    monkeypatch.setenv(VARIABLE, "postgresql, git")
    assert set(missing_programs()) == here | {"postgresql", "git"}
    monkeypatch.setenv(VARIABLE, ",".join(PROGRAMS))
    assert missing_programs() == tuple(PROGRAMS)


def _starting(tree: ast.AST) -> set[str]:
    """Commands that a file of tests starts, or looks for, by their names."""
    first = [node.elts[0] for node in ast.walk(tree) if isinstance(node, ast.List) and node.elts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("which"):
            first += node.args[:1]
    return {
        word.value
        for word in first
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    }


def test_every_file_that_starts_one_of_these_programs_asks_for_it() -> None:
    """Files that run as processes are started by tests that asked."""
    owner = {command: name for name, row in PROGRAMS.items() for command in row.commands}
    quoted = {f'"{command}"' for command in owner}
    silent = []
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        if path.stem.endswith(("_player", "_victim")):
            continue
        text = path.read_text(encoding="utf-8")
        if quoted.isdisjoint(re.findall(r'"[a-z0-9_-]+"', text)):
            continue
        asked = set(re.findall(r"[a-z0-9-]+", " ".join(ASKED.findall(text))))
        needed = {owner[word] for word in _starting(ast.parse(text)) & owner.keys()}
        silent += [f"{path.relative_to(REPOSITORY)}: {name}" for name in sorted(needed - asked)]
    assert silent == []


def test_every_marker_names_a_program_of_the_table() -> None:
    unknown = []
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        for words in ASKED.findall(path.read_text(encoding="utf-8")):
            for name in re.findall(r"[a-z0-9-]+", words):
                if name not in PROGRAMS:
                    unknown.append(f"{path.relative_to(REPOSITORY)}: {name}")
    assert unknown == []
