"""``broker serve``, ``deployment`` and ``pin``: run the key-release service, and pin it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.attest.policy import load_policy
from sealtrain.base.clock import system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.broker.config import BrokerConfig, BrokerLimits
from sealtrain.broker.logs import log_format_of
from sealtrain.broker.serve import serve as serve_broker
from sealtrain.broker.service.deployment import broker_deployment
from sealtrain.cli.broker_database import Database
from sealtrain.cli.output import Json, emit, say
from sealtrain.client.api import BrokerClient
from sealtrain.client.attested import attested_identity
from sealtrain.client.pin import new_pin
from sealtrain.consortium.members import Consortium

__all__ = ["deployment", "pin", "serve"]


def serve(
    consortium: Annotated[Path, typer.Option(help="The consortium file.")],
    policy: Annotated[Path, typer.Option(help="Appraisal policy for guests (YAML).")],
    root_secret: Annotated[
        str, typer.Option(help="Where the root secret is: file:…, dstack:…, awskms:… or pkcs11:…")
    ],
    state: Annotated[Path, typer.Option(help="Folder for the database and the ledger.")],
    guest: Annotated[
        str, typer.Option(help="Where the broker's own evidence comes from, as of train.")
    ],
    platform: Annotated[
        str, typer.Option(help="dstack, tdx, nitro, snp or simulator: what the broker runs on.")
    ],
    succeeds: Annotated[
        Path | None,
        typer.Option(help="Succession by which this consortium took another one's place."),
    ] = None,
    former_root_secret: Annotated[
        list[str] | None,
        typer.Option(help="Root secret before a rotation; repeat, newest first."),
    ] = None,
    collateral: Annotated[
        str | None, typer.Option(help="Collateral of TDX, its own and guests': file:… or https://…")
    ] = None,
    gpu_collateral: Annotated[
        str | None, typer.Option(help="Collateral of guests' accelerators: file:…")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks one.")] = 8470,
    lease_seconds: Annotated[int, typer.Option(help="How long released keys may be used.")] = 3600,
    boot_auth: Annotated[
        bool, typer.Option("--boot-auth", help="Answer dstack's KMS from the ledger.")
    ] = False,
    gateway_app_id: Annotated[
        str, typer.Option(help="What dstack's KMS is told of its gateway.")
    ] = "",
    database: Database = None,
    chain: Annotated[
        Path | None, typer.Option(help="Chain file: a contract that must allow a recipe too.")
    ] = None,
    proxy: Annotated[
        list[str] | None, typer.Option(help="Address of a reverse proxy to believe; repeat.")
    ] = None,
    public_url: Annotated[
        list[str] | None,
        typer.Option(help="URL under which owners reach it, if not where it listens; repeat."),
    ] = None,
    posts_per_minute: Annotated[
        int,
        typer.Option(min=10, max=60000, help="Requests a minute that may write or cost a quote."),
    ] = 600,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus on this port of 127.0.0.1; 0 picks one.")
    ] = None,
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
) -> None:
    """Serve keys to guests that prove themselves, while enough owners approve."""
    config = BrokerConfig(
        consortium=consortium,
        succeeds=succeeds,
        policy=policy,
        root_secret=root_secret,
        former_root_secrets=tuple(former_root_secret or ()),
        state=state,
        database=database,
        guest=guest,
        collateral=collateral,
        gpu_collateral=gpu_collateral,
        platform=platform,
        host=host,
        port=port,
        lease_seconds=lease_seconds,
        boot_auth=boot_auth,
        gateway_app_id=gateway_app_id,
        chain=chain,
        proxies=tuple(proxy or ()),
        public_urls=tuple(public_url or ()),
        limits=BrokerLimits(posts_per_minute=posts_per_minute),
        metrics_port=metrics_port,
        log_format=log_format_of(log_format),
    )
    serve_broker(config, ready=lambda url: say(f"broker ready at {url}"))


def deployment(
    consortium: Annotated[Path, typer.Option(help="The consortium file.")],
    policy: Annotated[Path, typer.Option(help="Appraisal policy the broker will apply.")],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("broker-compose.json"),
    image: Annotated[
        str | None, typer.Option(help="Image with digest; leave out for the simulator only.")
    ] = None,
    key_provider_id: Annotated[str, typer.Option(help="Pin of the KMS root key, hex.")] = "",
    chain: Annotated[
        Path | None, typer.Option(help="Chain file that the broker will ask too.")
    ] = None,
    with_database: Annotated[
        bool,
        typer.Option("--with-database", help="Its memory is in PostgreSQL, outside its guest."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the broker's own deployment document; its hash is what owners pin."""
    document = broker_deployment(
        consortium_id=Consortium.load(consortium).consortium_id,
        policy=read_bounded(policy, 1 << 20),
        image=image,
        key_provider_id=key_provider_id,
        chain=None if chain is None else read_bounded(chain, 1 << 20),
        database=with_database,
    )
    atomic_write(out, document)
    compose_hash = sha256_hex(document)
    emit(
        as_json,
        {"deployment": str(out), "compose_hash": compose_hash},
        [f"deployment    {out}", f"compose hash  {compose_hash}"],
    )


def pin(
    url: Annotated[str, typer.Option(help="URL of the broker.")],
    deployment_file: Annotated[
        Path, typer.Option("--deployment", help="Deployment document the broker must run.")
    ],
    policy: Annotated[Path, typer.Option(help="Appraisal policy for the broker's evidence.")],
    signing_key: Annotated[
        str | None,
        typer.Option(
            help="Its signing key, base64, known by another way: the broker is not asked."
        ),
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
    simulated = False
    if signing_key is None:
        with BrokerClient(url) as client:
            found = attested_identity(
                client, compose_hash=compose_hash, appraisal=appraisal, now=system_clock()
            )
        signing_key, simulated = to_base64(found.signing_key), found.simulated
    pinned = new_pin(url, signing_key, compose_hash=compose_hash, appraisal=appraisal)
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
