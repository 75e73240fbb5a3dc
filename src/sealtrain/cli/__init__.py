"""The command line: the only code that prints.

stdout is data, stderr is talk. Every command takes ``--json``. Exit codes: 0 ok, 1 internal bug,
2 usage or configuration, 3 refused, 4 unreachable, 5 data invalid.

A command's module is loaded when the command is asked for (``cli.lazy``), and imports what it needs
at its top. Two kinds of imports stand in a function: of what only an extra brings, so that the help
is shown without the extra; and in commands that begin anew (``cli.alone``), so that the process
they leave loads nothing for a run.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from functools import partial
from io import TextIOWrapper
from typing import Annotated, Any, Final

import click
import typer
import typer.core
from click.shell_completion import shell_complete

from sealtrain.base.extras import extra_missing, extra_of
from sealtrain.base.version import VERSION
from sealtrain.cli.commands import COMMANDS, SECTIONS
from sealtrain.cli.lazy import LazyGroup
from sealtrain.cli.output import report_bug, report_error, report_system, report_usage, say
from sealtrain.errors import SealtrainError

__all__ = ["app", "main"]

# Help is plain text; typer would still escape its brackets for a renderer that is not used.
typer.core.HAS_RICH = False

# Plugins of other packages would see every document that is read here, and be searched for at
# every start.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

_COMPLETE: Final = "_SEALTRAIN_COMPLETE"
"""Variable by which a shell asks for completions, as click's documentation has it."""
_INTERRUPTED: Final = 130
_YOUNG_OBJECTS: Final = 200_000
"""After so many the collector looks for cycles. Python's 700 come a thousand times while a command
loads libraries, whose definitions are no garbage."""


class Root(LazyGroup):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(entries=COMMANDS, sections=SECTIONS, **settings)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the words; a command line that makes no sense is told as every other error is."""
        if instruction := os.environ.get(_COMPLETE):  # typer's own reads another language
            sys.exit(shell_complete(self, {}, "sealtrain", _COMPLETE, instruction))
        words = list(sys.argv[1:] if args is None else args)
        run = partial(
            super().main, words, prog_name, complete_var, False, windows_expand_args, **extra
        )
        if not standalone_mode:
            return run()
        try:
            status = run()
        except click.ClickException as error:
            sys.exit(report_usage(error, as_json="--json" in words))
        except click.Abort:
            say("nothing was typed, so the command did nothing more")
            sys.exit(1)
        if status == _INTERRUPTED:  # typer turns Ctrl-C into a status
            _say_interrupted()
        sys.exit(status if isinstance(status, int) else 0)


app = typer.Typer(
    name="sealtrain",
    cls=Root,
    help="Train on data you are not allowed to see: sealed data, approved recipes, attested runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print version and code digest, and leave.")
    ] = False,
) -> None:
    """Train on data you are not allowed to see."""
    if version:
        from sealtrain.recipe.installation import code_sha256, measure_code

        typer.echo(f"{VERSION}\ncode {code_sha256(measure_code())}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point: run a command and turn what it raises into a message and an exit code."""
    if isinstance(sys.stdout, TextIOWrapper):
        # A path whose bytes are no text would be printed as those bytes, and no reader of JSON
        # takes them; so written, it is one of JSON's own escapes.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not sys.flags.isolated:  # a run's process, which lasts, keeps Python's number (cli.alone)
        gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    try:
        app()
    except SealtrainError as error:
        sys.exit(report_error(error))
    except ModuleNotFoundError as error:
        sys.exit(_report_absent(error))
    except KeyboardInterrupt:
        _say_interrupted()
        sys.exit(_INTERRUPTED)
    except OSError as error:
        sys.exit(report_system(error))
    except Exception as bug:  # the last resort: a bug never shows a traceback with data in it
        sys.exit(report_bug(bug))


def _say_interrupted() -> None:
    say("interrupted: the same command begins again; a run goes on with `sealtrain resume`")


def _report_absent(error: ModuleNotFoundError) -> int:
    """Show which extra a command needs; a module of no extra is a bug."""
    extra = extra_of(error)
    if extra is None:
        return report_bug(error)
    return report_error(extra_missing("this command", extra, error))
