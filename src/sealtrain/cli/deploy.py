"""``deploy``: run tickets, and the executor that starts exactly a measured document."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sealtrain.base.files import atomic_write
from sealtrain.base.models import load_model
from sealtrain.cli.executor import Simulated, execute
from sealtrain.cli.output import Json, emit
from sealtrain.cli.simulator import MachineOptions
from sealtrain.client.pin import load_pin
from sealtrain.client.ticket import RunTicket
from sealtrain.errors import TicketInvalid, UsageError
from sealtrain.storage.address import is_url

__all__ = ["run", "ticket"]


def run(
    document: Annotated[Path, typer.Argument(help="The deployment document (app-compose.json).")],
    folder: Annotated[
        Path, typer.Option(help="Folder of this guest: its disk. Run again, it continues there.")
    ],
    machine: MachineOptions,
    ticket: Annotated[
        Path | None, typer.Option(help="Run ticket for the guest; without it that of its folder.")
    ] = None,
    simulator: Annotated[
        Path | None, typer.Option(help="Folder with the simulated root of trust.")
    ] = None,
    fault: Annotated[
        str | None, typer.Option(help="Tell one lie; sealtrain simulator faults lists them.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start exactly what a deployment document says, in a simulated guest that measured it.

    The document's script runs as this user in the guest's folder, with a clean environment. A
    document with an image needs hardware: give it to dstack there.
    """
    if simulator is None:
        raise UsageError(
            "a document without an image runs in a simulated guest",
            check="simulator",
            got="none",
            expected="--simulator FOLDER",
            hint="name the folder of: sealtrain simulator policy --state",
        )
    words = ("--tee", machine.tee, "--gpus", str(machine.gpus), "--switches", str(machine.switches))
    lie = () if fault is None else ("--fault", fault)
    execute(document, folder, ticket, Simulated(root=simulator.absolute(), words=(*words, *lie)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The brokers that the guest asks, and where its data and collateral are."""

    brokers: Annotated[
        list[Path] | None,
        typer.Option("--broker", help="Broker file of a broker to ask; repeat."),
    ] = None
    data: Annotated[
        list[str] | None,
        typer.Option(help="Sealed dataset, a folder of them, or a URL of one; repeat."),
    ] = None
    base: Annotated[Path | None, typer.Option(help="Folder the recipe's paths start from.")] = None
    collateral: Annotated[
        str | None, typer.Option(help="URL of a service for collateral of the guest's quotes.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """Where the guest listens, and the other machines of a run of several."""

    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 for any.")
    ] = None
    listen_writes: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The same for the writes of holders.")
    ] = None
    peers: Annotated[
        list[str] | None,
        typer.Option("--peer", help="NAME=HOST:PORT: accelerator, dealer or writes; repeat."),
    ] = None
    holders: Annotated[
        list[str] | None, typer.Option("--holder", help="OWNER=HOST:PORT of a holder; repeat.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOptions:
    """The part that the guest has in a run of several."""

    party: Annotated[str | None, typer.Option(help="Owner whose data the guest holds.")] = None
    run_id: Annotated[
        str | None, typer.Option("--run", help="Id of the run, as its lead told it.")
    ] = None
    states: Annotated[
        Path | None, typer.Option(help="Folder for sealed states, shared with a standby.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """What a broker's ticket says."""

    public_urls: Annotated[
        list[str] | None, typer.Option("--public-url", help="URL of a broker; repeat.")
    ] = None
    proxies: Annotated[
        list[str] | None,
        typer.Option("--proxy", help="Address of a broker's reverse proxy; repeat."),
    ] = None
    root_secret: Annotated[
        str | None, typer.Option(help="Root secret of a broker, after a rotation.")
    ] = None
    former_root_secrets: Annotated[
        list[str] | None,
        typer.Option("--former-root-secret", help="One before it; repeat, newest first."),
    ] = None


def ticket(
    role: Annotated[str, typer.Option(help="Role of the document, such as train or broker.")],
    sources: SourceOptions,
    others: PeerOptions,
    part: PartOptions,
    broker: BrokerOptions,
    out: Annotated[Path, typer.Option(help="Ticket to write.")] = Path("ticket.json"),
    as_json: Json = False,
) -> None:
    """Write a run ticket: addresses, and which role of its document a guest plays.

    Owners do not approve tickets: a wrong one delays a run and can do nothing else.
    """
    given = {
        "role": role,
        "brokers": [load_pin(path).to_dict() for path in sources.brokers or ()],
        "data": [
            place if is_url(place) else str(Path(place).absolute()) for place in sources.data or ()
        ],
        "base": None if sources.base is None else str(sources.base.absolute()),
        "collateral": sources.collateral,
        "listen": others.listen,
        "listen_writes": others.listen_writes,
        "peers": dict(map(_peer, others.peers or ())),
        "holders": dict(map(_peer, others.holders or ())),
        "party": part.party,
        "run": part.run_id,
        "states": None if part.states is None else str(part.states.absolute()),
        "public_urls": list(broker.public_urls or ()),
        "proxies": list(broker.proxies or ()),
        "root_secret": broker.root_secret,
        "former_root_secrets": list(broker.former_root_secrets or ()),
    }
    made = load_model(RunTicket, {"version": 1, **given}, TicketInvalid, "run ticket")
    atomic_write(out, made.to_bytes(), overwrite=True)
    emit(as_json, {"ticket": str(out), "role": role}, [f"ticket   {out}", f"role     {role}"])


def _peer(word: str) -> tuple[str, str]:
    name, mark, place = word.partition("=")
    if not mark:
        raise UsageError("not a peer", got=word[:80], expected="NAME=HOST:PORT")
    return name, place
