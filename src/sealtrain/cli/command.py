"""What every command has in common: the project file, and what it took from it.

Values come from the command line, then from a ``SEALTRAIN_*`` variable, then from the project file
(``cli.project``), then from the option's default: the order in which click looks. ``--help`` and
completion read no project file. A command that a deployment document may start
(``CommandEntry.measured``) takes nothing from variables or project files, because owners approved
its words and no more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import typer.core
from click.core import ParameterSource

from sealtrain.base.outbound import reach_by, reach_directly
from sealtrain.cli.outbound import settle_outbound
from sealtrain.cli.output import say
from sealtrain.cli.passphrases import passphrase_option
from sealtrain.cli.project import KEYS, Key, Project, find_project


class SettledCommand(click.Command):
    """A command whose missing options come from variables and the project file."""

    path: tuple[str, ...] = ()
    """Its words after ``sealtrain``."""
    open_to_project = False
    """Whether it takes anything from variables and the project file."""

    def settle(self, path: tuple[str, ...], *, measured: bool) -> None:
        """Name the command, and the variables of its options.

        Args:
            path: Its words after ``sealtrain``.
            measured: A deployment document may start it.
        """
        self.path = path
        self.open_to_project = not measured
        names = {parameter.opts[0] for parameter in self.params if parameter.opts}
        if "--identity" in names and "--passphrase-file" not in names:
            self.params.append(passphrase_option())
        if measured:
            return
        for parameter, key in _list_keyed(self):
            parameter.envvar = key.variable

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the words, with what the project file says besides."""
        quiet = bool(extra.get("resilient_parsing"))
        project = None
        if not quiet and self._asks_project(args):
            project = find_project()
        extra["default_map"] = {} if project is None else _defaults(self, project)
        context = super().make_context(info_name, args, parent=parent, **extra)
        if not quiet:
            decide = settle_outbound if self.open_to_project else reach_directly
            context.call_on_close(partial(reach_by, reach_by(decide)))
        _leave_memory(context)
        _say_taken(context, project)
        return context

    def _asks_project(self, args: list[str]) -> bool:
        if not self.open_to_project or {"-h", "--help"} & set(args):
            return False
        return any(True for _ in _list_keyed(self))


class Command(SettledCommand, typer.core.TyperCommand):
    """A command of the table."""


def _list_keyed(command: click.Command) -> Iterator[tuple[click.Parameter, Key]]:
    """Parameters that a project file may fill in, with their keys.

    These are the ones that a command needs, and those whose default is the guess of a place. A
    group marks none as needed, because its commands do without.
    """
    by_name = {key.parameter: key for key in KEYS.values()}
    for parameter in command.params:
        key = by_name.get(parameter.opts[0]) if parameter.opts else None
        if key is not None and (
            key.always
            or parameter.required
            or isinstance(parameter.default, Path)
            or isinstance(command, click.Group)
        ):
            yield parameter, key


def _defaults(command: click.Command, project: Project) -> MutableMapping[str, Any]:
    """What a project file says for a command, by the parameter's name."""
    names = {key.parameter: name for name, key in KEYS.items()}
    defaults: dict[str, Any] = {}
    for parameter, key in _list_keyed(command):
        value = project.value(names[key.parameter])
        if value is None or parameter.name is None:
            continue
        places = [str(place) for place in ((value,) if isinstance(value, Path) else value)]
        defaults[parameter.name] = places if parameter.multiple else places[0]
    return defaults


def _leave_memory(context: click.Context) -> None:
    """Take a memory only with the identity of the same project.

    It holds a ledger's key and newest tree head, which are not for a folder to choose that somebody
    else packed.
    """
    by_option = {parameter.opts[0]: parameter.name for parameter in context.command.params}
    memory, identity = by_option.get("--memory"), by_option.get("--identity")
    if memory is None or context.get_parameter_source(memory) is not ParameterSource.DEFAULT_MAP:
        return
    if (
        identity is None
        or context.get_parameter_source(identity) is not ParameterSource.DEFAULT_MAP
    ):
        context.params[memory] = None
        context.set_parameter_source(memory, ParameterSource.DEFAULT)


def _say_taken(context: click.Context, project: Project | None) -> None:
    """Name each place that was not typed, and where the name comes from."""
    if sys.flags.isolated and sys.flags.no_site:  # cli.alone: it was said before
        return
    folder = None if project is None else project.path.parent
    taken: dict[str, list[str]] = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is ParameterSource.DEFAULT_MAP and project is not None:
            origin = str(project.path)
        elif source is ParameterSource.ENVIRONMENT and isinstance(parameter.envvar, str):
            origin = parameter.envvar
        else:
            continue
        places = _places(context.params.get(parameter.name or ""), folder)
        taken.setdefault(origin, []).append(f"{parameter.opts[0].removeprefix('--')} {places}")
    for origin, named in taken.items():
        say(f"from {origin}: {', '.join(named)}")


def _places(value: Any, folder: Path | None) -> str:
    """Paths, those in the project file's folder as seen from there."""
    paths = [Path(str(path)) for path in (value if isinstance(value, list | tuple) else [value])]
    return " ".join(
        str(path if folder is None or not path.is_relative_to(folder) else path.relative_to(folder))
        for path in paths
    )
