"""The commands that ``up`` prints are whole: an option that another terminal needs is there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from sealtrain_rehearsal.up import CONSORTIUM, Site

DEPLOYMENT = Path("locked/app-compose.json")
PROJECT = """version = 1
consortium = "ours/consortium.json"
"""


def commands(consortium: Path) -> dict[str, list[str]]:
    """The words of each printed command, by its name."""
    site = Site(out=Path("up"), words=(), brokers=1, port=8470)
    [recipe] = site.recipes([DEPLOYMENT])
    lines = [line.strip() for line in site.lines(consortium, recipe, first=True)]
    words = [shlex.split(line) for line in lines if line.startswith("sealtrain ")]
    return {found[1]: found for found in words}


@pytest.mark.parametrize("name", ["lock", "seal"])
def test_a_consortium_that_no_command_would_find_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--consortium" not in commands(CONSORTIUM)[name]
    other = Path("ours/the consortium.json")
    words = commands(other)[name]
    assert words[words.index("--consortium") + 1] == str(other)


def test_a_project_names_its_consortium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sealtrain.toml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    assert "--consortium" not in commands(Path("ours/consortium.json"))["seal"]
    assert "--consortium" in commands(CONSORTIUM)["seal"]
