"""``deploy run``: start exactly what a measured document says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.executor import Simulated, execute
from sealtrain.cli.machineoptions import SimulatedMachineOptions
from sealtrain.cli.output import Json
from sealtrain.errors import UsageError


def run(
    document: Annotated[
        Path, typer.Option("--deployment", help="The document to start (app-compose.json).")
    ],
    folder: Annotated[
        Path, typer.Option(help="Folder of this guest: its disk. Run again, it continues there.")
    ],
    machine: SimulatedMachineOptions,
    ticket: Annotated[
        Path | None, typer.Option(help="Run ticket for the guest; without it that of its folder.")
    ] = None,
    simulator: Annotated[
        Path | None, typer.Option(help="Folder with the simulated root of trust.")
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(help="OCI layout of the image that the document names: a folder or a tar."),
    ] = None,
    fault: Annotated[
        str | None, typer.Option(help="Tell one lie; sealtrain simulator faults lists them.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start exactly what a deployment document says, in a simulated guest that measured it.

    A script runs as this user in the guest's folder, with a clean environment; an image, verified
    by its digest, in a container (bubblewrap). A document for hardware is refused: give it to
    dstack there.
    """
    if simulator is None:
        raise UsageError(
            "a document runs here in a simulated guest",
            check="simulator",
            got="none",
            expected="--simulator FOLDER",
            hint="name a folder; one that is not there is made: --simulator FOLDER",
        )
    lie = () if fault is None else ("--fault", fault)
    guest = Simulated(root=simulator.absolute(), words=(*machine.words, *lie))
    execute(document, folder, ticket, image, guest)
