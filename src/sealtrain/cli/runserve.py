"""``run serve``: a runner, beside a broker or on the machine with the guests."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.durations import Duration
from sealtrain.cli.guest_starter import own_program
from sealtrain.cli.machineoptions import SimulatedMachineOptions
from sealtrain.cli.output import say
from sealtrain.cli.programs import start_tied
from sealtrain.cli.run import BrokerFile
from sealtrain.cli.runner import Runner, RunnerSettings, runner_folder
from sealtrain.client.pin import load_pin
from sealtrain.errors import UsageError
from sealtrain.keys.identity import Identity
from sealtrain.owner.runs import desk
from sealtrain.owner.ticket_places import Places
from sealtrain.recipe.lock import LockedRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """What a runner may start, how, and what tickets may name."""

    deployments: Annotated[
        list[Path],
        typer.Option("--deployment", help="Document that it may start (app-compose.json); repeat."),
    ]
    folder: Annotated[Path, typer.Option(help="Folder of the runner; its guests' lie inside.")]
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Folder, URL, HOST:PORT or HOST:* that tickets may name; repeat."),
    ] = None
    simulator: Annotated[
        Path | None, typer.Option(help="Start simulated guests with this root of trust.")
    ] = None
    starter: Annotated[
        Path | None,
        typer.Option(
            help="Program that starts a guest on hardware, with the words of deploy run; SIGTERM "
            "stops it, and it ends as the guest does."
        ),
    ] = None
    claim_seconds: Annotated[
        int,
        typer.Option(
            "--claim", click_type=Duration("s", least=60, most=3600), help="Length of a claim."
        ),
    ] = 900
    at_once: Annotated[int, typer.Option(min=1, max=64, help="Guests that run at a time.")] = 1


def serve(
    broker: BrokerFile,
    identity: Annotated[Path, typer.Option(help="The runner's private identity file.")],
    options: RunnerOptions,
    machine: SimulatedMachineOptions,
) -> None:
    """Take submitted runs and start their guests, until Ctrl-C or SIGTERM.

    Start it again in the same folder, and it continues the runs that it holds.
    """
    if (options.simulator is None) == (options.starter is None):
        raise UsageError(
            "a runner starts simulated guests, or those of a program",
            check="--starter",
            expected="--simulator FOLDER or --starter PROGRAM",
        )
    documents: dict[str, Path] = {}
    for path in options.deployments:
        documents[LockedRecipe.load(path).compose_hash] = path
    signer = Identity.load(identity).signer
    listed = (*(options.allow or ()), load_pin(broker).url)
    settings = RunnerSettings(
        folder=options.folder,
        documents=documents,
        places=Places(listed),
        options=()
        if options.simulator is None
        else ("--simulator", str(options.simulator.absolute()), *machine.words),
        program=start_tied if options.starter is None else own_program(options.starter),
        claim_seconds=options.claim_seconds,
        at_once=options.at_once,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with (
        runner_folder(options.folder) as instance,
        desk(broker, signer) as asked,
    ):
        runner = Runner(asked, settings, instance, monotonic=time.monotonic, say=say)
        say(f"runner ready {instance}")
        try:
            while True:
                runner.turn()
                time.sleep(0.5)
        except KeyboardInterrupt:
            say("ended: its guests seal what they can; the same command continues")
        finally:
            runner.end()
