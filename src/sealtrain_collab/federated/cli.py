"""``federate``: several parties train one adapter, each on data that stay in its own guest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sealtrain.cli.alone import alone
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.runoptions import (
    BrokerFiles,
    FileOptions,
    GuestOptions,
    HelperOptions,
    InputOptions,
    LockFile,
    ProductOptions,
    run_settings,
    served_alone,
)
from sealtrain.cli.train import show_outcome

if TYPE_CHECKING:
    from sealtrain.client.ticket import RunTicket
    from sealtrain.guest.settings import RunSettings
    from sealtrain_collab.parties.party import Part

__all__ = ["join", "join_by_ticket", "lead", "lead_by_ticket", "relay", "resume_lead"]

_RELAY: Final = Path("relay.sock")
"""Of a deployment document, in the guest's folder."""

Relay = Annotated[
    Path, typer.Option(help="Unix socket to make; the relay's Flower app connects to it.")
]


def lead(
    lock: LockFile,
    guest: GuestOptions,
    brokers: BrokerFiles,
    relay: Relay,
    out: Annotated[Path, typer.Option(help="Folder for model and manifest.")],
    files: FileOptions,
    as_json: Json = False,
) -> None:
    """Merge what parties learn, seal the adapter, sign the manifest. Holds no data and no key."""
    alone()
    _lead(run_settings(lock, guest, files, brokers=brokers, out=out), relay, as_json)


def lead_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Be the lead of a deployment document, again where it began before (``cli.guest``)."""
    from sealtrain.guest.settings import holds_run

    if holds_run(settings.out):
        resume_lead(settings.out, _RELAY, as_json)
    else:
        _lead(settings, _RELAY, as_json)


def resume_lead(out: Path, relay: Path | None, as_json: bool) -> None:
    """Go on with a run whose lead ended (``cli.train``).

    Args:
        out: The lead's folder.
        relay: Where it listens now; as before where ``None``.
        as_json: Answer in JSON.
    """
    from sealtrain_collab.federated.guest.lead import resume_lead as resume

    outcome = resume(
        out,
        served_alone(),
        relay=relay,
        begun=lambda run_id: say(f"federation ready, run {run_id}"),
        progress=True,
    )
    show_outcome(outcome, as_json)


def _lead(settings: RunSettings, relay: Path, as_json: bool) -> None:
    from sealtrain_collab.federated.guest.lead import lead as lead_run

    outcome = lead_run(
        settings,
        relay,
        served_alone(),
        begun=lambda run_id: say(f"federation ready, run {run_id}"),
        progress=True,
    )
    show_outcome(outcome, as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyOptions(ProductOptions):
    """The party, its run, the way to its lead, and machines that multiply for it."""

    party: Annotated[str, typer.Option(help="Owner whose data this guest holds.")]
    run: Annotated[str, typer.Option(help="Id of the run, as its lead told it.")]
    relay: Relay


def join(
    lock: LockFile,
    guest: GuestOptions,
    inputs: InputOptions,
    joined: PartyOptions,
    out: Annotated[Path, typer.Option(help="Folder of this party.")],
    *,
    again: Annotated[
        bool, typer.Option("--again", help="It took part before and was interrupted.")
    ] = False,
    files: FileOptions,
    as_json: Json = False,
) -> None:
    """Attest, get the keys of one owner's data, and learn what a proven lead asks."""
    alone()
    from sealtrain_collab.parties.party import Part

    settings = run_settings(
        lock,
        guest,
        files,
        brokers=inputs.brokers,
        data=inputs.data,
        out=out,
        helpers=HelperOptions(accelerator=joined.accelerator, dealer=joined.dealer),
    )
    _join(
        settings,
        Part(party=joined.party, run_id=joined.run, resume=again),
        joined.relay,
        as_json,
    )


def join_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Be a party of a deployment document (``cli.guest``)."""
    from sealtrain_collab.parties.party import Part

    if ticket.party is None or ticket.run is None:
        raise AssertionError("a party's ticket names both")
    again = settings.out.is_dir() and any(settings.out.iterdir())
    part = Part(party=ticket.party, run_id=ticket.run, resume=again)
    _join(settings, part, _RELAY, as_json)


def _join(settings: RunSettings, part: Part, relay: Path, as_json: bool) -> None:
    from sealtrain_collab.federated.guest.join import join as join_run

    done = join_run(
        settings,
        part,
        relay,
        served_alone(),
        begun=lambda: say(f"party ready, {part.party}"),
        progress=True,
    )
    rounds = ", ".join(map(str, done["rounds"])) or "none"
    emit(as_json, done, [f"party        {part.party}", f"rounds       {rounds}"])


def relay(
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    as_json: Json = False,
) -> None:
    """Write the Flower app that carries messages between lead and parties, for: flwr run."""
    from sealtrain_collab.federated.app import FLWR_VERSION, write_app

    write_app(out)
    emit(
        as_json,
        {"app": str(out), "flwr": FLWR_VERSION},
        [f"app          {out}", f"flwr         {FLWR_VERSION}"],
    )
