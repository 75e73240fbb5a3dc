"""Lanes: a change replays what it can break and nothing else; nightly believes no record."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from lane_digests import (
    ASIDE,
    digest_of,
    digest_of_environment,
    files_of,
    files_with_tests,
    is_test,
    tracked_files,
)
from lane_record import RECORD, Passed, read_record, write_record
from lane_table import CORE, ENVIRONMENTS, LANES, OtherEnvironment, SuiteLane, lane_of
from play_beside import play_beside
from play_lanes import choose, play

from sealtrain.recipe.kinds import KINDS

pytestmark = [pytest.mark.long, pytest.mark.needs("git")]

OURS = re.compile(r"\bsealtrain_(chain|console|nodes|rehearsal|together\.[a-z]+)\b")
PAGES = re.compile(r"""(?:/ ["'](?=\w+["'])|["'](?=\w+/))(docs|spec|changes)\b""")
QUIET = ("-q", "-p", "no:cacheprovider")


@pytest.fixture(scope="module")
def files(repository: Path) -> dict[str, str]:
    """The digest of every file."""
    return tracked_files(repository)


@pytest.fixture(scope="module")
def replayed(repository: Path, files: dict[str, str]) -> Callable[[str], set[str]]:
    """Lanes whose digest is another one when a file has other bytes, or is new."""
    before = {lane.name: digest_of(lane, repository, files) for lane in LANES}

    def lanes_that_change(path: str) -> set[str]:
        others = dict(sorted({**files, path: "00" * 32}.items()))
        return {
            lane.name for lane in LANES if digest_of(lane, repository, others) != before[lane.name]
        }

    return lanes_that_change


# --- Which lanes a change replays -----------------------------------------------------------------


def test_the_kinds_of_collaboration_are_lanes() -> None:
    names = {lane.name for lane in LANES}
    assert set(KINDS) <= names
    assert {"chain", "simulator", "javascript", "evidence", "examples"} <= names
    assert {"brokers", "guests", "training"} <= names


PLACES = {"nodes": "packages/sealtrain-nodes/sealtrain_nodes"}
KIND = "packages/sealtrain-together/sealtrain_together"
BUILT_ON = {"pads": {"federated"}}
"""Kind → kinds that use it."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_in_a_kind_replays_it_and_those_built_on_it(
    replayed: Callable[[str], set[str]], files: dict[str, str], kind: str
) -> None:
    tests = [path for path in files if is_test(path)]
    own = [path for path in tests if lane_of(path.split("/")[-1]).name == kind]
    built = BUILT_ON.get(kind, set())
    place = PLACES.get(kind, f"{KIND}/{kind}")
    assert replayed(f"{place}/cli.py") & set(KINDS) == {kind, *built}
    for path in own[:2]:
        assert replayed(path) & set(KINDS) == {kind}


@pytest.mark.parametrize(
    "path",
    [
        "src/sealtrain/sealing/hpke.py",
        "pyproject.toml",
        "constraints.txt",
        "tests/conftest.py",
        "tests/support/keeping.py",
        "recipes/sft-lora.yaml",
        "tools/lanes/lane_table.py",
        "a_new_folder/of_a_new_file.txt",
    ],
)
def test_a_change_below_all_replays_all(replayed: Callable[[str], set[str]], path: str) -> None:
    assert replayed(path) == {lane.name for lane in LANES}


@pytest.mark.parametrize(
    "path", ["README.md", "docs/concepts/glossary.md", "tests/unit/sealing/test_sealing_hpke.py"]
)
def test_a_page_or_a_test_of_the_core_replays_the_core_alone(
    replayed: Callable[[str], set[str]], path: str
) -> None:
    assert replayed(path) == set()


def test_what_lanes_share_replays_those_that_use_it(replayed: Callable[[str], set[str]]) -> None:
    assert replayed(f"{KIND}/channel/handshake.py") >= set(KINDS)
    assert replayed("packages/sealtrain-chain/sealtrain_chain/proof.py") >= {"chain"}
    assert replayed("vectors/one-time-pads/field.json") & set(KINDS) == {"pads"}
    assert replayed("tests/support/pads_world.py") & set(KINDS) == {"pads", *BUILT_ON["pads"]}
    assert replayed("verify/checks.js") == {"chain", "evidence", "javascript", "simulator"}


