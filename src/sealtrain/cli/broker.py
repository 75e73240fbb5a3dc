"""``broker serve``, ``deployment`` and ``pin``: run the key-release service, and pin it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from sealtrain.attest.guest import open_guest, platform_of
from sealtrain.attest.policy import load_policy
from sealtrain.base.clock import system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.hostport import host_and_port
from sealtrain.base.outbound import reach_by, read_authorities
from sealtrain.base.platforms import PLATFORMS, Platform
from sealtrain.broker.config import AnswerSettings, BrokerConfig, BrokerLimits
from sealtrain.broker.logs import log_format_of
from sealtrain.broker.serve import serve as serve_broker
from sealtrain.broker.service.deployment import document_of
from sealtrain.cli.broker_database import Database
from sealtrain.cli.deploy import keys_by_name
from sealtrain.cli.document_files import lay_out
from sealtrain.cli.durations import Duration
from sealtrain.cli.output import Json, emit, say
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.broker_proof import attest_broker
from sealtrain.client.errors import TicketInvalid
from sealtrain.client.pin import new_pin
from sealtrain.client.ticket import BROKER_ROLE, RunTicket, load_ticket
from sealtrain.errors import UsageError
from sealtrain.keys.uris import DEFAULT_PATH, SCHEMES
from sealtrain.recipe.document import layout_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What the broker serves, where its secret and state are, and what it runs on."""

    consortium: Annotated[Path, typer.Option(help="The consortium file.")]
    policy: Annotated[Path, typer.Option(help="Appraisal policy for guests (YAML).")]
    root_secret: Annotated[
        str, typer.Option(help="Where the root secret is: file:…, dstack:…, awskms:… or pkcs11:…")
    ]
    state: Annotated[Path, typer.Option(help="Folder for the database and the ledger.")]
    guest: Annotated[
        str, typer.Option(help="Where the broker's own evidence comes from, as of train.")
    ]
    platform: Annotated[str, typer.Option(help=f"{PLATFORMS}: what the broker runs on.")]
    succeeds: Annotated[
        Path | None,
        typer.Option(help="Succession by which this consortium took another one's place."),
    ] = None
    former_root_secret: Annotated[
        list[str] | None,
        typer.Option(help="Root secret before a rotation; repeat, newest first."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollateralOptions:
    """What evidence is verified with."""

    collateral: Annotated[
        str | None, typer.Option(help="Collateral of TDX, its own and guests': file:… or https://…")
    ] = None
    gpu_collateral: Annotated[
        str | None, typer.Option(help="Collateral of guests' accelerators: file:…")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Where the broker listens."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks one.")] = 8470
    certificate: Annotated[
        Path | None,
        typer.Option(help="Certificate chain (PEM): the broker speaks TLS itself."),
    ] = None
    certificate_key: Annotated[
        Path | None, typer.Option(help="Private key (PEM) of the certificate, of mode 0600.")
    ] = None
    ticket: Annotated[
        str | None,
        typer.Option(help="Run ticket: where to listen, and under which URLs; or vsock:PORT."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions(AnswerSettings):
    """What guests and dstack's KMS are answered."""

    lease_seconds: Annotated[
        int,
        typer.Option(click_type=Duration("s", least=1), help="How long released keys may be used."),
    ] = 3600
    boot_auth: Annotated[
        bool, typer.Option("--boot-auth", help="Answer dstack's KMS from the ledger.")
    ] = False
    gateway_app_id: Annotated[
        str, typer.Option(help="What dstack's KMS is told of its gateway.")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """What is between the broker and those who ask it, and who may ask it for runs."""

    proxy: Annotated[
        list[str] | None, typer.Option(help="Address of a reverse proxy to believe; repeat.")
    ] = None
    public_url: Annotated[
        list[str] | None,
        typer.Option(help="URL under which owners reach it, if not where it listens; repeat."),
    ] = None
    submitter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=KEY", help="Who may submit runs besides owners; repeat."),
    ] = None
    runner: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=KEY", help="Who may claim submitted runs; repeat."),
    ] = None
    posts_per_minute: Annotated[
        int,
        typer.Option(min=10, max=60000, help="Requests a minute that may write or cost a quote."),
    ] = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How the operator watches the broker."""

    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus on this port of 127.0.0.1; 0 picks one.")
    ] = None
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text"


def serve(
    service: ServiceOptions,
    collaterals: CollateralOptions,
    listening: ListenOptions,
    answers: AnswerOptions,
    *,
    database: Database = None,
    chain: Annotated[
        Path | None, typer.Option(help="Chain file: a contract that must allow a recipe too.")
    ] = None,
    network: NetworkOptions,
    watching: WatchOptions,
) -> None:
    """Serve keys to guests that prove themselves, while enough owners approve.

    A broker serves only what the deployment document says that its guest measured.
    """
    config = BrokerConfig(
        consortium=service.consortium,
        succeeds=service.succeeds,
        policy=service.policy,
        root_secret=service.root_secret,
        former_root_secrets=tuple(service.former_root_secret or ()),
        state=service.state,
        database=database,
        guest=service.guest,
        collateral=collaterals.collateral,
        gpu_collateral=collaterals.gpu_collateral,
        platform=service.platform,
        host=listening.host,
        port=listening.port,
        certificate=listening.certificate,
        certificate_key=listening.certificate_key,
        answers=answers,
        chain=chain,
        proxies=tuple(network.proxy or ()),
        public_urls=tuple(network.public_url or ()),
        limits=BrokerLimits(posts_per_minute=network.posts_per_minute),
        metrics_port=watching.metrics_port,
        log_format=log_format_of(watching.log_format),
        submitters=keys_by_name(network.submitter, "--submitter"),
        runners=keys_by_name(network.runner, "--runner"),
    )
    if listening.ticket is not None:
        given = load_ticket(listening.ticket)
        config = _with_ticket(config, given)
        reach_by(lambda: given.outbound)
    serve_broker(_with_measured_files(config), ready=lambda url: say(f"broker ready at {url}"))


def _with_ticket(config: BrokerConfig, ticket: RunTicket) -> BrokerConfig:
    """Settings of a broker with what its ticket says besides."""
    if ticket.role != BROKER_ROLE:
        raise TicketInvalid(
            "the run ticket is not a broker's",
            check="role",
            got=ticket.role,
            expected=BROKER_ROLE,
        )
    listen = (config.host, config.port)
    if ticket.listen is not None:
        listen = host_and_port(ticket.listen)
    return replace(
        config,
        host=listen[0],
        port=listen[1],
        certificate=_path(ticket.certificate) or config.certificate,
        certificate_key=_path(ticket.certificate_key) or config.certificate_key,
        collateral=ticket.collateral or config.collateral,
        root_secret=ticket.root_secret or config.root_secret,
        former_root_secrets=(*config.former_root_secrets, *ticket.former_root_secrets),
        public_urls=(*config.public_urls, *ticket.public_urls),
        proxies=(*config.proxies, *ticket.proxies),
        submitters={**config.submitters, **ticket.submitters},
        runners={**config.runners, **ticket.runners},
    )


def _path(place: str | None) -> Path | None:
    return None if place is None else Path(place)


def _with_measured_files(config: BrokerConfig) -> BrokerConfig:
    """Settings whose files of the measured document lie beside the broker's state.

    The guest is asked once: all files are of one answer.
    """

    @cache
    def measure() -> bytes:
        platform = platform_of(config.platform)
        return open_guest(platform, config.guest, collateral=config.collateral).app_compose()

    def place(path: Path) -> Path:
        return lay_out(path, measure, config.state.parent)

    return replace(
        config,
        consortium=place(config.consortium),
        policy=place(config.policy),
        chain=None if config.chain is None else place(config.chain),
        succeeds=None if config.succeeds is None else place(config.succeeds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedOptions:
    """What the document says that the broker serves."""

    consortium: Annotated[Path, typer.Option(help="The consortium file.")]
    policy: Annotated[Path, typer.Option(help="Appraisal policy the broker will apply.")]
    succeeds: Annotated[
        Path | None,
        typer.Option(help="Succession by which this consortium took another one's place."),
    ] = None
    chain: Annotated[Path | None, typer.Option(help="Chain file that the broker will ask too.")] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions:
    """What the broker runs on, and where its secret and memory are."""

    image: Annotated[
        str | None,
        typer.Option("--image-name", help="Image with digest; leave out for the simulator only."),
    ] = None
    platform: Annotated[
        str | None, typer.Option(help=f"{PLATFORMS}: what the broker runs on [dstack].")
    ] = None
    key_provider_id: Annotated[str, typer.Option(help="Pin of the KMS root key, hex.")] = ""
    root_secret: Annotated[
        str | None,
        typer.Option(help="Where the root secret is; left out on dstack and the simulator."),
    ] = None
    with_database: Annotated[
        bool,
        typer.Option("--with-database", help="Its memory is in PostgreSQL, outside its guest."),
    ] = False


def deployment(
    served: ServedOptions,
    answers: AnswerOptions,
    place: PlaceOptions,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("broker-compose.json"),
    as_json: Json = False,
) -> None:
    """Write the broker's own deployment document; its hash is what owners pin.

    Consortium, policy and chain file are in it. A broker serves nothing else than it says.
    """
    here = platform_of(place.platform or ("simulator" if place.image is None else "dstack"))
    config = BrokerConfig(
        consortium=served.consortium,
        succeeds=served.succeeds,
        policy=served.policy,
        root_secret=place.root_secret or _own_root_secret(here, place.image),
        state=Path("state"),
        guest="",
        collateral=None,
        platform=here,
        answers=answers,
        chain=served.chain,
        database="file:database" if place.with_database else None,
    )
    document = document_of(config, image=place.image, key_provider_id=place.key_provider_id)
    written = document.to_bytes()
    atomic_write(out, written)
    compose_hash = sha256_hex(written)
    emit(
        as_json,
        {"deployment": str(out), "compose_hash": compose_hash},
        [f"deployment    {out}", f"compose hash  {compose_hash}"],
    )


def _own_root_secret(platform: Platform, image: str | None) -> str:
    """The root secret of a platform that has a place for one."""
    if platform == "simulator" and image is None:
        return "file:root.secret"
    if platform in ("simulator", "dstack"):
        return f"dstack:{layout_of(platform, image=image).guest}?path={DEFAULT_PATH}"
    raise UsageError(
        f"{platform} has no place of its own for a root secret",
        check="root secret",
        got="none",
        expected=" or ".join(SCHEMES),
        hint="name one with --root-secret",
    )


def pin(
    url: Annotated[str, typer.Option(help="URL of the broker.")],
    deployment_file: Annotated[
        Path,
        typer.Option("--broker-deployment", help="Deployment document the broker must run."),
    ],
    policy: Annotated[Path, typer.Option(help="Appraisal policy for the broker's evidence.")],
    signing_key: Annotated[
        str | None,
        typer.Option(
            help="Its signing key, base64, known by another way: the broker is not asked."
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(help="Certificates (PEM) of the private authority of its TLS server."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Broker file to write.")] = Path("broker.yaml"),
    as_json: Json = False,
) -> None:
    """Write a broker file: where the broker is, which one it is and what it must prove to you.

    The broker proves its signing key first. Compare the broker id with its operator and the other
    owners by another way: a second broker of the same deployment has another one.
    """
    compose_hash = sha256_hex(read_bounded(deployment_file, 1 << 20))
    appraisal = load_policy(policy)
    authorities = "" if ca_file is None else read_authorities(ca_file, "--ca-file")
    simulated = False
    if signing_key is None:
        with BrokerClient(url, authorities=authorities) as client:
            found = attest_broker(
                client, compose_hash=compose_hash, appraisal=appraisal, now=system_clock()
            )
        signing_key, simulated = to_base64(found.signing_key), found.simulated
    pinned = new_pin(
        url,
        signing_key,
        compose_hash=compose_hash,
        appraisal=appraisal,
        authorities=authorities,
    )
    atomic_write(out, pinned.to_yaml().encode())
    emit(
        as_json,
        {
            "broker": str(out),
            "url": url,
            "broker_id": pinned.broker_id,
            "compose_hash": compose_hash,
            "simulated": simulated,
        },
        [
            f"broker        {url}",
            f"broker id     {pinned.broker_id}",
            f"compose hash  {compose_hash}",
        ],
    )
    if simulated:
        say("SIMULATED — NOT ATTESTED: the broker's evidence comes from a simulator")
