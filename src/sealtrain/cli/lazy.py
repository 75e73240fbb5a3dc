"""Command groups that import a command's module when the command is asked for.

This is the lazy group of click's documentation ("Lazily Loading Subcommands"). A table names the
place of each command and its line in the list of commands, so that ``--help`` of a group imports
none of them. Commands are functions with typer's annotations, and typer makes click's commands of
them; a dataclass among the parameters stands for options that belong together (``cli.options``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

import click
import typer.core
import typer.main

from sealtrain.cli.options import spread

__all__ = ["Entries", "Entry", "LazyGroup", "Noun", "load"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A command.

    Attributes:
        place: Its function, as ``module:function``.
        summary: The first sentence of the function's docstring.
    """

    place: str
    summary: str


@dataclass(frozen=True, slots=True)
class Noun:
    """A group of commands.

    Attributes:
        summary: Its help.
        commands: By name, in the order of ``--help``.
        place: The function of the group's own command, for a group that does something by itself.
        no_args_is_help: Whether the group shows its help where no command is named.
    """

    summary: str
    commands: Entries
    place: str | None = None
    no_args_is_help: bool = False


Entries: TypeAlias = Mapping[str, "Entry | Noun"]


class LazyGroup(typer.core.TyperGroup):
    """A group of the commands of a table.

    Args:
        entries: The table.
        settings: As of any group.
    """

    def __init__(self, *, entries: Entries, **settings: Any) -> None:
        super().__init__(**settings)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module and make the command; ``None`` for an unknown name."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        return _group(cmd_name, entry) if isinstance(entry, Noun) else _command(cmd_name, entry)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by the first word, or suggest names that are like it."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click suggests only commands that are loaded
            name = error.command_name
            raise click.NoSuchCommand(name, possibilities=self.entries, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; none of them is imported."""
        limit = formatter.width - 6 - max(map(len, self.entries))
        rows = [
            (name, click.Command(name, help=entry.summary).get_short_help_str(limit))
            for name, entry in self.entries.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def load(place: str) -> Callable[..., None]:
    """Import the function at ``module:function``."""
    module, _, name = place.partition(":")
    function: Callable[..., None] = getattr(import_module(module), name)
    return function


def _command(name: str, entry: Entry) -> click.Command:
    only = typer.Typer(add_completion=False, rich_markup_mode=None)
    only.command(name)(spread(load(entry.place)))
    return typer.main.get_command(only)


def _group(name: str, noun: Noun) -> LazyGroup:
    own = None if noun.place is None else _command(name, Entry(noun.place, noun.summary))
    return LazyGroup(
        name=name,
        entries=noun.commands,
        help=noun.summary,
        params=None if own is None else own.params,
        callback=None if own is None else own.callback,
        invoke_without_command=own is not None,
        no_args_is_help=noun.no_args_is_help,
        rich_markup_mode=None,
    )