@pytest.mark.parametrize(
    ("path", "replayed"),
    [
        ("constraints.txt", {"flower", "newest"}),
        ("packages/sealtrain-chain/pyproject.toml", {"newest"}),
        ("tools/flower/pins.txt", {"flower"}),
        ("packages/sealtrain-together/sealtrain_together/federated/relay.py", {"flower"}),
        ("tests/unit/collab/federated/test_flower_loop.py", {"flower"}),
        ("tests/support/federated_world.py", {"flower"}),
        ("src/sealtrain/cli/commands.py", {"newest"}),
        ("src/sealtrain/sealing/hpke.py", set()),
        ("packages/sealtrain-nodes/sealtrain_nodes/cli.py", {"newest"}),
        ("tests/unit/sealing/test_sealing_hpke.py", set()),
        ("docs/concepts/glossary.md", set()),
    ],
)
def test_another_environment_is_played_again_for_what_it_covers(
    repository: Path, files: dict[str, str], path: str, replayed: set[str]
) -> None:
    assert path in files
    others = {**files, path: "00" * 32}
    assert replayed == {
        environment.name
        for environment in ENVIRONMENTS
        if digest_of_environment(environment, repository, others)
        != digest_of_environment(environment, repository, files)
    }


# --- The table covers what the tests use ----------------------------------------------------------


def test_every_pattern_and_path_of_the_table_is_of_something(files: dict[str, str]) -> None:
    names = {path.split("/")[-1] for path in files if is_test(path)}
    for lane in LANES:
        assert {lane_of(name).name for name in names} >= {lane.name}
        for path in (*lane.owns, *lane.uses):
            assert any(name.startswith(path) for name in files), f"{lane.name}: {path}"


def place_of(found: str) -> str:
    """The folder of a package of a room, from what follows ``sealtrain_`` in its name."""
    room = found.partition(".")[0]
    return f"packages/sealtrain-{room}/sealtrain_{found.replace('.', '/')}/"


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.name)
def test_a_lane_covers_the_packages_and_pages_that_its_files_name(
    repository: Path, files: dict[str, str], lane: SuiteLane
) -> None:
    covered = files_of(lane, repository, files)
    missing: dict[str, set[str]] = {}
    for path in covered:
        if not path.startswith(("tests/", "benchmarks/", *lane.owns)) or path.startswith(
            "vectors/"
        ):
            continue
        text = (repository / path).read_text("utf-8")
        named = {place_of(found) for found in OURS.findall(text)}
        named |= {f"{found}/" for found in PAGES.findall(text)}
        for folder in named:
            beside = f"{folder.rstrip('/')}.py"  # one module in place of a folder
            if not any(name == beside or name.startswith(folder) for name in covered):
                missing.setdefault(folder, set()).add(path)
    assert missing == {}


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda environment: environment.name)
def test_an_environment_has_tests_and_uses_what_is_there(
    repository: Path, files: dict[str, str], environment: OtherEnvironment
) -> None:
    assert files_with_tests(environment, repository, files) >= set(environment.tests)
    assert files_with_tests(environment, repository, files)
    for path in environment.uses:
        assert any(name.startswith(path) for name in files), path


def test_what_lies_aside_is_there(files: dict[str, str]) -> None:
    assert [folder for folder in ASIDE if not any(path.startswith(folder) for path in files)] == []


# --- The night ------------------------------------------------------------------------------------


