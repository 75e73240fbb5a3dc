"""What a failing test leaves where SEALTRAIN_KEEP names a folder (tests/support/keeping.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parents[1] / "support"
CONFTEST = """
from keeping import keep_output

def pytest_configure(config):
    keep_output(config)
"""
STORY = """
import subprocess
import sys

import pytest

def said(folder, name, text):
    folder.joinpath(f"{name}.log").write_text(text)
    folder.joinpath(f"{name}.json").write_text('{"answer": true}')
    folder.joinpath("model.bin").write_bytes(b"weights")

@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    said(folder, "broker", "the broker began\\n")
    yield folder

@pytest.fixture
def stopped(tmp_path):
    yield tmp_path
    (tmp_path / "lead.log").write_text("the lead was told to end\\n")

@pytest.fixture
def broken(tmp_path):
    said(tmp_path, "guest", "the guest ended\\n")
    raise RuntimeError

def test_that_passes(tmp_path, shared):
    said(tmp_path, "party", "another test's\\n")

def test_that_fails(stopped, shared):
    print("printed by the test")
    said(stopped, "lead", "the lead began\\n")
    (stopped / "long.log").write_bytes(b"begin" + b"x" * (2 << 20) + b"end")
    subprocess.run([sys.executable, "-c", "print('a' + 'nswered')"], capture_output=True)
    assert len("three") == 3

@pytest.mark.parametrize("case", ["a/b"])
def test_whose_fixture_fails(case, broken):
    pass

def test_that_leaves_many_files(tmp_path):
    for number in range(60):
        (tmp_path / f"data-{number}.txt").write_text("data")
    said(tmp_path, "last", "a log comes first\\n")
    assert not tmp_path
"""


def played(folder: Path, keep: Path | None, *options: str) -> set[str]:
    """Play the story; the names of what was kept, each with its test's."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_story.py").write_text(STORY)
    environment = {name: value for name, value in os.environ.items() if "SEALTRAIN" not in name}
    environment = {name: value for name, value in environment.items() if "PYTEST" not in name}
    environment |= {"PYTHONPATH": str(SUPPORT)}
    environment |= {} if keep is None else {"SEALTRAIN_KEEP": str(keep)}
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder,
            "--basetemp", folder / "base", *options, "test_story.py",
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 1 passed, 1 error" in done.stdout
    if keep is None:
        return set()
    return {str(path.relative_to(keep)) for path in keep.rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "loadfile")], ids=["one", "xdist"])
def test_a_failing_test_leaves_what_its_processes_printed(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    keep = tmp_path / "kept"
    names = played(tmp_path, keep, *options)
    fails = "test_story.py_test_that_fails"
    assert {name for name in names if name.startswith(fails)} == {
        f"{fails}/{name}"
        for name in (
            "failure.txt",
            "commands.txt",
            "shared0_broker.log.txt",
            "shared0_broker.json.txt",
            "test_that_fails0_lead.log.txt",
            "test_that_fails0_lead.json.txt",
            "test_that_fails0_long.log.txt",
        )
    }
    failure = (keep / fails / "failure.txt").read_text()
    assert "printed by the test" in failure
    assert "len('three')" in failure or 'len("three")' in failure
    assert "answered" in (keep / fails / "commands.txt").read_text()
    # It is kept once the fixtures are through, too.
    said = keep / fails / "test_that_fails0_lead.log.txt"
    assert said.read_text() == "the lead was told to end\n"
    long = (keep / fails / "test_that_fails0_long.log.txt").read_bytes()
    assert len(long) == 1 << 20
    assert long.endswith(b"xend")

    setup = "test_story.py_test_whose_fixture_fails_a_b"
    assert "RuntimeError" in (keep / setup / "failure.txt").read_text()
    assert f"{setup}/test_whose_fixture_fails_a_b_0_guest.log.txt" in names

    many = {name for name in names if name.startswith("test_story.py_test_that_leaves_many")}
    assert len([name for name in many if "data-" in name]) <= 48
    assert any(name.endswith("_last.log.txt") for name in many)
    assert not any("passes" in name or "party" in name for name in names)


def test_without_the_variable_nothing_is_kept(tmp_path: Path) -> None:
    played(tmp_path, None)
    assert {path.name for path in tmp_path.iterdir()} == {
        "base",
        "conftest.py",
        "test_story.py",
        *(["__pycache__"] if (tmp_path / "__pycache__").exists() else []),
    }
