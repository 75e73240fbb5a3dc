"""What owners and auditors do needs nothing that only Linux has."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import elsewhere
import pytest
from stage import OWNERS, RECIPE, Stage

pytestmark = pytest.mark.long

OWNERS_WORDS = {
    "approve", "inspect", "keygen", "log", "open", "report", "revoke", "rewrap", "seal", "trust",
    "verify",
}  # fmt: skip


class Elsewhere(Stage):
    """Owners and auditor sit at another system; broker and guest run on this one."""

    def __init__(self, folder: Path, there: Collection[str]) -> None:
        """Each kind of command in ``there`` begins once at the other system."""
        super().__init__(folder)
        self.there = {*there}

    def forks(self, words: Sequence[str]) -> bool:
        first = words[0] in self.there
        self.there.discard(words[0])
        return not first and super().forks(words)

    def command(self, *words: str | Path) -> list[str]:
        if words[0] in OWNERS_WORDS:
            return [sys.executable, elsewhere.__file__, *map(str, words)]
        return super().command(*words)


@pytest.mark.slow
@pytest.mark.parametrize(
    "there",
    [
        pytest.param({"seal"}, id="one kind"),
        pytest.param(OWNERS_WORDS, id="every kind", marks=pytest.mark.nightly),
    ],
)
def test_owners_and_auditors_need_nothing_that_only_linux_has(
    there: set[str], tmp_path: Path
) -> None:
    made = Elsewhere(tmp_path, there)
    with made.stack:
        made.found()
        recipe = RECIPE | {"name": "anywhere", "trainer": RECIPE["trainer"] | {"max_steps": 2}}
        folder = made.propose("anywhere", recipe)
        made.approve(folder, *OWNERS)
        made.run(*made.train_words(folder, "out"))
        made.run(
            "trust", "new", "--consortium", "consortium.json",
            "--deployment", folder / "app-compose.json", "--policy", "policy.yaml",
            "--broker", made.broker, "--out", "trust.yaml",
        )  # fmt: skip
        verified = made.run("verify", "out/manifest.json", "--trust", "trust.yaml")
        assert all(check["outcome"] != "failed" for check in verified["checks"])
        made.run("report", "out/manifest.json", "--trust", "trust.yaml", "--out", "report.html")
        me = ("--identity", made.identity("clinic-a"))
        made.run("open", "out/model", *me, "--out", "model")
        made.run("open", folder / "sealed/clinic-a.notes.sealed", *me, "--out", "notes.jsonl")
        given = (made.inputs / "clinic-a.notes.jsonl").read_text()
        assert (tmp_path / "notes.jsonl").read_text().splitlines() == given.splitlines()
        made.run(
            "revoke",
            "--deployment",
            folder / "app-compose.json",
            *me,
            "--broker",
            made.broker,
            "--yes",
        )
        made.run("log", "audit", "--broker", made.broker, "--consortium", "consortium.json")


def test_what_is_taken_away_is_gone() -> None:
    import subprocess

    program = (
        "import elsewhere; elsewhere.take_away(); import os; assert hasattr(os, 'fork')\n"
        'code = \'import os, socket; seen = hasattr(os, "fork"), hasattr(socket, "AF_UNIX")\'\n'
        "ours = {'__name__': 'sealtrain.some'}; exec(code, ours); print(ours['seen'])\n"
        "try: exec('import fcntl', ours)\n"
        "except ModuleNotFoundError as error: print(error.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        cwd=Path(elsewhere.__file__).parent,
    )  # fmt: skip
    assert done.stdout.split("\n")[:2] == ["(False, False)", "fcntl"]
