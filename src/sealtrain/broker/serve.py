"""Start a broker from its configuration and serve it until SIGTERM or SIGINT.

1. Everything it trusts is read and checked before it listens, and compared with the deployment
   document that its guest measured.
2. The ledger is audited when it is opened: a ledger that was rewritten stops the start.
3. It listens on loopback unless configured otherwise; a reverse proxy in front of it ends TLS.
4. On a signal it stops accepting, answers the requests it began and closes its databases.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.guest import Guest, load_gpu_collateral, open_guest, platform_of
from sealtrain.attest.policy import load_policy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.tdx.collect import load_collateral
from sealtrain.attest.tdx.fetch import services_of
from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.distributions import CHAIN, load
from sealtrain.base.extras import extra_missing
from sealtrain.base.secret import Random
from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.logs import configure
from sealtrain.broker.service.collateral import gpu_collateral, guests_collateral
from sealtrain.broker.service.deployment import require_known_owners, require_measured
from sealtrain.broker.urls import public_url
from sealtrain.consortium.members import Consortium
from sealtrain.errors import (
    ConfigError,
    EvidenceRefused,
    Unreachable,
)
from sealtrain.keys.uris import root_secret
from sealtrain.release.messages import ledger_origin

if TYPE_CHECKING:
    from fastapi import FastAPI

    from sealtrain.broker.service.parts import ChainCondition
    from sealtrain.broker.service.service import Broker

_FREE_BYTES = 64 << 20


def serve(
    config: BrokerConfig,
    ready: Callable[[str], None] | None = None,
    *,
    clock: Clock = system_clock,
    random: Random = os.urandom,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        config: Settings.
        ready: Called with the base URL once the broker answers.
        clock: The broker's time.
        random: Source of challenges and lease ids, and of a new root secret.

    Raises:
        ConfigError: A configured file cannot be used.
        DocumentMismatch: The broker's guest measured a document that says something else.
        Unreachable: The guest API, the ledger file or the database cannot be reached.
        LedgerInconsistent: The ledger was changed from outside.
        ExtraMissing: The ``broker`` extra is not installed.
    """
    configure(config.log_format)
    require_measured(config, _own_guest(config).app_compose())
    with assemble_broker(config, clock=clock, random=random) as broker, _app(broker, config) as app:
        from sealtrain.broker.http.server import serve_app

        asyncio.run(serve_app(app, config, ready, None))


@contextmanager
def running(
    config: BrokerConfig, *, clock: Clock = system_clock, random: Random = os.urandom
) -> Iterator[str]:
    """Serve in a background thread, for tests and for a broker inside one process.

    What its guest measured is not compared: that program is another one than a document starts.

    Yields:
        The base URL, answering. Raises as ``serve``.
    """
    with (
        assemble_broker(config, clock=clock, random=random) as broker,
        listening(broker, config) as url,
    ):
        yield url


@contextmanager
def listening(
    broker: Broker, config: BrokerConfig, *, stop_seconds: int | None = None
) -> Iterator[str]:
    """A broker that answers HTTP in a background thread; yields its base URL.

    Args:
        broker: The broker that answers.
        config: Where to listen, and the caps.
        stop_seconds: How long requests may still take once the block ends; the server's default
            where ``None``.

    Raises:
        UsageError: The address cannot be listened on.
    """
    from sealtrain.broker.http.server import STOP_SECONDS, serving

    patience = STOP_SECONDS if stop_seconds is None else stop_seconds
    with _app(broker, config) as app, serving(app, config, stop_seconds=patience) as url:
        yield url


