"""``broker``: run the key-release service, or ask it who it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.output import Json, emit, say

__all__ = ["app"]

app = typer.Typer(help="The key-release service.")


@app.command()
def serve(
    consortium: Annotated[Path, typer.Option(help="The consortium file.")],
    policy: Annotated[Path, typer.Option(help="Appraisal policy for guests (YAML).")],
    root_secret: Annotated[str, typer.Option(help="Where the root secret is: file:… or dstack:…")],
    state: Annotated[Path, typer.Option(help="Folder for the database and the ledger.")],
    guest: Annotated[str, typer.Option(help="Socket of the guest API that attests the broker.")],
    collateral: Annotated[str, typer.Option(help="Collateral of its own quotes: file:…")],
    platform: Annotated[str, typer.Option(help="dstack or simulator.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks one.")] = 8470,
    lease_seconds: Annotated[int, typer.Option(help="How long released keys may be used.")] = 3600,
) -> None:
    """Serve keys to guests that prove themselves, while enough owners approve."""
    from sealtrain.broker.config import BrokerConfig
    from sealtrain.broker.serve import serve as serve_broker

    config = BrokerConfig(
        consortium=consortium,
        policy=policy,
        root_secret=root_secret,
        state=state,
        guest=guest,
        collateral=collateral,
        platform=platform,
        host=host,
        port=port,
        lease_seconds=lease_seconds,
    )
    serve_broker(config, ready=lambda url: say(f"broker ready at {url}"))
