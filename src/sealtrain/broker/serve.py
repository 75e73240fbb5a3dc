"""Start a broker from its configuration and serve it until SIGTERM or SIGINT.

1. Everything it trusts is read and checked before it listens.
2. The ledger is audited when it is opened: a ledger that was rewritten stops the start.
3. It listens on loopback unless told otherwise; TLS, where wanted, ends in front of it.
4. On a signal it stops accepting, answers what it began and closes both databases.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket as sockets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.guest import Guest, load_gpu_collateral, open_guest, platform_of
from sealtrain.attest.policy import load_policy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.tdx.collect import load_collateral
from sealtrain.attest.tdx.fetch import services_of
from sealtrain.base.clock import Clock, system_clock
from sealtrain.broker.collateral import gpu_collateral, guests_collateral
from sealtrain.broker.config import BrokerConfig
from sealtrain.consortium.members import Consortium
from sealtrain.errors import ConfigError, EvidenceRefused, ExtraMissing, Unreachable, UsageError
from sealtrain.keys.uris import root_secret
from sealtrain.release.transcript import ledger_origin
from sealtrain.sealing.datakey import Randomness

if TYPE_CHECKING:
    from fastapi import FastAPI

    from sealtrain.broker.service import Broker

__all__ = ["assembled", "running", "serve"]


def serve(
    config: BrokerConfig,
    ready: Callable[[str], None] | None = None,
    *,
    clock: Clock = system_clock,
    random: Randomness = os.urandom,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        config: Settings.
        ready: Called with the base URL once the broker answers.
        clock: The broker's time.
        random: Source of challenges and lease ids, and of a new root secret.

    Raises:
        ConfigError: A file it is told of cannot be used.
        Unreachable: The guest API or the ledger file cannot be reached.
        LedgerInconsistent: The ledger was changed from outside.
        ExtraMissing: The ``broker`` extra is not installed.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", force=True
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with assembled(config, clock=clock, random=random) as broker:
        asyncio.run(_serve(_app(broker), config, ready, None))


@contextmanager
def running(
    config: BrokerConfig, *, clock: Clock = system_clock, random: Randomness = os.urandom
) -> Iterator[str]:
    """The same in a background thread, for tests and for a broker inside one process.

    Yields:
        The base URL, answering. Raises as ``serve``.
    """
    started = threading.Event()
    urls: list[str] = []
    quitters: list[Callable[[], None]] = []
    failures: list[BaseException] = []

    def ready(url: str) -> None:
        urls.append(url)
        started.set()

    def run(app: FastAPI) -> None:
        try:
            asyncio.run(_serve(app, config, ready, quitters))
        except BaseException as error:  # handed to the caller below
            failures.append(error)
        finally:
            started.set()

    with assembled(config, clock=clock, random=random) as broker:
        thread = threading.Thread(target=run, args=(_app(broker),), name="broker", daemon=True)
        thread.start()
        started.wait()
        try:
            if not failures:
                yield urls[0]
        finally:
            for quit_server in quitters:
                with suppress(RuntimeError):  # the loop has already ended
                    quit_server()
            thread.join()
    if failures:
        raise failures[0]


@contextmanager
def assembled(
    config: BrokerConfig, *, clock: Clock = system_clock, random: Randomness = os.urandom
) -> Iterator[Broker]:
    """A broker without HTTP, from its configuration. Arguments and errors as ``serve``."""
    _require_extra()
    from sealtrain.broker.keyring import Keyring
    from sealtrain.broker.parts import BrokerParts
    from sealtrain.broker.service import Broker
    from sealtrain.broker.store import Store
    from sealtrain.consortium.ledger import Ledger

    consortium = Consortium.load(config.consortium)
    policy = load_policy(config.policy)
    if config.collateral is not None and not services_of(config.collateral):
        load_collateral(config.collateral)
    load_gpu_collateral(config.gpu_collateral)
    guest = open_guest(
        platform_of(config.platform),
        str(config.guest),
        collateral=config.collateral,
        gpu_collateral=config.gpu_collateral,
    )
    config.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    keyring = Keyring(root_secret(config.root_secret, create=True, random=random))
    store = Store(config.state / "broker.sqlite")
    try:
        with Ledger.open(
            config.state / "ledger.sqlite",
            origin=ledger_origin(consortium.consortium_id),
            signer=keyring.signer,
            clock=clock,
        ) as ledger:
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
                    lease_seconds=config.lease_seconds,
                )
            )
    finally:
        store.close()


def _own_evidence(guest: Guest, binding: Binding) -> Evidence:
    try:
        return guest.evidence(binding)
    except (ConfigError, EvidenceRefused) as error:
        raise Unreachable("the broker cannot collect its own evidence") from error


def _app(broker: Broker) -> FastAPI:
    from sealtrain.broker.http import broker_app

    return broker_app(broker)


async def _serve(
    app: FastAPI,
    config: BrokerConfig,
    ready: Callable[[str], None] | None,
    quitters: list[Callable[[], None]] | None,
) -> None:
    import uvicorn

    listener = _listen(config)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    class Server(uvicorn.Server):
        """Uvicorn that leaves signals to us: its own handler ends the process before cleanup."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[Any] | None = None) -> None:
            await super().startup(sockets)
            if ready is not None and self.started:
                ready(url)

    server = Server(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            access_log=False,
            log_level="warning",
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=256,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=10,
        )
    )

    def quit_server() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    if quitters is None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, quit_server)
    else:
        quitters.append(partial(_stop, loop, quit_server))
    with listener:
        await server.serve(sockets=[listener])


def _stop(loop: asyncio.AbstractEventLoop, quit_server: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(quit_server)


def _listen(config: BrokerConfig) -> sockets.socket:
    family = sockets.AF_INET6 if ":" in config.host else sockets.AF_INET
    # Named, because asyncio switches Nagle's delay off only for sockets that name their protocol.
    listener = sockets.socket(family, sockets.SOCK_STREAM, sockets.IPPROTO_TCP)
    try:
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}",
            check="address",
            hint="choose another --port, or 0 for any free one",
        ) from error
    return listener


def _require_extra() -> None:
    try:
        import fastapi
        import sqlalchemy
        import uvicorn
    except ImportError as error:
        raise ExtraMissing(
            "the broker needs packages that are not installed",
            hint="pip install 'sealtrain[broker]'",
        ) from error
    _ = (fastapi, sqlalchemy, uvicorn)
