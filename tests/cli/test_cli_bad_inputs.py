"""Bad input to every command: the right exit code and error, nothing half-written, no row shown.

``bad_inputs.txt`` has what each call answers. ``SEALTRAIN_WRITE_TABLE=1`` writes it anew; read the
difference before you commit it. Where a changed byte lies differs from run to run, and so does the
answer to it: the table says so, and what holds for every answer is still checked.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_inputs import WORKING, Case, cases
from stage import CANARY, OWNERS, RECIPE, Stage, stage

TABLE = Path(__file__).with_name("bad_inputs.txt")
WRITE = "SEALTRAIN_WRITE_TABLE" in os.environ
VARIES = "varies | varies"
RESUMED = ("deploy run", "rehearse", "report")
"""Commands whose output stays after a failure: the next start goes on in it, or a person looks."""

pytestmark = pytest.mark.nightly  # more than a thousand calls

SERVERS = (
    "broker",
    "home",
    "tmp",
    "root",
    "part-",
    "engineer.sock",
    "bad",
    "status.json",
)
"""Where servers, supervisors and libraries write, and where the bad files lie."""


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("bad")
    trainer = RECIPE["trainer"] | {"max_steps": 6, "save_steps": 3}
    with stage(folder) as made:
        made.propose("engineer", RECIPE | {"trainer": trainer})
        made.approve(folder / "engineer", *OWNERS)
        made.run(*made.train_words(folder / "engineer", "run"))
        made.run(
            "trust", "new", "--consortium", "consortium.json", "--deployment", made.deployment,
            "--policy", "policy.yaml", "--broker", made.broker, "--out", made.trust,
        )  # fmt: skip
        made.run(
            "deploy", "ticket", "--role", "train", "--broker", made.broker,
            "--data", "file:engineer/sealed", "--out", "guest.ticket.json",
        )  # fmt: skip
        made.run(
            "attest", "collect", "--platform", "simulator", "--guest", "engineer.sock",
            *made.collateral, "--nonce", "00" * 32, "--out", "evidence.json",
        )  # fmt: skip
        made.run(
            "consortium", "propose", "--identity", made.identity("clinic-a"),
            "--broker", made.broker, "--approve", "3", "--out", "succession.json", "--yes",
        )  # fmt: skip
        made.run("broker", "backup", "--state", "broker/state", "--out", "backup")
        made.run("broker", "restore", "backup", "--state", "broker-copy")
        (folder / "axolotl.yaml").write_text("base_model: base\nadapter: lora\n")
        (folder / "data-use.yaml").write_text("purposes: [care]\nphi: limited\n")
        (folder / "token").write_text("x" * 40 + "\n")
        yield made


@pytest.fixture(scope="module")
def calls(at: Stage) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in cases(at.folder):
        found.setdefault(case.command, []).append(case)
    return found


@pytest.mark.parametrize("command", WORKING)
def test_bad_input_is_refused_by_name(
    command: str, at: Stage, calls: dict[str, list[Case]]
) -> None:
    expected = {line.rsplit(" | ", 2)[0]: line for line in TABLE.read_text("utf-8").splitlines()}
    rows = []
    for case in calls[command]:
        before = listing(at.folder)
        answer = at.try_run(*case.words)
        said = answer.stdout + answer.stderr
        assert "Traceback" not in said, case.name
        assert "a bug in sealtrain" not in said, case.name
        assert CANARY not in said, case.name
        error = json.loads(answer.stdout).get("error") or {}
        told = f"{answer.code} | {error.get('code', '-')}"
        rows.append(f"{case.name} | {VARIES if case.bad == 'changed' else told}")
        assert WRITE or rows[-1] == expected.get(case.name), said[-2000:]
        if answer.code and case.command not in RESUMED:
            assert listing(at.folder) == before, f"{case.name} left something behind"
        for made in {path for path, _ in listing(at.folder)} - {path for path, _ in before}:
            remove(at.folder / made)  # the next call finds what this one found
    if WRITE:
        keep = [line for line in expected.values() if not line.startswith(f"{command} | ")]
        TABLE.write_text("\n".join(sorted([*keep, *rows])) + "\n", "utf-8")


def test_every_row_of_the_table_is_a_call(calls: dict[str, list[Case]]) -> None:
    names = [line.rsplit(" | ", 2)[0] for line in TABLE.read_text("utf-8").splitlines()]
    assert sorted(names) == sorted(case.name for of in calls.values() for case in of)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def listing(folder: Path) -> set[tuple[str, int]]:
    """Every file below a folder with its size, but those of servers."""
    found = set()
    for place, folders, names in os.walk(folder):
        if Path(place) == folder:
            folders[:] = [name for name in folders if not name.startswith(SERVERS)]
            names = [name for name in names if not name.startswith(SERVERS)]
        for name in (*folders, *names):
            path = Path(place, name)
            found.add((str(path.relative_to(folder)), path.lstat().st_size))
    return found
