"""Write ``docs/reference/cli.md`` from the command tree: the page is the help texts, in full.

Usage: ``python tools/cli_reference.py [--check]``

With ``--check`` nothing is written; a stale page exits 1.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sealtrain.cli import app
from sealtrain.cli.commands import SECTIONS
from sealtrain.cli.project import KEYS, NETWORK

if TYPE_CHECKING:
    from click import Command, Parameter

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"

_INTRO = """\
# Commands

Written by `tools/cli_reference.py` from the program's own help; `make format` refreshes it.

stdout holds the result: one JSON object with `--json`, plain lines without. Everything said to a
person is on stderr. Commands leave with one of six [exit codes](exit-codes.md); refusals carry an
[error code](errors.md). A value in brackets behind an option is used when it is not given.

An option that a command needs and does not get comes from a `SEALTRAIN_*` variable, or else from
the [project file](project-file.md), the nearest `sealtrain.toml` in this folder or above it:
"""


def commands(command: Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Command]]:
    """Every command that does something, with its full name, in the order of ``--help``."""
    group: Any = command if hasattr(command, "list_commands") else None
    # A group that does something by itself; the root only shows help and version.
    if group is None or (len(path) > 1 and group.invoke_without_command):
        yield " ".join(path), command
    if group is not None:
        context = typer.Context(group)  # of the click that typer uses
        for name in group.list_commands(context):
            if child := group.get_command(context, name):
                yield from commands(child, (*path, name))


def render() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    found = list(commands(root, ("sealtrain",)))
    index = "\n".join(_index(heading, names, found) for heading, names in SECTIONS.items())
    sections = "".join(_section(name, value) for name, value in found)
    return f"{_INTRO}\n{_project_keys()}\n{index}{sections}"


def _index(heading: str, names: tuple[str, ...], found: list[tuple[str, Command]]) -> str:
    """The commands of a section of ``sealtrain --help``."""
    lines = [
        f"- [`{name}`](#{_anchor(name)}): {_summary(value)}"
        for name, value in found
        if name.split()[1] in names
    ]
    return "\n".join([f"**{heading}**\n", *lines, ""])


def _project_keys() -> str:
    """The table of what a project file and variables can say."""
    rows = []
    for name, key in KEYS.items():
        named = key.parameter if key.parameter.startswith("-") else key.parameter.upper()
        variable = f"`{key.variable}`" if key.variable else ""
        rows.append(f"| `{name}` | `{named}` | {variable} | {key.help}{' A list.' * key.many} |")
    rows += [
        f"| `{name}` | | `{setting.variable}` | {setting.help} |"
        for name, setting in NETWORK.items()
    ]
    head = ["| key | stands for | variable | is |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def _section(name: str, command: Command) -> str:
    parameters = [param for param in command.params if param.name != "help"]
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    usage = " ".join([name, *(_placeholder(argument) for argument in arguments), "[OPTIONS]"])
    parts = [f"\n## {name}\n", _text(command), f"\n```text\n{usage}\n```"]
    if parameters:
        parts.append("\n| | |\n|---|---|")
        parts.extend(_row(parameter) for parameter in parameters)
    return "\n".join(parts) + "\n"


def _row(parameter: Parameter) -> str:
    help_text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    if parameter.param_type_name == "argument":
        return f"| `{_placeholder(parameter)}` | {help_text} |"
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    notes = []
    if parameter.required:
        notes.append("required")
    elif not getattr(parameter, "is_flag", False) and (default := _default(parameter)):
        notes.append(f"[`{default}`]")
    elif parameter.secondary_opts and parameter.default is not None:
        notes.append(
            f"[`{parameter.opts[0] if parameter.default else parameter.secondary_opts[0]}`]"
        )
    if parameter.multiple:
        notes.append("may be repeated")
    return f"| {names} | {' '.join([help_text, '; '.join(notes)]).strip()} |"


def _default(parameter: Parameter) -> str:
    value = parameter.default
    if value is None or callable(value) or isinstance(value, (list, tuple)):
        return ""
    return str(value)


def _placeholder(parameter: Parameter) -> str:
    name = (parameter.metavar or parameter.name or "").upper()
    return name if parameter.required else f"[{name}]"


def _text(command: Command) -> str:
    return inspect.cleandoc(command.help or "").strip()


def _summary(command: Command) -> str:
    return " ".join(_text(command).partition("\n\n")[0].split())


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def main() -> None:
    """Rewrite the page, or with ``--check`` compare it."""
    fresh = render()
    if PAGE.exists() and PAGE.read_text("utf-8") == fresh:
        return
    if "--check" in sys.argv[1:]:
        raise SystemExit(f"{PAGE.name} is stale: run python tools/cli_reference.py")
    PAGE.write_text(fresh, "utf-8")


if __name__ == "__main__":
    main()
