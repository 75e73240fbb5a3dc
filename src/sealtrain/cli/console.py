"""``console``: pages of consortium and runs, in a browser on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.base.extras import require_extras
from sealtrain.cli.output import say

__all__ = ["Port", "console"]

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of loopback; 0 for any free one.")]


def console(
    context: typer.Context,
    brokers: Annotated[
        list[Path] | None, typer.Option("--broker", help="Broker file to read from; repeat.")
    ] = None,
    consortium: Annotated[Path, typer.Option(help="The consortium file.")] = Path(
        "consortium.json"
    ),
    deployments: Annotated[
        list[Path] | None,
        typer.Option("--deployment", help="app-compose.json of a recipe to show; repeat."),
    ] = None,
    verified: Annotated[
        list[Path] | None,
        typer.Option("--verified", help="Record of an owner who verified an image; repeat."),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option("--folder", help="Folder of a run, or of several, or a manifest; repeat."),
    ] = None,
    agent: Annotated[
        Path | None, typer.Option(help="Socket of your agent (made by: sealtrain console agent).")
    ] = None,
    port: Port = 8600,
) -> None:
    """Show consortium and runs in a browser on this machine, until Ctrl-C.

    The pages read brokers and files anew each time; the console keeps nothing and holds no key. It
    listens on loopback only: from another machine, forward the port over SSH.
    """
    if context.invoked_subcommand is not None:
        return
    require_extras("the console", "console")
    from sealtrain.web.app import console_app
    from sealtrain.web.consortium import CONSORTIUM
    from sealtrain.web.curves import Curves
    from sealtrain.web.runs import RUNS
    from sealtrain.web.serving import serve
    from sealtrain.web.sources import Sources

    sources = Sources(
        consortium=consortium,
        brokers=tuple(brokers or ()),
        deployments=tuple(deployments or ()),
        verified=tuple(verified or ()),
        runs=tuple(runs or ()),
        agent=agent,
    )
    sources.members()
    app = console_app([CONSORTIUM, RUNS], {"sources": sources, "curves": Curves()})
    serve(app, port, lambda url: say(f"console ready {url}"))
