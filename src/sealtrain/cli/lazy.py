"""Command groups that import a command's module when the command is asked for.

This is the lazy group of click's documentation ("Lazily Loading Subcommands"). A table names the
place of each command and its line in the list of commands, so that ``--help`` of a group imports
none of them. Commands are functions with typer's annotations, and typer makes click's commands of
them; a dataclass among the parameters stands for options that belong together (``cli.options``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import click
import typer.core
import typer.main

from sealtrain.base import distributions
from sealtrain.base.collector import pause_collection
from sealtrain.cli.command import Command, SettledCommand
from sealtrain.cli.options import spread


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command.

    Attributes:
        place: Its function, as ``module:function``.
        summary: The first sentence of the function's docstring.
        measured: A deployment document may start it: it takes nothing from variables or project
            files (``cli.command``).
    """

    place: str
    summary: str
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Noun:
    """A group of commands.

    Attributes:
        summary: Its help.
        commands: By name, in the order of ``--help``.
        place: The function of the group's own command, for a group that does something by itself.
        no_args_is_help: Whether the group shows its help where no command is named.
        measured: As of a command, for the group's own.
    """

    summary: str
    commands: Entries
    place: str | None = None
    no_args_is_help: bool = False
    measured: bool = False


Entries: TypeAlias = Mapping[str, "CommandEntry | Noun"]


class LazyGroup(SettledCommand, typer.core.TyperGroup):
    """A group of the commands of a table.

    Args:
        entries: The table.
        path: The group's words after ``sealtrain``.
        sections: Names of the table by heading, for the list of commands; each name once.
        settings: As of any group.
    """

    def __init__(
        self,
        *,
        entries: Entries,
        path: tuple[str, ...] = (),
        sections: Mapping[str, Sequence[str]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.entries = entries
        self.path = path
        self.sections = {"Commands": tuple(entries)} if sections is None else sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the sections."""
        return [name for names in self.sections.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module and make the command; ``None`` for an unknown name."""
        entry = self.entries.get(cmd_name)
        return None if entry is None else make_command((*self.path, cmd_name), entry)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by the first word, or suggest names like it."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click suggests only commands that are loaded
            name = error.command_name
            raise click.NoSuchCommand(name, possibilities=self.entries, ctx=ctx) from None

    def _asks_project(self, args: list[str]) -> bool:
        """The group's own command asks; a command of it does so by itself."""
        return super()._asks_project(args) and not set(args) & set(self.entries)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, each line whole; none of them is imported."""
        for heading, names in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.entries[name].summary) for name in names])


def load(place: str) -> Callable[..., None]:
    """Import the function at ``module:function``."""
    module, _, _ = place.partition(":")
    with nullcontext() if module in sys.modules else pause_collection():
        function: Callable[..., None] = distributions.load(place)
    return function


def make_command(path: tuple[str, ...], entry: CommandEntry | Noun) -> click.Command:
    """Make the command at a place of the table.

    Args:
        path: Its words after ``sealtrain``.
        entry: Its line.
    """
    if isinstance(entry, CommandEntry):
        return _command(path, entry.place, measured=entry.measured)
    own = None if entry.place is None else _command(path, entry.place, measured=entry.measured)
    group = LazyGroup(
        name=path[-1],
        entries=entry.commands,
        path=path,
        help=entry.summary,
        params=None if own is None else own.params,
        callback=None if own is None else own.callback,
        invoke_without_command=own is not None,
        no_args_is_help=entry.no_args_is_help,
        rich_markup_mode=None,
    )
    group.settle(path, measured=entry.measured or own is None)
    return group


def _command(path: tuple[str, ...], place: str, *, measured: bool) -> Command:
    only = typer.Typer(add_completion=False, rich_markup_mode=None)
    only.command(path[-1], cls=Command)(spread(load(place)))
    command = typer.main.get_command(only)
    if not isinstance(command, Command):
        raise TypeError("typer made another kind of command")
    command.settle(path, measured=measured)
    return command
