"""``travel``: one accelerator goes from holder to holder of data that stay where they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from sealtrain.base.hostport import host_and_port
from sealtrain.cli.alone import alone
from sealtrain.cli.durations import Duration
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.runoptions import (
    ANYWHERE,
    BrokerFiles,
    FileOptions,
    GuestOptions,
    InputOptions,
    LockFile,
    Threads,
    pairs,
    run_settings,
    served_alone,
)
from sealtrain.cli.train import show_outcome
from sealtrain.errors import UsageError

if TYPE_CHECKING:
    from sealtrain.client.ticket import RunTicket
    from sealtrain.guest.settings import RunSettings
    from sealtrain_collab.travelling.guest.accelerate import Ports
    from sealtrain_collab.travelling.guest.hold import Holding
    from sealtrain_collab.travelling.guest.orchestrate import Leading, Place

__all__ = [
    "accelerate",
    "accelerate_by_ticket",
    "hold",
    "hold_by_ticket",
    "orchestrate",
    "orchestrate_by_ticket",
]

_WAIT_SECONDS: Final = 3600
_STANDBY_SECONDS: Final = 86_400
_TIMEOUT_SECONDS: Final = 60

Device = Annotated[str, typer.Option(help="Where the accelerator computes: cpu or cuda.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderOptions:
    """The party, and the accelerator that it gives chunks to."""

    party: Annotated[str, typer.Option(help="Owner whose data this guest gives.")]
    writes: Annotated[str, typer.Option(metavar="HOST:PORT", help="The accelerator's write port.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOptions:
    """Where the holder listens, how long it waits, and whether it goes on with a run."""

    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where orchestrators come; port 0 for any.")
    ] = ANYWHERE
    wait: Annotated[
        float,
        typer.Option(
            click_type=Duration("s", least=1, whole=False),
            help="How long no orchestrator may talk to it; then it ends.",
        ),
    ] = 3600
    timeout: Annotated[
        float,
        typer.Option(
            click_type=Duration("s", least=1, whole=False), help="How long a write may take."
        ),
    ] = 60
    resume: Annotated[bool, typer.Option("--resume", help="It was interrupted in this run.")] = (
        False
    )


def hold(
    lock: LockFile,
    gives: HolderOptions,
    guest: GuestOptions,
    inputs: InputOptions,
    out: Annotated[Path, typer.Option(help="Folder for this party's receipts.")],
    waiting: WaitOptions,
    files: FileOptions,
    as_json: Json = False,
) -> None:
    """Hold one owner's data: give chunks to the accelerator, a model never comes here.

    Keys are asked for when an orchestrator has proved itself, and dropped when the run is over.
    """
    alone()
    from sealtrain_collab.travelling.guest.hold import Holding

    settings = run_settings(
        lock,
        guest,
        files,
        brokers=inputs.brokers,
        data=inputs.data,
        out=out,
    )
    holding = Holding(
        listen=host_and_port(waiting.listen),
        writes=host_and_port(gives.writes),
        wait=waiting.wait,
        timeout=waiting.timeout,
        resume=waiting.resume,
    )
    _hold(settings, gives.party, holding, as_json)


def hold_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Be a holder of a deployment document (``cli.guest``)."""
    from sealtrain_collab.travelling.guest.hold import Holding

    if ticket.party is None:
        raise AssertionError("a holder's ticket names its owner")
    holding = Holding(
        listen=host_and_port(ticket.listen or ANYWHERE),
        writes=ticket.peer("writes"),
        wait=max(_WAIT_SECONDS, ticket.wait_seconds),
        timeout=_TIMEOUT_SECONDS,
        resume=settings.out.is_dir() and any(settings.out.iterdir()),
    )
    _hold(settings, ticket.party, holding, as_json)


def _hold(settings: RunSettings, party: str, holding: Holding, as_json: bool) -> None:
    from sealtrain_collab.travelling.guest.hold import hold as hold_data

    held = hold_data(
        settings,
        party,
        holding,
        served_alone(),
        ready=lambda place: say(f"holder ready at {place}"),
    )
    emit(as_json, held.to_dict(), [f"{held.party} gave {held.chunks} chunks, {held.bytes} bytes"])


def accelerate(
    lock: LockFile,
    guest: GuestOptions,
    *,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="For orchestrators; port 0 for any.")
    ] = ANYWHERE,
    writes: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="For holders' chunks; port 0 for any.")
    ] = ANYWHERE,
    patience: Annotated[
        float,
        typer.Option(
            click_type=Duration("s", least=1, whole=False),
            help="How long an orchestrator may be silent.",
        ),
    ] = 3600,
    timeout: Annotated[
        float,
        typer.Option(
            click_type=Duration("s", least=1, whole=False),
            help="How long a holder may be silent within a write.",
        ),
    ] = 60,
    threads: Threads = 1,
    files: FileOptions,
) -> None:
    """Be the accelerator: memory and the recipe's program, no data of its own and no keys.

    Ends with Ctrl-C; what is in its memory ends with it.
    """
    alone()
    from sealtrain_collab.travelling.guest.accelerate import Ports

    ports = Ports(
        control=host_and_port(listen),
        writes=host_and_port(writes),
        patience=patience,
        timeout=timeout,
    )
    _accelerate(run_settings(lock, guest, files, out=lock.parent), ports, threads=threads)


