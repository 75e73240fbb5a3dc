"""A federation's lead and parties, by their run tickets, and ``federate relay``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.runoptions import surround_alone
from sealtrain.cli.train import show_outcome

if TYPE_CHECKING:
    from sealtrain.client.ticket import RunTicket
    from sealtrain.guest.settings import RunSettings

_RELAY: Final = Path("relay.sock")
"""Of a deployment document, in the guest's folder."""


def lead_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Merge what parties learn, seal the adapter, sign the manifest. Holds no data and no key.

    A lead whose folder holds a run goes on with it.
    """
    from sealtrain.guest.settings import read_held_run
    from sealtrain_together.federated.guest.lead import lead, resume_lead

    play = lead if read_held_run(settings.out) is None else resume_lead
    outcome = play(
        settings,
        _RELAY,
        surround_alone(),
        begun=lambda run_id: say(f"federation ready, run {run_id}"),
        progress=True,
    )
    show_outcome(outcome, as_json)


def join_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Attest, get the keys of one owner's data, and learn what a proven lead asks."""
    from sealtrain_together.federated.guest.join import join
    from sealtrain_together.parties.party import Participation

    if ticket.party is None or ticket.run is None:
        raise AssertionError("a party's ticket names both")
    party = ticket.party
    part = Participation(party=party, run_id=ticket.run, resume=ticket.has_taken_part(settings.out))
    done = join(
        settings,
        part,
        _RELAY,
        surround_alone(),
        begun=lambda: say(f"party ready, {party}"),
        progress=True,
    )
    rounds = ", ".join(map(str, done["rounds"])) or "none"
    emit(as_json, done, [f"party        {party}", f"rounds       {rounds}"])


def relay(
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    as_json: Json = False,
) -> None:
    """Write the Flower app that carries messages between lead and parties, for: flwr run."""
    from sealtrain_together.federated.app import FLWR_VERSION, write_app

    write_app(out)
    emit(
        as_json,
        {"app": str(out), "flwr": FLWR_VERSION},
        [f"app          {out}", f"flwr         {FLWR_VERSION}"],
    )
