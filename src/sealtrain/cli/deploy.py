"""``deploy``: run tickets, and the executor that starts exactly a measured document."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.base.files import atomic_write
from sealtrain.base.models import load_model
from sealtrain.cli.durations import Duration
from sealtrain.cli.executor import Simulated, execute
from sealtrain.cli.output import Json, emit
from sealtrain.cli.simulator import MachineOptions
from sealtrain.client.pin import load_pin
from sealtrain.client.ticket import RunTicket
from sealtrain.errors import TicketInvalid, UsageError
from sealtrain.storage.address import is_url
from sealtrain.storage.pieces import measured

__all__ = ["run", "ticket"]


def run(
    document: Annotated[
        Path, typer.Option("--deployment", help="The document to start (app-compose.json).")
    ],
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
class LastingOptions:
    """What a guest that nobody watches brings, leaves and outlives."""

    store: Annotated[
        str | None,
        typer.Option(help="URL of the output store: sealed checkpoints, model and manifest."),
    ] = None
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model-at",
            metavar="PATH=URL",
            help="Where the model or tokenizer is that the recipe calls PATH; its files are read "
            "here, below --base; repeat.",
        ),
    ] = None
    credentials: Annotated[
        str | None,
        typer.Option(help="URL of a lender of store credentials (see: deploy credentials)."),
    ] = None
    wait_seconds: Annotated[
        int,
        typer.Option(
            "--wait",
            click_type=Duration("s"),
            help="How long to wait for keys, and for services that do not answer.",
        ),
    ] = 0
    restarts: Annotated[
        int, typer.Option(help="How often to start again a run's process that was killed.")
    ] = 0
    health: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Say there how far the run is (GET /healthz)."),
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
    lasting: LastingOptions,
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
        "base": _base(sources, lasting),
        "collateral": sources.collateral,
        "models": dict(_model(word, sources.base) for word in lasting.models or ()),
        "store": lasting.store,
        "credentials": lasting.credentials,
        "wait_seconds": lasting.wait_seconds,
        "restarts": lasting.restarts,
        "health": lasting.health,
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


def _base(sources: SourceOptions, lasting: LastingOptions) -> str | None:
    """Where the guest finds models; those that it brings itself lie where its document says."""
    if sources.base is None or lasting.models:
        return None
    return str(sources.base.absolute())


def _model(word: str, base: Path | None) -> tuple[str, dict[str, Any]]:
    """A model's path in the recipe, and where and what its files are."""
    path, mark, url = word.partition("=")
    if not mark:
        raise UsageError("not the place of a model", got=word[:80], expected="PATH=URL")
    folder = (base or Path()) / path
    names = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
    if not names:
        raise UsageError(
            "there is no such model here to read the digests of",
            check="model",
            got=str(folder),
            hint="name the folder that the recipe's paths start from with --base",
        )
    files = {name: measured(folder / name).to_dict() for name in names}
    return path, {"address": url, "files": files}


def _peer(word: str) -> tuple[str, str]:
    name, mark, place = word.partition("=")
    if not mark:
        raise UsageError("not a peer", got=word[:80], expected="NAME=HOST:PORT")
    return name, place
