"""Two parties with proofs, and a stream between them that somebody may sit on."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from relays import altering, carried
from world import booted, signer, simulated_pki, simulated_policy

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain_together.channel import channel as channels
from sealtrain_together.channel.channel import AttestedChannel
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.proofs import AcceptGuest, AcceptKey, ProveGuest, ProveKey
from sealtrain_together.channel.streams import dial

NOW = 1_790_000_000
TIMEOUT = 10.0
COMPOSE = canonical_json({"name": "a-party", "manifest_version": 2})

Relay = Callable[[bytes], bytes]
"""What somebody on the way makes of the bytes of one direction."""


def guest(compose: bytes = COMPOSE, vendor: str = "vendor") -> ProveGuest:
    pki = simulated_pki(vendor)
    shown = booted(pki, compose)

    def collect(binding: Binding) -> Evidence:
        return shown.evidence(binding, collateral=pki.collateral(NOW))

    return ProveGuest(collect)


def acceptance(compose: bytes = COMPOSE) -> AcceptGuest:
    return AcceptGuest(
        policy=simulated_policy(), compose_hash=sha256_hex(compose), clock=lambda: NOW
    )


def keyed(
    purpose: str, me: str, *accepted: str, context: dict[str, Any] | None = None
) -> ChannelTerms:
    """Of a party that signs with ``me`` and talks to those who sign with ``accepted``."""
    return ChannelTerms(
        purpose=purpose,
        context=context,
        proof=ProveKey(signer(me)),
        accept=AcceptKey(frozenset(signer(name).public for name in accepted)),
        random=os.urandom,
    )


def conversation(me: str = "alice", other: str = "bob", **changed: Any) -> ChannelTerms:
    """A conversation with changes."""
    return replace(keyed("test-talk", me, other, context={"run": "1", "trip": 2}), **changed)


def answering(**changed: Any) -> ChannelTerms:
    """The other side of ``conversation``."""
    return conversation("bob", "alice", **changed)


@dataclass
class Outcome:
    """What became of the side that was called."""

    channel: AttestedChannel | None = None
    error: BaseException | None = None


@contextmanager
def called(theirs: ChannelTerms) -> Iterator[tuple[tuple[str, int], Outcome, threading.Thread]]:
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
    ours: ChannelTerms | None = None, theirs: ChannelTerms | None = None, *,
    relay: tuple[Relay, Relay] | None = None,
    on_line: Callable[[socket.socket], None] = lambda _line: None,
) -> Iterator[tuple[AttestedChannel, AttestedChannel]]:  # fmt: skip
    """Both ends of an open channel; what passes goes through ``relay`` (there, back).

    ``on_line`` is given the connection that the first end talks over.
    """
    with (
        called(theirs or answering()) as (address, outcome, thread),
        _through(address, relay) as reached,
        dial(reached, timeout=TIMEOUT) as line,
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
