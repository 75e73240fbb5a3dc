"""The command line explains itself: every command, option and argument has help."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest
from cli_tree import all_commands
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

import sealtrain
from sealtrain.cli import app
from sealtrain.cli.commands import COMMANDS
from sealtrain.cli.lazy import Entries, Noun, load
from sealtrain.recipe.installation import code_sha256, measure_code

pytestmark = pytest.mark.long


@cache
def by_path() -> dict[tuple[str, ...], click.Command]:
    """Every command and group by what is typed; the program itself is ``()``."""
    return dict(all_commands())


def groups() -> list[tuple[str, ...]]:
    return [path for path, command in by_path().items() if isinstance(command, click.Group)]


def listed(entries: Entries = COMMANDS) -> Iterator[tuple[str, str]]:
    """Place and summary of everything in the table that has a function."""
    for entry in entries.values():
        if entry.place is not None:
            yield entry.place, entry.summary
        if isinstance(entry, Noun):
            yield from listed(entry.commands)


def first_sentence(text: str) -> str:
    head, mark, _ = " ".join(text.split()).partition(". ")
    return head + "." * bool(mark)


def faults_of_help(path: tuple[str, ...]) -> list[str]:
    wide = {"terminal_width": 1000, "max_content_width": 1000}
    result = CliRunner().invoke(app, [*path, "--help"], **wide)
    summary = " ".join((by_path()[path].help or "").partition("\n\n")[0].split())
    promises = {
        "exit code": result.exit_code == 0,
        "a summary ends in a full stop": summary.endswith("."),
        "the summary is shown": summary in " ".join(result.stdout.split()),
        "brackets are shown without a backslash": "\\[" not in result.stdout,
    }
    return [promise for promise, kept in promises.items() if not kept]


def test_every_command_shows_its_help() -> None:
    assert by_path()
    assert {path: faults for path in by_path() if (faults := faults_of_help(path))} == {}


def test_every_parameter_says_what_it_is() -> None:
    silent = [
        (path, parameter.name)
        for path, command in by_path().items()
        for parameter in command.params
        if not (getattr(parameter, "help", None) or "").strip()
    ]
    assert silent == []


def test_no_secret_is_taken_as_an_argument() -> None:
    """What is typed lands in shell histories and process lists: secrets come from files."""
    words = {"password", "passphrase", "private-key", "secret-key", "token"}
    taking = [
        (path, name)
        for path, command in by_path().items()
        for parameter in command.params
        for name in parameter.opts
        if name.lstrip("-") in words
    ]
    assert taking == []


def test_every_command_that_answers_offers_json() -> None:
    # The first two print JSON anyway; the others serve until they are stopped.
    talks_only = {
        "openapi",
        "schema",
        "serve",
        "agent",
        "accelerator",
        "credentials",
    }
    without = [
        " ".join(path)
        for path, command in by_path().items()
        if path
        and not isinstance(command, click.Group)
        and path[-1] not in talks_only
        and "--json" not in [name for param in command.params for name in param.opts]
    ]
    assert without == []


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command_on_stdout(flag: str) -> None:
    result = CliRunner().invoke(app, [flag])
    assert result.exit_code == 0
    assert result.stderr == ""
    for path in by_path():
        if len(path) == 1:
            assert f" {path[0]} " in result.stdout


LOADED_BY = """
import json, sys, sealtrain.cli as cli, typer
root = typer.main.get_command(cli.app)
for words in json.loads(sys.argv[1]):
    root([*words, "--help"], standalone_mode=False)
print("loaded:" + json.dumps(sorted(sys.modules)))
"""


def loaded_by_help_of(*paths: tuple[str, ...]) -> set[str]:
    """Modules that a fresh process has loaded when it has shown these help pages."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BY, json.dumps(paths)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.rpartition("loaded:")[2]))


def test_help_of_a_group_loads_none_of_its_commands() -> None:
    commands = {place.partition(":")[0] for place, _ in listed()}
    own = {
        entry.place.partition(":")[0]
        for entry in COMMANDS.values()
        if isinstance(entry, Noun) and entry.place
    }
    heavy = {"cryptography", "httpx2", "pydantic", "pyarrow", "torch", "yaml"}
    loaded = loaded_by_help_of(*groups())
    assert loaded & (commands - own) == set()
    assert loaded & heavy == set()


def test_help_of_a_command_loads_its_module_alone() -> None:
    commands = {place.partition(":")[0] for place, _ in listed()}
    assert loaded_by_help_of(("verify",)) & commands == {"sealtrain.cli.manifest"}


def test_summaries_are_the_first_sentences_of_the_commands() -> None:
    wrong = {
        place: summary
        for place, summary in listed()
        if first_sentence(inspect.getdoc(load(place)) or "") != summary
    }
    assert wrong == {}


def test_every_command_is_loaded_without_any_extra(repository: Path) -> None:
    """Help is shown, and a missing extra named, where only the core is installed."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    core = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    extras = {
        canonicalize_name(Requirement(line).name)
        for lines in project["optional-dependencies"].values()
        for line in lines
    } - {"sealtrain"}
    absent = [
        module
        for module, names in packages_distributions().items()
        if extras & set(map(canonicalize_name, names))
        and not core & set(map(canonicalize_name, names))
    ]
    assert {"torch", "pyarrow", "sqlalchemy", "fastapi", "web3"} <= set(absent)
    program = (
        "import json, sys\n"
        "absent, places = json.loads(sys.argv[1])\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        "from sealtrain.cli.lazy import load\n"
        "for place in places: load(place)\n"
    )
    given = json.dumps([absent, [place for place, _ in listed()]])
    done = subprocess.run([sys.executable, "-c", program, given], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_version_comes_with_the_digest_of_the_code() -> None:
    result = CliRunner().invoke(app, ["--version"])
    told = f"{sealtrain.__version__}\ncode {code_sha256(measure_code())}\n"
    assert (result.exit_code, result.stdout) == (0, told)


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
    assert result.stdout.splitlines()[0] == sealtrain.__version__


def test_the_reference_page_is_fresh(repository: Path) -> None:
    result = subprocess.run(
        [sys.executable, "tools/cli_reference.py", "--check"],
        cwd=repository,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
