"""The command line explains itself: every command, option and argument has help."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import sealtrain
from sealtrain.cli import app

ROOT = typer.main.get_command(app)


def all_commands() -> Iterator[tuple[str, ...]]:
    """Paths of every command and group, the root first."""
    pending = [((), ROOT)]
    while pending:
        path, command = pending.pop(0)
        yield path
        pending.extend(
            ((*path, name), child) for name, child in getattr(command, "commands", {}).items()
        )


PATHS = list(all_commands())


def command_at(path: tuple[str, ...]):  # type: ignore[no-untyped-def]
    command = ROOT
    for name in path:
        command = command.commands[name]
    return command


@pytest.mark.parametrize("path", PATHS, ids=lambda path: " ".join(path) or "(root)")
def test_every_command_shows_its_help(path: tuple[str, ...]) -> None:
    wide = {"terminal_width": 1000, "max_content_width": 1000}
    result = CliRunner().invoke(app, [*path, "--help"], **wide)
    assert result.exit_code == 0
    summary = " ".join((command_at(path).help or "").partition("\n\n")[0].split())
    assert summary.endswith(".")
    assert summary in " ".join(result.stdout.split())
    assert "\\[" not in result.stdout


@pytest.mark.parametrize("path", PATHS, ids=lambda path: " ".join(path) or "(root)")
def test_every_parameter_says_what_it_is(path: tuple[str, ...]) -> None:
    silent = [
        parameter.name
        for parameter in command_at(path).params
        if not (getattr(parameter, "help", None) or "").strip()
    ]
    assert silent == []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: " ".join(path) or "(root)")
def test_no_secret_is_taken_as_an_argument(path: tuple[str, ...]) -> None:
    """What is typed lands in shell histories and process lists: secrets come from files."""
    words = {"password", "passphrase", "private-key", "secret-key", "token"}
    options = {name.lstrip("-") for one in command_at(path).params for name in one.opts}
    assert options & words == set()


def test_every_command_that_answers_offers_json() -> None:
    # The first two print JSON anyway; the others serve until they are stopped.
    talks_only = {"openapi", "schema", "serve", "accelerate", "accelerator", "dealer"}
    without = [
        " ".join(path)
        for path in PATHS
        if path
        and not hasattr(command_at(path), "commands")
        and path[-1] not in talks_only
        and "--json" not in [name for one in command_at(path).params for name in one.opts]
    ]
    assert without == []


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command_on_stdout(flag: str) -> None:
    result = CliRunner().invoke(app, [flag])
    assert result.exit_code == 0
    assert result.stderr == ""
    for path in PATHS:
        if len(path) == 1:
            assert f" {path[0]} " in result.stdout


def test_help_builds_no_command() -> None:
    """What makes ``--help`` fast: reading the parameters of all commands takes longer than it."""
    script = (
        "import sys, typer, sealtrain.cli as cli\n"
        "built = []\n"
        "real = typer.main.get_command_from_info\n"
        "typer.main.get_command_from_info = lambda info, **given: "
        "(built.append(info.callback.__name__), real(info, **given))[1]\n"
        "root = typer.main.get_command(cli.app)\n"
        "root(sys.argv[1:], standalone_mode=False)\n"
        "print('built:', *built)"
    )

    def built_by(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.rpartition("built:")[2].strip()

    assert built_by("--help") == ""
    assert built_by("verify", "--help") == "verify"


def test_summaries_are_those_of_the_commands_themselves() -> None:
    shown = CliRunner().invoke(app, ["--help"], terminal_width=80).stdout
    for name in ROOT.commands:
        assert f"  {name}  " in shown
        assert ROOT.commands[name].get_short_help_str(40).removesuffix("...") in shown


def test_the_version_is_the_package_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout.strip()) == (0, sealtrain.__version__)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["aprove"], id="unknown-command"),
        pytest.param(["verify"], id="missing-argument"),
        pytest.param(["verify", "manifest.json", "--trst", "x"], id="unknown-option"),
    ],
)
def test_a_command_line_that_makes_no_sense_exits_2_and_prints_nothing_on_stdout(
    words: list[str],
) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_the_module_runs_like_the_program() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "sealtrain", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == sealtrain.__version__


def test_the_reference_page_is_fresh(repository: Path) -> None:
    result = subprocess.run(
        [sys.executable, "tools/cli_reference.py", "--check"],
        cwd=repository,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
