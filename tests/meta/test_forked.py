"""Workers that are forked after collection (tests/support/forked.py) play as pytest alone does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems fork no workers"),
]

SUPPORT = Path(__file__).resolve().parents[1] / "support"
CONFTEST = """
import os
from pathlib import Path

import pytest
from forked import Forks

collected = os.getpid()

def pytest_configure(config):
    config.pluginmanager.register(Forks(config, 2, stack=["decimal"]), "forks")

def note(word):
    with Path("notes.txt").open("a") as file:
        file.write(f"{os.getpid()} {word}\\n")

@pytest.fixture(scope="session")
def server():
    note("server begins")
    yield
    note("server ends")

@pytest.fixture(scope="module")
def world(request, tmp_path_factory):
    yield tmp_path_factory.mktemp("world")
    note(f"world ends {request.path.name}")

@pytest.fixture(autouse=True)
def noted(request):
    assert os.getpid() != collected
    note(f"plays {request.node.name}")
"""
FILES = {
    "test_ends.py": """
import os
import signal

def test_before(): pass

def test_that_ends_its_process(world):
    os.kill(os.getpid(), signal.SIGKILL)

def test_after(world):
    print("said by the one after")
    assert len("three") == 3
""",
    "test_fails.py": """
import pytest

@pytest.fixture
def broken():
    raise RuntimeError

def test_fixture(broken): pass

def test_skipped():
    pytest.skip("not here")
""",
    **{
        f"test_many_{number}.py": """
import os
import sys

def test_one(server, world, tmp_path):
    assert tmp_path.parent == world.parent

def test_two(server, world):
    assert "decimal" in sys.modules

def test_that_forks(server):
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
"""
        for number in range(4)
    },
}


def played(folder: Path, files: dict[str, str], *options: str) -> tuple[int, str]:
    """Play these files; pytest's exit code and what it printed."""
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in files.items():
        (folder / name).write_text(text)
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder,
            "--basetemp", folder / "base", "--junitxml", folder / "tests.xml", "-W", "error",
            "-o", "junit_family=xunit1", *options, *sorted(files),
        ],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_what_is_played_is_counted_and_a_worker_that_ends_is_replaced(tmp_path: Path) -> None:
    code, said = played(tmp_path, FILES)
    assert code == 1, said
    assert "2 failed, 13 passed, 1 skipped, 1 error" in said
    assert "said by the one after" in said
    cases = {
        (case.get("file", ""), case.get("name", "")): [kind.tag for kind in case]
        for case in ET.parse(tmp_path / "tests.xml").iter("testcase")  # noqa: S314  # pytest's
    }
    assert len(cases) == 17
    assert {name for name, kinds in cases.items() if "failure" in kinds} == {
        ("test_ends.py", "test_that_ends_its_process"),
        ("test_ends.py", "test_after"),
    }
    notes = [line.split(" ", 1) for line in (tmp_path / "notes.txt").read_text().splitlines()]
    played_by: dict[str, list[str]] = {}
    for pid, word in notes:
        played_by.setdefault(word, []).append(pid)
    # Each test was played once, a file's by one process unless that process ended.
    words = re.findall(r"def (test_\w+)", "".join(FILES.values()))
    assert sum(len(played_by[f"plays {name}"]) for name in set(words)) == len(words)
    assert played_by["plays test_that_ends_its_process"] != played_by["plays test_after"]
    assert played_by["plays test_fixture"] == played_by["plays test_skipped"]
    # A fixture of a file ends with the file, one of the session with its process.
    assert len(played_by["world ends test_ends.py"]) == 1
    assert sorted(played_by["server begins"]) == sorted(played_by["server ends"])
    assert len({pid for pid, _word in notes}) == 3


def test_nothing_to_play_and_a_file_that_cannot_be_collected_end_as_with_pytest_alone(
    tmp_path: Path,
) -> None:
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    empty.mkdir()
    broken.mkdir()
    assert played(empty, {"test_none.py": ""})[0] == 5
    code, said = played(broken, {"test_odd.py": "import no_such_module", **FILES})
    assert code == 2, said
    assert not (broken / "notes.txt").exists()


def test_an_exception_that_nobody_sees_fails_at_the_end(tmp_path: Path) -> None:
    """As in one process: pytest collects garbage before it ends."""
    files = {
        "test_late.py": """
class Odd:
    def __del__(self):
        raise RuntimeError("nobody sees this")

def test_that_leaves_a_cycle():
    odd = Odd()
    odd.itself = odd
""",
    }
    code, said = played(tmp_path, files)
    assert code == 1, said
    assert "nobody sees this" in said


def test_it_stops_after_the_first_failure_where_it_is_told_to(tmp_path: Path) -> None:
    code, said = played(tmp_path, FILES, "-x")
    assert code == 1, said
    assert "1 failed" in said or "1 error" in said
    notes = (tmp_path / "notes.txt").read_text()
    assert notes.count("server begins") == notes.count("server ends")
