"""The command line: the only code that prints.

stdout is data, stderr is talk. Every command takes ``--json``. Exit codes: 0 ok, 1 internal bug,
2 usage or configuration, 3 refused, 4 unreachable, 5 data invalid. Nothing heavy is imported
until a command needs it.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
import typer.core

from sealtrain.cli import (
    approvals,
    attest,
    broker,
    chain,
    checkpoints,
    consortium,
    data,
    doctor,
    evaluate,
    exports,
    keys,
    manifest,
    merge,
    opening,
    policy,
    publish,
    ready,
    recipe,
    rehearse,
    simulator,
    succession,
    train,
    trust,
    validate,
    withdraw,
)
from sealtrain.cli.ondemand import on_demand
from sealtrain.cli.output import report_bug, report_error
from sealtrain.errors import SealtrainError
from sealtrain_collab import split
from sealtrain_collab.federated import cli as federate
from sealtrain_collab.travelling import cli as travel

__all__ = ["app", "main"]

# Help is plain text; typer would still escape its brackets for a renderer that is not used.
typer.core.HAS_RICH = False

# Plugins of other packages would see every document that is read here, and be searched for at
# every start.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

_nouns = typer.Typer()
for noun in (
    keys,
    recipe,
    data,
    opening,
    approvals,
    train,
    evaluate,
    checkpoints,
    merge,
    rehearse,
    manifest,
    exports,
    validate,
    publish,
    doctor,
    withdraw,
    policy,
    ready,
):
    noun.register(_nouns)
succession.register(consortium.app)
_nouns.add_typer(consortium.app, name="consortium")
_nouns.add_typer(attest.app, name="attest")
_nouns.add_typer(trust.app, name="trust")
_nouns.add_typer(broker.app, name="broker")
_nouns.add_typer(chain.app, name="chain")
_nouns.add_typer(simulator.app, name="simulator")
_nouns.add_typer(split.app, name="split")
_nouns.add_typer(travel.app, name="travel")
_nouns.add_typer(federate.app, name="federate")

app = typer.Typer(
    name="sealtrain",
    cls=on_demand(_nouns),
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
        bool, typer.Option("--version", help="Print the version and leave.")
    ] = False,
) -> None:
    """Train on data you are not allowed to see."""
    if version:
        from sealtrain.base.version import VERSION

        typer.echo(VERSION)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point: run a command and turn what it raises into a message and an exit code."""
    try:
        app()
    except SealtrainError as error:
        sys.exit(report_error(error))
    except ModuleNotFoundError as error:
        sys.exit(_report_absent(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as bug:  # the last resort: a bug never shows a traceback with data in it
        sys.exit(report_bug(bug))


def _report_absent(error: ModuleNotFoundError) -> int:
    """Show which extra a command needs; a module of no extra is a bug."""
    from sealtrain.base.extras import extra_missing, extra_of

    extra = extra_of(error)
    if extra is None:
        return report_bug(error)
    return report_error(extra_missing("this command", extra, error))
