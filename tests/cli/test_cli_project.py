"""What is not typed comes from a variable, and else from the project file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import pytest
import typer
from click.testing import CliRunner, Result

from sealtrain.cli.command import Command
from sealtrain.cli.project import find_project

SHOWN: list[dict[str, object]] = []


def command(*, measured: bool = False) -> Command:
    """A command with the options that a project file knows."""

    def act(
        lock: Annotated[Path, typer.Argument(help="Lock.")],
        identity: Annotated[Path, typer.Option(help="Identity.")],
        brokers: Annotated[list[Path], typer.Option("--broker", help="Brokers.")],
        consortium: Annotated[Path, typer.Option(help="Consortium.")] = Path("consortium.json"),
        deployment: Annotated[Path | None, typer.Option(help="Of another recipe.")] = None,
    ) -> None:
        """Act."""
        SHOWN.append(
            {
                "lock": lock,
                "identity": identity,
                "brokers": brokers,
                "consortium": consortium,
                "deployment": deployment,
            }
        )

    program = typer.Typer(add_completion=False, rich_markup_mode=None)
    program.command("act", cls=Command)(act)
    made = typer.main.get_command(program)
    assert isinstance(made, Command)
    made.settle(("act",), measured=measured)
    return made


def ran(*words: str, measured: bool = False) -> Result:
    SHOWN.clear()
    return CliRunner().invoke(command(measured=measured), words)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: two below a project file."""
    (tmp_path / "sealtrain.toml").write_text(
        'version = 1\nconsortium = "c.json"\nbrokers = ["a.yaml", "b.yaml"]\n'
        'identity = "keys/me.json"\ndeployment = "locked/app-compose.json"\n'
    )
    below = tmp_path / "one" / "two"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    return tmp_path


def test_the_nearest_file_above_fills_in_what_is_missing(folder: Path) -> None:
    result = ran()
    assert result.exit_code == 0, result.stderr
    assert [
        {
            "lock": folder / "locked/recipe.lock.json",
            "identity": folder / "keys/me.json",
            "brokers": [folder / "a.yaml", folder / "b.yaml"],
            "consortium": folder / "c.json",
            "deployment": None,  # the command can do without it
        }
    ] == SHOWN
    assert str(folder / "sealtrain.toml") in result.stderr
    assert "identity" in result.stderr


def test_a_flag_wins_over_a_variable_and_that_over_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEALTRAIN_IDENTITY", "of-variable.json")
    monkeypatch.setenv("SEALTRAIN_BROKERS", "c.yaml:d.yaml")
    monkeypatch.setenv("SEALTRAIN_LOCK", "other.lock.json")
    assert ran("--identity", "of-flag.json").exit_code == 0
    [shown] = SHOWN
    assert shown["identity"] == Path("of-flag.json")
    assert shown["brokers"] == [Path("c.yaml"), Path("d.yaml")]
    assert shown["lock"] == Path("other.lock.json")
    assert shown["consortium"] == folder / "c.json"


def test_everything_typed_asks_for_no_file(folder: Path) -> None:
    words = ("x.lock", "--identity", "i", "--broker", "b", "--consortium", "c")
    assert "sealtrain.toml" not in ran(*words).stderr


@pytest.mark.parametrize("measured", [False, True])
def test_without_a_file_click_says_what_is_missing(folder: Path, measured: bool) -> None:
    if not measured:
        (folder / "sealtrain.toml").unlink()
    result = ran(measured=measured)
    assert (result.exit_code, SHOWN) == (2, [])
    assert "Missing argument 'LOCK'" in result.stderr


def test_no_file_above_is_no_project(tmp_path: Path) -> None:
    assert find_project(tmp_path, {}) is None


def test_the_values_are_click_values(folder: Path) -> None:
    context = command().make_context("act", [])
    source = context.get_parameter_source("identity")
    assert source is click.core.ParameterSource.DEFAULT_MAP
