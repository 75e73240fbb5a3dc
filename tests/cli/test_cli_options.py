"""A command takes options that belong together as one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
import typer
from typer.testing import CliRunner

from sealtrain.cli.options import spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a guest is."""

    guest: Annotated[str, typer.Option(help="Its socket.")]
    platform: Annotated[str, typer.Option("--on", help="What it runs on.")] = "tdx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What lies beside it."""

    certificate: Annotated[list[Path] | None, typer.Option(help="Certificates; repeat.")] = None


def program(command: Callable[..., None]) -> tuple[typer.Typer, click.Command]:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(spread(command))
    return app, typer.main.get_command(app)


def test_fields_are_options_in_the_place_of_the_object() -> None:
    def run(
        lock: Annotated[Path, typer.Argument()],
        guest: Place,
        files: Files,
        threads: Annotated[int, typer.Option(min=1)] = 1,
    ) -> None:
        """Run."""

    _, command = program(run)
    assert [(param.name, param.opts, param.required) for param in command.params] == [
        ("lock", ["lock"], True),
        ("guest", ["--guest"], True),
        ("platform", ["--on"], False),
        ("certificate", ["--certificate"], False),
        ("threads", ["--threads"], False),
    ]
    assert command.help == "Run."


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--guest", "here"], (Place(guest="here"), Files(), 1)),
        (
            ["--certificate", "a", "--threads", "2", "--guest", "x", "--on", "snp"],
            (Place(guest="x", platform="snp"), Files(certificate=[Path("a")]), 2),
        ),
    ],
)
def test_the_command_gets_objects(words: list[str], expected: tuple[Any, ...]) -> None:
    given = []

    def run(guest: Place, files: Files, threads: int = 1) -> None:
        given.append((guest, files, threads))

    app, _ = program(run)
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, given) == (0, [expected])


def test_two_options_of_one_name_are_refused() -> None:
    def run(place: Place, guest: Annotated[str, typer.Option()]) -> None: ...

    with pytest.raises(ValueError, match="guest"):
        spread(run)


def test_a_command_without_objects_stays_what_it_is() -> None:
    def run(lock: Annotated[Path, typer.Argument()]) -> None: ...

    assert spread(run) is run
