"""Two parties with proofs, and a stream between them that somebody may sit on."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from manifest_world import signer, simulated_pki
from relays import altering, carried

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.secret import Secret
from sealtrain_collab.channel import channel as channels
from sealtrain_collab.channel.channel import AttestedChannel
from sealtrain_collab.channel.handshake import Conversation
from sealtrain_collab.channel.proofs import AcceptGuest, AcceptKey, ProveGuest, ProveKey
from sealtrain_collab.channel.streams import dialled
from sealtrain_simulator.guest import SimulatedGuest

NOW = 1_790_000_000
TIMEOUT = 10.0
COMPOSE = canonical_json({"name": "a-party", "manifest_version": 2})

Relay = Callable[[bytes], bytes]
"""What somebody on the way makes of the bytes of one direction."""


def guest(compose: bytes = COMPOSE, vendor: str = "vendor") -> ProveGuest:
    pki = simulated_pki(vendor)
    booted = SimulatedGuest(pki, Secret(bytes(32)), compose)

    def collect(binding: Binding) -> Evidence:
        return booted.evidence(binding, collateral=pki.collateral(NOW))

    return ProveGuest(collect)


def acceptance(compose: bytes = COMPOSE) -> AcceptGuest:
    policy = insecure_simulator_policy(simulated_pki().root_der)
    return AcceptGuest(policy=policy, compose_hash=sha256_hex(compose), clock=lambda: NOW)


def conversation(**changed: Any) -> Conversation:
    """Of a party that signs with ``alice`` and talks to whoever signs with ``bob``."""
    agreed: dict[str, Any] = {
        "purpose": "test-talk",
        "context": {"run": "1", "trip": 2},
        "proof": ProveKey(signer("alice")),
        "accept": AcceptKey(frozenset({signer("bob").public})),
        "random": os.urandom,
    }
    return Conversation(**agreed | changed)


def answering(**changed: Any) -> Conversation:
    """The other side of ``conversation``."""
    keys: dict[str, Any] = {
        "proof": ProveKey(signer("bob")),
        "accept": AcceptKey(frozenset({signer("alice").public})),
    }
    return conversation(**keys | changed)


@dataclass
class Outcome:
    """What became of the side that was called."""

    channel: AttestedChannel | None = None
    error: BaseException | None = None


@contextmanager
def called(theirs: Conversation) -> Iterator[tuple[tuple[str, int], Outcome, threading.Thread]]:
    """A party that waits on loopback for one caller."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(TIMEOUT)
    outcome = Outcome()

    def wait() -> None:
        try:
            sock, _address = listener.accept()
            outcome.channel = channels.accept(sock, theirs, timeout=TIMEOUT)
        except BaseException as error:
            outcome.error = error

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield listener.getsockname(), outcome, thread
    finally:
        listener.close()
        thread.join(TIMEOUT)
        if outcome.channel is not None:
            outcome.channel.close()


@contextmanager
def talking(
    ours: Conversation | None = None, theirs: Conversation | None = None, *,
    relay: tuple[Relay, Relay] | None = None,
    on_line: Callable[[socket.socket], None] = lambda _line: None,
) -> Iterator[tuple[AttestedChannel, AttestedChannel]]:  # fmt: skip
    """Both ends of an open channel; what passes goes through ``relay`` (there, back).

    ``on_line`` is given the connection that the first end talks over.
    """
    with (
        called(theirs or answering()) as (address, outcome, thread),
        _through(address, relay) as reached,
        dialled(reached, timeout=TIMEOUT) as line,
        channels.open_over(line, ours or conversation()) as mine,
    ):
        on_line(line)
        thread.join(TIMEOUT)
        if outcome.error is not None:
            raise outcome.error
        assert outcome.channel is not None
        yield mine, outcome.channel


@contextmanager
def _through(
    address: tuple[str, int], relay: tuple[Relay, Relay] | None
) -> Iterator[tuple[str, int]]:
    if relay is None:
        yield address
        return
    with carried(address, *map(altering, relay)) as (between, _seen):
        yield between
