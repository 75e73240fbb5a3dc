"""``console``: pages of consortium and runs, in a browser on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sealtrain.base.extras import require_extras
from sealtrain.cli.output import say

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of loopback; 0 for any free one.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Where runs are looked for, and what their manifests are verified against."""

    runs: Annotated[
        list[Path] | None,
        typer.Option("--folder", help="Folder of a run, or of several, or a manifest; repeat."),
    ] = None
    stores: Annotated[
        list[str] | None,
        typer.Option("--store", help="URL of an output store to look into; repeat."),
    ] = None
    ticket: Annotated[
        Path | None, typer.Option(help="Run ticket whose output store to look into.")
    ] = None
    trusts: Annotated[
        list[Path] | None,
        typer.Option("--trust", help="What you trust (YAML): verifies manifests; repeat."),
    ] = None


def console(
    context: typer.Context,
    *,
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
    shown: RunOptions,
    agent: Annotated[
        Path | None, typer.Option(help="Socket of your agent (made by: sealtrain console agent).")
    ] = None,
    port: Port = 8600,
) -> None:
    """Show consortium and runs in a browser on this machine, until Ctrl-C.

    The pages ask brokers and stores anew each time and read files that changed; the console writes
    nothing and holds no key. With --trust, each manifest that they show is verified, offline, as
    sealtrain verify does it. It listens on loopback only: from another machine, forward the port
    over SSH.
    """
    if context.invoked_subcommand is not None:
        return
    require_extras("the console", "console")
    from sealtrain.manifest.trust import load_trust
    from sealtrain_console.web.app import console_app
    from sealtrain_console.web.consortium import CONSORTIUM
    from sealtrain_console.web.curves import Curves
    from sealtrain_console.web.runs import RUNS
    from sealtrain_console.web.serving import serve
    from sealtrain_console.web.sources import Sources

    sources = Sources(
        consortium=consortium,
        brokers=tuple(brokers or ()),
        deployments=tuple(deployments or ()),
        verified=tuple(verified or ()),
        runs=tuple(shown.runs or ()),
        stores=tuple(shown.stores or ()),
        ticket=shown.ticket,
        trusts=tuple(shown.trusts or ()),
        agent=agent,
    )
    sources.members()
    for trust in sources.trusts:
        load_trust(trust)
    app = console_app([CONSORTIUM, RUNS], {"sources": sources, "curves": Curves()})
    serve(app, port, lambda url: say(f"console ready {url}"))