def test_contributing_says_of_every_file_with_nightly_tests_why(
    repository: Path, files: dict[str, str]
) -> None:
    page = (repository / "CONTRIBUTING.md").read_text("utf-8").partition("## The night")[2]
    rows = [line for line in page.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(test_[\w*]+\.py)`", row.split("|")[1])}
    marked = {
        path.split("/")[-1]
        for path in files
        if is_test(path)
        and re.search(
            r"mark\.nightly|from variants import .*\b(NIGHT|variants)\b",
            (repository / path).read_text("utf-8"),
        )
    } - {Path(__file__).name}
    assert [name for name in marked if not any(fnmatchcase(name, value) for value in named)] == []
    assert [value for value in named if not any(fnmatchcase(name, value) for name in marked)] == []


# --- The record -----------------------------------------------------------------------------------

SMALL = (
    SuiteLane(name="left", tests=("test_left.py",), owns=("src/left/",), uses=()),
    SuiteLane(name="right", tests=("test_right.py",), owns=("src/right/",), uses=()),
)
TEST = """\
from pathlib import Path

def test_it_says_yes() -> None:
    assert Path("src/{side}/word.txt").read_text() == "yes"
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two lanes and a core, all of which pass."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    root = tmp_path / "small"
    for side in ("left", "right", "sealtrain"):
        (root / "src" / side).mkdir(parents=True)
        (root / "src" / side / "word.txt").write_text("yes")
        (root / "tests").mkdir(exist_ok=True)
        (root / f"tests/test_{side}.py").write_text(TEST.format(side=side))
    (root / ".ci").mkdir()
    (root / ".gitignore").write_text("__pycache__/\ndist/\n")
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\ntestpaths = ['tests']\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "begin")
    return root


def git(root: Path, *words: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *names, *words], cwd=root, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def played(root: Path, *, changed: bool, missing: tuple[str, ...] = ()) -> set[str]:
    choices = choose(root, changed=changed, missing=missing, lanes=SMALL)
    return {choice.lane.name for choice in choices if choice.played}


def record(root: Path, *, missing: tuple[str, ...] = ()) -> int:
    choices = choose(root, changed=True, missing=missing, lanes=SMALL)
    return play(root, choices, options=QUIET, missing=missing, record=True, lanes=SMALL)


def test_what_passed_is_recorded_and_not_played_until_it_changes(small: Path) -> None:
    assert played(small, changed=True) == {"core", "left", "right"}
    assert record(small) == 0
    assert {passed.commit for passed in read_record(small).values()} == {
        git(small, "rev-parse", "HEAD")
    }
    assert played(small, changed=True) == {"core"}
    (small / "src/left/word.txt").write_text("yes ")
    assert played(small, changed=True) == {"core", "left"}
    assert played(small, changed=False) == {"core", "left", "right"}


def test_a_lane_that_fails_is_not_recorded_and_the_other_is(small: Path) -> None:
    (small / "src/left/word.txt").write_text("no")
    assert record(small) == 1
    assert set(read_record(small)) == {"right"}


def test_a_lane_that_fails_loses_nothing_by_an_older_record(small: Path) -> None:
    assert record(small) == 0
    (small / "src/left/word.txt").write_text("no")
    assert record(small) == 1
    assert played(small, changed=True) == {"core", "left"}


def test_a_record_edited_by_hand_is_found_by_nightly(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small / "src/left/word.txt").write_text("no")
    digest = digest_of(SMALL[0], small, tracked_files(small), SMALL)
    write_record(small, {"left": Passed(digest=digest, commit="0" * 40)})
    assert "left" not in played(small, changed=True)
    nightly = choose(small, lanes=SMALL)
    assert all(choice.played for choice in nightly)
    assert play(small, nightly, options=QUIET, lanes=SMALL) == 1
    assert "the record says that left passed" in capsys.readouterr().out


def test_a_lane_played_without_a_program_is_played_again_where_the_program_is(small: Path) -> None:
    assert record(small, missing=("node",)) == 0
    assert played(small, changed=True, missing=("node", "chromium")) == {"core"}
    assert played(small, changed=True) == {"core", "left", "right"}


APART = OtherEnvironment(name="apart", tests=("tests/test_left.py",), uses=("src/left/",))
SAYS_YES = ("grep", "-qx", "yes", "src/left/word.txt")


def played_beside(root: Path, *, changed: bool, record: bool = False) -> tuple[int, bool]:
    """How an environment's command ended, and whether it was run."""
    ran = root / "dist" / "ran"
    ran.unlink(missing_ok=True)
    command = ("sh", "-c", f"mkdir -p dist && touch dist/ran && {' '.join(SAYS_YES)}")
    code = play_beside(APART, root, command, changed=changed, record=record)
    return code, ran.exists()


def test_an_environment_that_passed_is_not_played_until_what_it_covers_changes(small: Path) -> None:
    assert played_beside(small, changed=True, record=True) == (0, True)
    assert read_record(small)["apart"].commit == git(small, "rev-parse", "HEAD")
    assert played_beside(small, changed=True) == (0, False)
    (small / "src/right/word.txt").write_text("yes ")
    assert played_beside(small, changed=True) == (0, False)
    (small / "src/left/word.txt").write_text("no")
    assert played_beside(small, changed=True, record=True) == (1, True)
    assert played_beside(small, changed=True) == (1, True)  # what failed is not recorded
    (small / "src/right/word.txt").write_text("yes")
    assert record(small) == 1  # lanes that are recorded leave the environment's line
    assert set(read_record(small)) == {"apart", "right"}


def test_an_environments_record_edited_by_hand_is_found_by_nightly(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small / "src/left/word.txt").write_text("no")
    digest = digest_of_environment(APART, small, tracked_files(small))
    write_record(small, {"apart": Passed(digest=digest, commit="0" * 40)})
    assert played_beside(small, changed=True) == (0, False)
    assert played_beside(small, changed=False) == (1, True)
    assert "the record says that apart passed" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", '{"left": {}}', '{"left": {"digest": 1}}', "{"])
def test_what_is_no_record_is_refused(small: Path, text: str) -> None:
    (small / RECORD).write_text(text)
    with pytest.raises(SystemExit):
        choose(small, changed=True, lanes=SMALL)


def test_the_record_of_this_repository_is_one(repository: Path) -> None:
    names = {lane.name for lane in LANES} | {environment.name for environment in ENVIRONMENTS}
    assert set(read_record(repository)) <= names - {CORE.name}
    if (repository / RECORD).exists():
        assert json.loads((repository / RECORD).read_text())
