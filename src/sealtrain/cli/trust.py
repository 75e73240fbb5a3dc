"""``trust``: write down what an auditor takes as given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.output import Json, emit

__all__ = ["app"]

app = typer.Typer(help="The auditor's trust file.", no_args_is_help=True)


@app.command()
def new(
    consortium: Annotated[Path, typer.Option(help="The consortium file.")],
    deployment: Annotated[Path, typer.Option(help="app-compose.json of the recipe.")],
    policy: Annotated[Path, typer.Option(help="Appraisal policy for guests.")],
    broker: Annotated[str, typer.Option(help="URL of the broker whose receipts count.")],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("trust.yaml"),
    as_json: Json = False,
) -> None:
    """Write a trust file: consortium, recipe, broker and appraisal policy, all pinned.

    The broker attests itself first; its signing key is taken from that evidence.
    """
    raise NotImplementedError


_ = emit
