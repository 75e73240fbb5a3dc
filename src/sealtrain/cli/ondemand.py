"""A command group that builds a command when it is asked for, so that the program starts at once.

typer reads the parameters of every registered command before it runs one. That is a third of the
time of ``sealtrain --help``, which shows only names and summaries, and is repeated by every start.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, MutableMapping
from typing import Any

import click
import typer.core
import typer.main
from typer.models import CommandInfo, TyperInfo

__all__ = ["on_demand"]


class _Commands(MutableMapping[str, click.Command]):
    """Commands by name in the order they were registered, each built on first use."""

    def __init__(self, registry: typer.Typer) -> None:
        self._waiting: dict[str, CommandInfo | TyperInfo] = {
            **{_name_of(info): info for info in registry.registered_commands},
            **{str(info.name): info for info in registry.registered_groups},
        }
        self._built: dict[str, click.Command] = {}

    def summary(self, name: str, limit: int) -> str:
        """What the list of commands says, at most ``limit`` characters; builds nothing."""
        info = self._waiting[name]
        if isinstance(info, CommandInfo):
            text = info.help or inspect.getdoc(info.callback)
        else:
            text = typer.main.solve_typer_info_help(info)
        return click.Command(name, help=text).get_short_help_str(limit)

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._built:
            self._built[name] = _build(self._waiting[name])
        return self._built[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        raise TypeError("commands are registered before the group is made")

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands stay registered")

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)


def on_demand(registry: typer.Typer) -> type[typer.core.TyperGroup]:
    """The class of a group with the commands of ``registry``: give it to a Typer as ``cls``."""
    commands = _Commands(registry)

    class OnDemandGroup(typer.core.TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = commands

        def list_commands(self, ctx: click.Context) -> list[str]:
            return list(commands)

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            limit = formatter.width - 6 - max(map(len, commands))
            with formatter.section("Commands"):
                formatter.write_dl([(name, commands.summary(name, limit)) for name in commands])

    return OnDemandGroup


def _build(info: CommandInfo | TyperInfo) -> click.Command:
    if isinstance(info, CommandInfo):
        return typer.main.get_command_from_info(
            info, pretty_exceptions_short=False, rich_markup_mode=None
        )
    return typer.main.get_group_from_info(
        info, pretty_exceptions_short=False, rich_markup_mode=None, suggest_commands=True
    )


def _name_of(info: CommandInfo) -> str:
    if info.name:
        return info.name
    if info.callback is None:
        raise TypeError("a command has a function")
    return typer.main.get_command_name(info.callback.__name__)