def accelerate_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Be the accelerator of a deployment document (``cli.guest``)."""
    from sealtrain_collab.travelling.guest.accelerate import Ports

    settings.out.mkdir(exist_ok=True)  # stays empty: the sandbox opens it
    ports = Ports(
        control=host_and_port(ticket.listen or ANYWHERE),
        writes=host_and_port(ticket.listen_writes or ANYWHERE),
        patience=_WAIT_SECONDS,
        timeout=_TIMEOUT_SECONDS,
    )
    _accelerate(settings, ports, threads=1)


def _accelerate(settings: RunSettings, ports: Ports, *, threads: int) -> None:
    from sealtrain_collab.travelling.guest.accelerate import accelerate as serve

    def ready(control: str, write_port: str) -> None:
        say(f"writes at {write_port}")
        say(f"accelerator ready at {control}")

    serve(
        settings,
        ports,
        served_alone(),
        threads=threads,
        ready=ready,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """The machines of the run, and the folder of its states."""

    holders: Annotated[
        list[str],
        typer.Option("--holder", help="OWNER=HOST:PORT, where it waits; once for each owner."),
    ]
    accelerator: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The accelerator's control port.")
    ]
    writes: Annotated[str, typer.Option(metavar="HOST:PORT", help="The accelerator's write port.")]
    states: Annotated[
        Path, typer.Option(help="Folder for sealed states; a standby takes over from it.")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadOptions:
    """Whether another orchestrator led before, how long this one waits, and where it computes."""

    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Go on with a run whose orchestrator is gone."),
    ] = False
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Wait until the orchestrator is gone, then take over."),
    ] = False
    wait: Annotated[
        float,
        typer.Option(
            click_type=Duration("s", least=1, whole=False), help="How long a standby waits."
        ),
    ] = 86_400
    timeout: Annotated[
        float,
        typer.Option(
            click_type=Duration("s", least=1, whole=False), help="How long a holder may be silent."
        ),
    ] = 60
    patience: Annotated[
        float,
        typer.Option(
            click_type=Duration("s", least=1, whole=False),
            help="How long an operation of the accelerator may take.",
        ),
    ] = 3600
    device: Device = "cpu"


def orchestrate(
    lock: LockFile,
    machines: MachineOptions,
    guest: GuestOptions,
    brokers: BrokerFiles,
    out: Annotated[Path, typer.Option(help="Folder for model and manifest.")],
    leading: LeadOptions,
    files: FileOptions,
    as_json: Json = False,
) -> None:
    """Lead a travelling run: send the accelerator round, seal the model, sign the manifest."""
    alone()
    from sealtrain_collab.travelling.guest.orchestrate import Leading

    settings = run_settings(lock, guest, files, brokers=brokers, out=out)
    how = Leading(
        accelerator=host_and_port(machines.accelerator),
        writes=host_and_port(machines.writes),
        holders=_places(machines.holders),
        states=machines.states,
        place=_place(leading.take_over, leading.standby),
        wait=leading.wait,
        timeout=leading.timeout,
        patience=leading.patience,
        device=_device(leading.device),
    )
    _orchestrate(settings, how, as_json)


def orchestrate_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Be orchestrator or standby of a deployment document (``cli.guest``)."""
    from sealtrain.recipe.lockfile import load_lock
    from sealtrain_collab.travelling.guest.orchestrate import Leading
    from sealtrain_collab.travelling.guest.standby_folder import StandbyStatus

    gpu = load_lock(settings.lock).recipe.hardware.gpu
    states = settings.out.parent / "states" if ticket.states is None else Path(ticket.states)
    begun = StandbyStatus.read(states) is not None
    place: Place = "standby" if ticket.role == "standby" else "take-over" if begun else "first"
    how = Leading(
        accelerator=ticket.peer("accelerator"),
        writes=ticket.peer("writes"),
        holders={owner: host_and_port(text) for owner, text in ticket.holders.items()},
        states=states,
        place=place,
        wait=max(_STANDBY_SECONDS, ticket.wait_seconds),
        timeout=_TIMEOUT_SECONDS,
        patience=_WAIT_SECONDS,
        device="cpu" if gpu is None else "cuda",
    )
    _orchestrate(settings, how, as_json)


def _orchestrate(settings: RunSettings, how: Leading, as_json: bool) -> None:
    from sealtrain_collab.travelling.guest.orchestrate import orchestrate as lead

    outcome = lead(settings, how, served_alone(), progress=True, say=say)
    if outcome is None:
        emit(as_json, {"finished": "by another orchestrator"}, ["finished by another orchestrator"])
    else:
        show_outcome(outcome, as_json)


def _places(words: list[str]) -> dict[str, tuple[str, int]]:
    return {name: host_and_port(place) for name, place in pairs(words).items()}


def _place(take_over: bool, standby: bool) -> Place:
    if take_over and standby:
        raise UsageError("choose one of --take-over and --standby")
    return "take-over" if take_over else "standby" if standby else "first"


def _device(name: str) -> Literal["cpu", "cuda"]:
    if name == "cpu":
        return "cpu"
    if name == "cuda":
        return "cuda"
    raise UsageError("no such device", got=name, expected="cpu or cuda")
