"""Every command of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer

from sealtrain.cli import app

ROOT = typer.main.get_command(app)


def all_commands(
    command: click.Command = ROOT, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group under one, and the words that lead to it; the group comes first."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from all_commands(child, (*path, name))
