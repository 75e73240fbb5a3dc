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
from sealtrain.cli.output import Json, emit, say
from sealtrain_simulator.machine import Machine, SimulatedTee, fault_meanings
from sealtrain_simulator.server import serve as serve_guest
from sealtrain_simulator.state import ensure

__all__ = ["MachineOptions", "faults", "policy", "serve"]

State = Annotated[Path, typer.Option(help="Folder with the simulated root of trust.")]
Tee = Annotated[str, typer.Option(help="What to play: dstack (on TDX), tdx, nitro or snp.")]
Gpus = Annotated[int, typer.Option(min=0, max=32, help="Simulated GPUs of the machine.")]
Switches = Annotated[int, typer.Option(min=0, max=32, help="NVSwitches beside the GPUs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """The machine that a simulated guest is on."""

    tee: Tee = "dstack"
    gpus: Gpus = 0
    switches: Switches = 0

    def make(self, *, fault: str | None = None, emit_events: bool = False) -> Machine:
        """Make the machine, with a fault if it has one.

        Raises:
            UsageError: There is no such TEE or fault.
        """
        return Machine(
            tee=cast("SimulatedTee", self.tee),
            gpus=self.gpus,
            switches=self.switches,
            emit_events=emit_events,
            fault=fault,
        )


def serve(
    deployment: Annotated[Path, typer.Argument(help="app-compose.json the guest is to measure.")],
    socket: Annotated[Path, typer.Option(help="Unix socket to serve the guest API on.")],
    state: State,
    machine: MachineOptions,
    fault: Annotated[
        str | None, typer.Option(help="Tell one lie; sealtrain simulator faults lists them.")
    ] = None,
    emit_events: Annotated[
        bool, typer.Option("--emit-events", help="Play a dstack agent of 0.5: events of the app.")
    ] = False,
    until: Annotated[
        int | None, typer.Option(metavar="PID", help="End when the process with this id ends.")
    ] = None,
) -> None:
    """Serve dstack's guest API, or an enclave's security module, with simulated evidence."""
    if until is not None:
        end_with(until)
    lie = "" if fault is None else f" (fault: {fault})"
    serve_guest(
        socket,
        deployment,
        state,
        ready=lambda: say(f"SIMULATED — NOT ATTESTED{lie}: guest API at {socket}"),
        machine=machine.make(fault=fault, emit_events=emit_events),
    )


def policy(
    state: State,
    machine: MachineOptions,
    out: Annotated[Path, typer.Option(help="Policy file to write.")] = Path("policy.yaml"),
    as_json: Json = False,
) -> None:
    """Write an appraisal policy that trusts this simulator and nothing else."""
    simulated = machine.make()
    trusted = ensure(state, system_clock(), machine=simulated).policy(simulated)
    atomic_write(out, yaml_text(trusted.to_dict()).encode())
    say("this policy accepts simulated evidence: use it to rehearse, never with real data")
    emit(as_json, {"policy": str(out)}, [f"policy   {out}"])


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
