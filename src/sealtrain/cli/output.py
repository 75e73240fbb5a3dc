"""How the command line speaks: one JSON object or plain text on stdout, talk on stderr."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click
import typer

from sealtrain.base.filenames import OWNER_NAME, slug
from sealtrain.base.files import system_failure
from sealtrain.base.visible_text import (
    cells,
    escape_hidden,
    escape_hidden_lines,
    pad_cells,
    replace_hidden,
)
from sealtrain.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sealtrain.errors import SealtrainError

_MOST_SAID = 4000
"""Characters of a field of an error: what was typed may be a whole file by mistake."""

_encode: Final = json.JSONEncoder(ensure_ascii=False).encode

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def emit(as_json: bool, data: dict[str, Any], lines: Iterable[str] = ()) -> None:
    """Print a command's result: ``data`` as JSON, or ``lines`` for people."""
    if as_json:
        typer.echo(json_text(data))
    else:
        for line in lines:
            typer.echo(escape_hidden_lines(line))


def json_text(data: Any) -> str:
    """A value as JSON of several lines, in characters that show; the others as JSON's escapes."""
    return _json_part(data, "\n")


def _json_part(value: Any, line_end: str) -> str:
    """As ``json.dumps`` with an indent of two, which takes three times as long.

    Args:
        value: What is written.
        line_end: The end of a line, and the spaces that the next one begins with.
    """
    if isinstance(value, str):
        return _json_string(value)
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return repr(value)
    inner = f"{line_end}  "
    if isinstance(value, dict) and value:
        parts = [f"{_json_name(key)}: {_json_part(item, inner)}" for key, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(parts)}{line_end}}}"
    if isinstance(value, list | tuple) and value:
        parts = [_json_part(item, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(parts)}{line_end}]"
    return _encode(value)


def _json_string(text: str) -> str:
    return replace_hidden(_encode(text), lambda char: json.dumps(char)[1:-1])


@lru_cache(maxsize=256, typed=True)
def _json_name(key: Any) -> str:
    return _json_string(key if isinstance(key, str) else _encode(key))


def metric_lines(metrics: Mapping[str, float | None]) -> list[str]:
    """Metrics of a run, one a line."""
    return [f"{name:<12} {value}" for name, value in metrics.items()]


def say(text: str) -> None:
    """Talk to the person at the terminal (stderr), in characters that show.

    Text may come from a broker or from files that others made: none of it moves the cursor.
    """
    typer.echo(escape_hidden_lines(text), err=True)


def near(path: Path) -> Path:
    """A path as a person types it here: from the working folder where it lies inside."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def quote_path(path: Path) -> str:
    """A path as a word of a command that a person types or copies, from the working folder."""
    return shlex.quote(str(near(path)))


def require_text(path: Path, option: str) -> None:
    """Refuse a path that cannot be written into a file of UTF-8.

    Args:
        path: What was given.
        option: Where it was given.

    Raises:
        UsageError: Its name has bytes that are no text.
    """
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise UsageError("the folder's name is no text", check=option, expected="UTF-8") from None


def require_name(name: str, option: str) -> None:
    """Refuse what is no name of an owner or a consortium, before anything is made of it.

    Args:
        name: As it was typed.
        option: Where.

    Raises:
        UsageError: The text is no such name.
    """
    if not re.fullmatch(OWNER_NAME, name):
        raise UsageError(
            "not a name: it stands in files, recipes and folders",
            check=option,
            got=name[:80],
            expected="1 to 63 of a-z, 0-9 and hyphens, and no hyphen first",
            hint=f"such as {slug(name, 'clinic-a')}",
        )


def table(rows: Sequence[Sequence[str]], *, header: Sequence[str]) -> list[str]:
    """Columns aligned by spaces: readable without colour and easy to cut."""
    shown = [[escape_hidden(cell) for cell in row] for row in [header, *rows]]
    widths = [max(cells(row[i]) for row in shown) for i in range(len(header))]
    return [
        "  ".join(pad_cells(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]


def report_error(error: SealtrainError) -> int:
    """Show a typed error and return its exit code."""
    told = {name: _shorten_field(value) for name, value in error.to_dict().items()}
    if "--json" in sys.argv:
        typer.echo(json_text({"error": told}))
    say(f"{error.label} [{error.code}]: {told['message']}")
    for name in ("owner", "dataset", "column", "check", "got", "expected", "hint"):
        if name in told:
            say(f"  {name}: {told[name]}")
    return error.exit_code


def _shorten_field(text: str) -> str:
    """A field of an error that a screen holds, whatever was typed or read."""
    cut = len(text) - _MOST_SAID
    return text if cut <= 0 else f"{text[:_MOST_SAID]}… and {cut:,} characters more"


def report_usage(error: click.ClickException, *, as_json: bool) -> int:
    """Show that a command line makes no sense, with its usage, and return the exit code."""
    said = escape_hidden_lines(_shorten_field(error.format_message()))
    if as_json:
        told = UsageError(said, hint=_help_of(error))
        typer.echo(json_text({"error": told.to_dict()}))
    context = error.ctx if isinstance(error, click.UsageError) else None
    click.UsageError(said, context).show()
    return error.exit_code


def _help_of(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{'sealtrain' if context is None else context.command_path} --help"


def report_system(fault: OSError) -> int:
    """Show what the system refused, such as a full disk; a fault without a number is a bug."""
    failure = system_failure(fault)
    if failure is None:
        return report_bug(fault)
    names = [str(name) for name in (fault.filename, fault.filename2) if name is not None]
    failure.got = ", ".join(names) or None
    return report_error(failure)


def report_bug(bug: Exception) -> int:
    """Say that sealtrain itself failed: kind and place, never a value that could be data."""
    place = bug.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = (
        f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else "unknown"
    )
    if "--json" in sys.argv:
        typer.echo(json.dumps({"error": {"code": "internal", "message": type(bug).__name__}}))
    say(f"internal error: {type(bug).__name__} at {where}. This is a bug in sealtrain.")
    say("  hint: repeat it with PYTHONFAULTHANDLER=1 on data you may show, and report it")
    if os.environ.get("SEALTRAIN_DEBUG_TRACEBACK") == "may-show-data":
        traceback.print_exception(bug)
    return 1


@contextmanager
def progress_bytes(label: str, total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr for work measured in bytes; yields the function that advances it."""
    if not shown or not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def progress_items(label: str, total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr for work counted in pieces, once it takes longer than two seconds.

    Yields:
        The function that advances it.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=total)
    begun = time.monotonic()

    def advance(done: int) -> None:
        bar.advance(task, done)
        if not bar.live.is_started and time.monotonic() - begun > 2.0:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()
