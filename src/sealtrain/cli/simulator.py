"""``simulator``: a guest API without hardware. It proves nothing and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.output import Json, emit, say

__all__ = ["app"]

app = typer.Typer(help="A simulated guest API. SIMULATED — NOT ATTESTED.")


@app.command()
def serve(
    deployment: Annotated[Path, typer.Argument(help="app-compose.json the guest is to measure.")],
    socket: Annotated[Path, typer.Option(help="Unix socket to serve the guest API on.")],
    state: Annotated[Path, typer.Option(help="Folder with the simulated root of trust.")],
) -> None:
    """Serve dstack's guest API with simulated quotes."""
    from sealtrain.attest.simulator.server import serve as serve_guest

    serve_guest(
        socket,
        deployment,
        state,
        ready=lambda: say(f"SIMULATED — NOT ATTESTED: guest API at {socket}"),
    )


@app.command()
def policy(
    state: Annotated[Path, typer.Option(help="Folder with the simulated root of trust.")],
    out: Annotated[Path, typer.Option(help="Policy file to write.")] = Path("policy.yaml"),
    as_json: Json = False,
) -> None:
    """Write an appraisal policy that trusts this simulator and nothing else."""
    import yaml

    from sealtrain.attest.presets import insecure_simulator_policy
    from sealtrain.attest.simulator.state import ensure
    from sealtrain.base.clock import system_clock
    from sealtrain.base.files import atomic_write

    simulated = ensure(state, system_clock())
    trusted = insecure_simulator_policy(simulated.root_path.read_bytes())
    atomic_write(out, yaml.safe_dump(trusted.to_dict(), sort_keys=False).encode())
    say("this policy accepts simulated evidence: use it to rehearse, never with real data")
    emit(as_json, {"policy": str(out)}, [f"policy   {out}"])
