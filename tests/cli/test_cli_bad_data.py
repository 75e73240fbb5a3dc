"""Owners' files that no training can use, each refused by the command that first judges it.

``bad_data.txt`` has a row for each kind: the command, its exit code, the error's code, what it is
about, and the words that the user reads. The words are there for readers of
``docs/reference/bad-inputs.md``; only what comes before them is compared.
``SEALTRAIN_WRITE_TABLE=1`` writes the table anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from bad_data import FILES, JUDGED, judged
from typer.testing import CliRunner

from sealtrain.cli import app

pytestmark = [
    pytest.mark.claim("C575"),
    pytest.mark.claim("C584"),
    pytest.mark.claim("C618"),
    pytest.mark.claim("C619"),
    pytest.mark.claim("C640"),
    pytest.mark.claim("C647"),
    pytest.mark.claim("C700"),
    pytest.mark.long,
]

TABLE = Path(__file__).with_name("bad_data.txt")
COMMAND = "recipe check"
WRITE_TABLE = "SEALTRAIN_WRITE_TABLE" in os.environ


def row(name: str, folder: Path) -> str:
    """The kind, and how it is refused."""
    file = judged(name, folder)
    recipe, records = str(folder / "recipe.yaml"), f"hospital-a.records={file}"
    words = [*COMMAND.split(), recipe, "--records", records, "--json"]
    if name in FILES and FILES[name].seal_as is not None:
        words += ["--seal-as", f"hospital-a.records={FILES[name].seal_as}"]
    done = CliRunner().invoke(app, words)
    said = json.loads(done.stdout)
    assert done.exit_code
    assert not said["fits"]
    (wrong,) = said["wrong"]
    assert str(folder) not in wrong["message"]
    parts = [str(wrong[part]) for part in ("message", "hint") if wrong.get(part)]
    told = "; ".join(parts).replace("|", "/").replace("\n", " ")
    return f"{name} | {COMMAND} | {done.exit_code} | {wrong['code']} | {wrong['about']} | {told}"


def known() -> dict[str, str]:
    lines = TABLE.read_text("utf-8").splitlines() if TABLE.exists() else []
    return {line.split(" | ", 1)[0]: line for line in lines}


@pytest.mark.parametrize("name", [*JUDGED, *FILES])
def test_a_file_that_no_training_can_use_is_refused_as_the_table_says(
    name: str, tmp_path: Path
) -> None:
    found = row(name, tmp_path)
    if WRITE_TABLE:
        lines = known() | {name: found}
        TABLE.write_text("\n".join(lines[line] for line in sorted(lines)) + "\n", "utf-8")
        return
    assert found.split(" | ")[:5] == known()[name].split(" | ")[:5]


def test_the_table_has_every_kind() -> None:
    assert set(known()) == {*JUDGED, *FILES}