@contextmanager
def assemble_broker(
    config: BrokerConfig, *, clock: Clock = system_clock, random: Random = os.urandom
) -> Iterator[Broker]:
    """A broker without HTTP, from its configuration. Arguments and errors as ``serve``."""
    require_extra()
    from sealtrain.broker.address import places
    from sealtrain.broker.service.controllers import Controllers
    from sealtrain.broker.service.keyring import Keyring
    from sealtrain.broker.service.parts import BrokerParts
    from sealtrain.broker.service.service import Broker
    from sealtrain.broker.store.memory import Store
    from sealtrain.broker.store.succession import begin_ledger
    from sealtrain.ledger.ledger import Ledger

    consortium = Consortium.load(config.consortium)
    policy = load_policy(config.policy)
    if config.collateral is not None and not services_of(config.collateral):
        load_collateral(config.collateral)
    load_gpu_collateral(config.gpu_collateral)
    guest = _own_guest(config)
    config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Only a first root secret is made here: another one is the work of rotate-root.
    keyring = Keyring(
        root_secret(config.root_secret, create=not config.former_root_secrets, random=random),
        [root_secret(uri) for uri in config.former_root_secrets],
    )
    tables, log = places(config.state, config.database)
    store = Store(tables)
    try:
        with (
            Ledger.open(
                log,
                origin=ledger_origin(consortium.consortium_id),
                signer=keyring.signer,
                clock=clock,
                former=keyring.former,
            ) as ledger,
            chain_gate(config, consortium, clock) as chain,
        ):
            if config.succeeds is not None:
                with store.transaction():  # of several starting processes, the first begins it
                    begin_ledger(ledger, consortium, config.succeeds, now=clock())
            yield Broker(
                BrokerParts(
                    consortium=consortium,
                    policy=policy,
                    keyring=keyring,
                    store=store,
                    ledger=ledger,
                    collect=partial(_own_evidence, guest),
                    collateral=partial(guests_collateral, config, policy, clock),
                    gpu_collateral=partial(gpu_collateral, config),
                    clock=clock,
                    random=random,
                    limits=config.limits,
                    answers=config.answers,
                    controllers=Controllers.of(consortium, config.submitters, config.runners),
                    chain=chain,
                    surroundings=_surroundings(config),
                )
            )
    finally:
        store.close()


@contextmanager
def chain_gate(
    config: BrokerConfig, consortium: Consortium, clock: Clock
) -> Iterator[ChainCondition | None]:
    """The contract that must allow a deployment too; ``None`` where none is configured.

    Args:
        config: Names the chain file.
        consortium: Whose owners the chain file must name.
        clock: Seconds since the epoch.

    Raises:
        TrustInvalid: The chain file is malformed, or names an owner that the consortium lacks.
    """
    if config.chain is None:
        yield None
        return
    from sealtrain.consortium.chainfile import load_chain_file

    open_gate = load(f"{CHAIN}.chain_condition:open_gate")
    chain = load_chain_file(config.chain)
    require_known_owners(chain, consortium)
    with open_gate(chain, clock=clock, monotonic=time.monotonic) as gate:
        yield gate


def _own_guest(config: BrokerConfig) -> Guest:
    return open_guest(
        platform_of(config.platform),
        str(config.guest),
        collateral=config.collateral,
        gpu_collateral=config.gpu_collateral,
    )


def _own_evidence(guest: Guest, binding: Binding) -> Evidence:
    try:
        return guest.evidence(binding)
    except (ConfigError, EvidenceRefused) as error:
        raise Unreachable("the broker cannot collect its own evidence") from error


@contextmanager
def _app(broker: Broker, config: BrokerConfig) -> Iterator[FastAPI]:
    """The application, and its page for Prometheus where one is wanted."""
    from sealtrain.broker.http.app import broker_app
    from sealtrain.broker.http.metrics import Metrics, metrics_page

    public_urls = tuple(public_url(url) for url in config.public_urls)
    metrics = Metrics(broker)
    app = broker_app(broker, metrics, public_urls=public_urls)
    if config.metrics_port is None:
        yield app
        return
    with metrics_page(metrics, config.metrics_port) as port:
        logging.getLogger("sealtrain.broker").info("metrics port=%s", port())
        yield app


def _surroundings(config: BrokerConfig) -> dict[str, Callable[[], object]]:
    """Checks of what a decision needs besides the databases; each raises ``Unreachable``."""
    return {
        "disk": partial(_room_on_disk, config),
        "collateral": partial(_collateral_file, config),
        "gpu collateral": partial(gpu_collateral, config),
    }


def _room_on_disk(config: BrokerConfig) -> None:
    try:
        free = shutil.disk_usage(config.state).free
    except OSError as error:
        raise Unreachable(
            "the broker's state folder cannot be read",
            check="disk",
            got=error.strerror or type(error).__name__,
        ) from error
    if free < _FREE_BYTES:
        raise Unreachable(
            "the broker's disk is nearly full",
            check="disk",
            got=f"{free} bytes free",
            expected=f"at least {_FREE_BYTES}",
        )


def _collateral_file(config: BrokerConfig) -> None:
    try:
        if config.collateral is not None and not services_of(config.collateral):
            load_collateral(config.collateral)
    except (ConfigError, EvidenceRefused) as error:
        raise Unreachable("the broker's collateral cannot be read", check="collateral") from error


def require_extra() -> None:
    """Return if the ``broker`` extra is installed.

    Raises:
        ExtraMissing: It is not.
    """
    try:
        import alembic
        import fastapi
        import prometheus_client
        import sqlalchemy
        import uvicorn
    except ImportError as error:
        raise extra_missing("the broker", "broker", error) from error
    _ = (alembic, fastapi, prometheus_client, sqlalchemy, uvicorn)
