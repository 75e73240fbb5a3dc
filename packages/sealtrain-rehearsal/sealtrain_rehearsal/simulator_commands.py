"""``simulator``: a guest API without hardware. It proves nothing and says so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import typer

from sealtrain.base.clock import system_clock
from sealtrain.base.files import atomic_write
from sealtrain.base.processes import end_with
from sealtrain.base.yamltext import yaml_text
from sealtrain.cli.machineoptions import Gpus, SimulatedMachineOptions, Switches, Tee
from sealtrain.cli.output import Json, emit, say
from sealtrain.errors import UsageError
from sealtrain_rehearsal.simulator.machine import Machine, SimulatedTee, fault_meanings
from sealtrain_rehearsal.simulator.server import serve as serve_guest
from sealtrain_rehearsal.simulator.state import ensure

State = Annotated[
    Path, typer.Option("--simulator", help="Folder with the simulated root of trust.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGuestOptions:
    """The guest that is served, and how it lies."""

    deployment: Annotated[
        Path | None, typer.Option(help="app-compose.json the guest is to measure.")
    ] = None
    socket: Annotated[Path | None, typer.Option(help="Unix socket to serve the guest API on.")] = (
        None
    )
    fault: Annotated[
        str | None, typer.Option(help="Tell one lie; sealtrain simulator faults lists them.")
    ] = None
    emit_events: Annotated[
        bool, typer.Option("--emit-events", help="Play a dstack agent of 0.5: events of the app.")
    ] = False


def make_machine(
    options: SimulatedMachineOptions, *, fault: str | None = None, emit_events: bool = False
) -> Machine:
    """Make the machine, with a fault if it has one.

    Raises:
        UsageError: There is no such TEE or fault.
    """
    return Machine(
        tee=cast("SimulatedTee", options.tee),
        gpus=options.gpus,
        switches=options.switches,
        emit_events=emit_events,
        fault=fault,
    )


def serve(
    state: State,
    machine: SimulatedMachineOptions,
    guest: SimulatedGuestOptions,
    *,
    write_policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the policy that trusts this simulator and nothing else; without --socket, "
            "serve nothing.",
        ),
    ] = None,
    until_exit: Annotated[
        int | None, typer.Option(metavar="PID", help="End when the process with this id ends.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve dstack's guest API, or an enclave's security module, with simulated evidence."""
    if until_exit is not None:
        end_with(until_exit)
    if write_policy is not None:
        _write_policy(state, make_machine(machine), write_policy)
        emit(as_json, {"policy": str(write_policy)}, [f"policy   {write_policy}"])
        if guest.socket is None:
            return
    if guest.socket is None or guest.deployment is None:
        raise UsageError(
            "a guest needs a document and a socket",
            check="--deployment and --socket",
            hint="for the simulator's policy alone: --write-policy FILE",
        )
    lie = "" if guest.fault is None else f" (fault: {guest.fault})"
    serve_guest(
        guest.socket,
        guest.deployment,
        state,
        ready=lambda: say(f"SIMULATED — NOT ATTESTED{lie}: guest API at {guest.socket}"),
        machine=make_machine(machine, fault=guest.fault, emit_events=guest.emit_events),
    )


def _write_policy(state: Path, simulated: Machine, out: Path) -> None:
    trusted = ensure(state, system_clock(), machine=simulated).policy(simulated)
    atomic_write(out, yaml_text(trusted.to_dict()).encode())
    say("this policy accepts simulated evidence: use it to rehearse, never with real data")


def faults(
    tee: Tee = "dstack",
    gpus: Gpus = 2,
    switches: Switches = 1,
    as_json: Json = False,
) -> None:
    """List the lies a simulated machine can tell, and the refusal each must end in."""
    machine = Machine(tee=cast("SimulatedTee", tee))
    found = fault_meanings(machine.tee, gpus=gpus, switches=switches)
    width = max(map(len, found))
    emit(as_json, found, [f"{name:<{width}}  {meaning}" for name, meaning in found.items()])
