"""A travelling run's roles, each by its run ticket: holder, accelerator, orchestrator, standby."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sealtrain.base.files import make_folder
from sealtrain.base.hostport import host_and_port
from sealtrain.cli.output import emit, say
from sealtrain.cli.runoptions import ANYWHERE, surround_alone
from sealtrain.cli.train import show_outcome

if TYPE_CHECKING:
    from sealtrain.client.ticket import RunTicket
    from sealtrain.guest.settings import RunSettings
    from sealtrain_together.travelling.guest.orchestrate import Place

_WAIT_SECONDS: Final = 3600
_STANDBY_SECONDS: Final = 86_400
_TIMEOUT_SECONDS: Final = 60


def hold_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Hold one owner's data: give chunks to the accelerator, a model never comes here.

    Keys are asked for when an orchestrator has proved itself, and dropped when the run is over.
    """
    from sealtrain_together.travelling.guest.holder_guest import Holding, hold

    if ticket.party is None:
        raise AssertionError("a holder's ticket names its owner")
    holding = Holding(
        listen=host_and_port(ticket.listen or ANYWHERE),
        writes=ticket.peer("writes"),
        wait=max(_WAIT_SECONDS, ticket.wait_seconds),
        timeout=_TIMEOUT_SECONDS,
        resume=ticket.has_taken_part(settings.out),
    )
    held = hold(
        settings,
        ticket.party,
        holding,
        surround_alone(),
        ready=lambda place: say(f"holder ready at {place}"),
    )
    emit(as_json, held.to_dict(), [f"{held.party} gave {held.chunks} chunks, {held.bytes} bytes"])


def accelerate_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Be the accelerator: memory and the recipe's program, no data of its own and no keys.

    Ends with Ctrl-C; what is in its memory ends with it.
    """
    from sealtrain_together.travelling.guest.accelerate import Ports, accelerate

    ports = Ports(
        control=host_and_port(ticket.listen or ANYWHERE),
        writes=host_and_port(ticket.listen_writes or ANYWHERE),
        patience=_WAIT_SECONDS,
        timeout=_TIMEOUT_SECONDS,
    )

    def ready(control: str, write_port: str) -> None:
        say(f"writes at {write_port}")
        say(f"accelerator ready at {control}")

    with make_folder(settings.out):  # stays empty: the sandbox opens it
        accelerate(settings, ports, surround_alone(), threads=ticket.threads or 1, ready=ready)


def orchestrate_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Lead a travelling run: send the accelerator round, seal the model, sign the manifest."""
    from sealtrain_together.travelling.guest.orchestrate import Leading, orchestrate
    from sealtrain_together.travelling.guest.standby_folder import StandbyStatus

    gpu = settings.recipe_lock.recipe.hardware.gpu
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
    outcome = orchestrate(settings, how, surround_alone(), progress=True, say=say)
    if outcome is None:
        emit(as_json, {"finished": "by another orchestrator"}, ["finished by another orchestrator"])
    else:
        show_outcome(outcome, as_json)
