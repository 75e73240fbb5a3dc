"""``deploy ticket``: what a guest is told besides its measured document."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.base.files import atomic_write
from sealtrain.base.models import load_model
from sealtrain.base.outbound import read_authorities
from sealtrain.cli.durations import Duration
from sealtrain.cli.output import Json, emit
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.pin import certificates_of, load_pin
from sealtrain.client.ticket import RunTicket
from sealtrain.errors import UsageError
from sealtrain.storage.address import is_url
from sealtrain.storage.pieces import measure_pieces


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
    """What an unattended guest brings, leaves and outlives."""

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
            help="How long to wait for keys, services, machines and parties that do not answer.",
        ),
    ] = 0
    restarts: Annotated[
        int, typer.Option(help="How often to start again a run's process that was killed.")
    ] = 0
    ranks: Annotated[
        int | None,
        typer.Option(help="Continue an interrupted run on this number of ranks."),
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(help="Continue an interrupted run on this number of nodes."),
    ] = None
    continues: Annotated[
        str | None,
        typer.Option(
            "--continues",
            metavar="NUMBER:DIGEST",
            help="Number of this run in its chain, from 2, and digest of the manifest before.",
        ),
    ] = None
    previous: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Folder or output store of the run before, if this one begins with its model.",
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        typer.Option(help="Authorities (PEM) besides the public ones for the guest's TLS."),
    ] = None
    outbound_proxy: Annotated[
        str | None, typer.Option(help="Proxy on the guest's way to https servers.")
    ] = None
    no_proxy: Annotated[
        list[str] | None,
        typer.Option(help="Host, domain or network that is reached without it; repeat."),
    ] = None
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
    rejoins: Annotated[
        bool,
        typer.Option(
            "--rejoins", help="This owner took part in the run before, in a guest that is gone."
        ),
    ] = False
    node: Annotated[
        int | None, typer.Option(min=1, max=255, help="Number of this node of several, from 1.")
    ] = None
    states: Annotated[
        Path | None, typer.Option(help="Folder for sealed states, shared with a standby.")
    ] = None
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads, on the CPU.")] = (
        None
    )


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
    certificate: Annotated[
        Path | None,
        typer.Option(help="File of the certificate chain by which a broker speaks TLS itself."),
    ] = None
    certificate_key: Annotated[
        Path | None, typer.Option(help="File of the certificate's private key.")
    ] = None
    root_secret: Annotated[
        str | None, typer.Option(help="Root secret of a broker, after a rotation.")
    ] = None
    former_root_secrets: Annotated[
        list[str] | None,
        typer.Option("--former-root-secret", help="One before it; repeat, newest first."),
    ] = None
    submitters: Annotated[
        list[str] | None,
        typer.Option(
            "--submitter", metavar="NAME=KEY", help="Who may submit runs besides owners; repeat."
        ),
    ] = None
    runners: Annotated[
        list[str] | None,
        typer.Option("--runner", metavar="NAME=KEY", help="Who may claim submitted runs; repeat."),
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
            place if is_url(place) or not place else str(Path(place).absolute())
            for place in sources.data or ()  # the ticket refuses an empty one
        ],
        "base": _base(sources, lasting),
        "collateral": sources.collateral,
        "models": dict(_model(word, sources.base) for word in lasting.models or ()),
        "store": lasting.store,
        "credentials": lasting.credentials,
        "wait_seconds": lasting.wait_seconds,
        "restarts": lasting.restarts,
        "ranks": lasting.ranks,
        "nodes": lasting.nodes,
        "continues": _continues(lasting.continues),
        "previous": None if lasting.previous is None else _lasting_place(lasting.previous),
        "health": lasting.health,
        "authorities": []
        if lasting.ca_file is None
        else certificates_of(read_authorities(lasting.ca_file, "--ca-file")),
        "outbound_proxy": lasting.outbound_proxy,
        "no_proxy": list(lasting.no_proxy or ()),
        "listen": others.listen,
        "listen_writes": others.listen_writes,
        "peers": dict(map(_peer, others.peers or ())),
        "holders": dict(map(_peer, others.holders or ())),
        "party": part.party,
        "run": part.run_id,
        "rejoins": part.rejoins,
        "node": part.node,
        "states": None if part.states is None else str(part.states.absolute()),
        "threads": part.threads,
        "public_urls": list(broker.public_urls or ()),
        "proxies": list(broker.proxies or ()),
        "certificate": None if broker.certificate is None else str(broker.certificate),
        "certificate_key": None if broker.certificate_key is None else str(broker.certificate_key),
        "root_secret": broker.root_secret,
        "former_root_secrets": list(broker.former_root_secrets or ()),
        "submitters": keys_by_name(broker.submitters, "--submitter"),
        "runners": keys_by_name(broker.runners, "--runner"),
    }
    made = load_model(RunTicket, {"version": 1, **given}, TicketInvalid, "run ticket")
    atomic_write(out, made.to_bytes(), overwrite=True)
    emit(as_json, {"ticket": str(out), "role": role}, [f"ticket   {out}", f"role     {role}"])


def _continues(word: str | None) -> dict[str, Any] | None:
    if word is None:
        return None
    number, _, digest = word.partition(":")
    if not (number.isascii() and number.isdecimal()):
        raise UsageError("not a place in a chain", got=word[:80], expected="NUMBER:DIGEST")
    return {"manifest_digest": digest, "number": int(number[:9])}


def _lasting_place(word: str) -> str:
    return word if is_url(word) else str(Path(word).absolute())


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
    files = {name: measure_pieces(folder / name).to_dict() for name in names}
    return path, {"address": url, "files": files}


def _peer(word: str) -> tuple[str, str]:
    name, mark, place = word.partition("=")
    if not mark:
        raise UsageError("not a peer", got=word[:80], expected="NAME=HOST:PORT")
    return name, place


def keys_by_name(words: list[str] | None, option: str) -> dict[str, str]:
    """Keys from the command line: name → base64.

    Args:
        words: ``NAME=KEY``.
        option: Where they were typed.

    Raises:
        UsageError: A word has another form, or a name comes twice.
    """
    found: dict[str, str] = {}
    for word in words or ():
        name, mark, key = word.partition("=")
        if not mark or name in found:
            raise UsageError(
                "not a name and a key, each name once",
                check=option,
                got=word[:80],
                expected="NAME=KEY, the signing_key of a public identity file",
                hint="sealtrain keygen NAME makes an identity",
            )
        found[name] = key
    return found
