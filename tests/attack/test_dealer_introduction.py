"""A guest seals its pad secret to the key of a dealer it verified, and to no other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from channel_world import COMPOSE, acceptance, guest
from otp_world import Watched, in_thread, random_entries, random_matrix
from sealtrain.collab.otp.introduction import introduce, introduced
from travel_relay import relayed

from sealtrain.base.canonical import canonical_json
from sealtrain.collab.channel.proofs import ProveKey
from sealtrain.collab.otp.dealer import RemoteDealer
from sealtrain.collab.otp.engine import Inside, UnderPads
from sealtrain.collab.otp.serving import Server
from sealtrain.errors import ChannelBroken, ChannelRefused, Refused, SealtrainError

RUN = "ab" * 16
OTHER = canonical_json({"name": "another-deployment", "manifest_version": 2})
proven = pytest.mark.claim("C73")


@contextmanager
def dealing(compose: bytes = COMPOSE, **changed: Any) -> Iterator[Server]:
    """A dealer in a guest, that deals for guests of the same deployment."""
    told: dict[str, Any] = {
        "proof": guest(compose),
        "accept_guest": acceptance(compose),
        "random": os.urandom,
        "seconds": 10.0,
    }
    with in_thread("dealer") as server:
        server.introduce = partial(introduce, **told | changed)
        yield server


def asked(address: Any, **changed: Any) -> Any:
    told: dict[str, Any] = {
        "run_id": RUN,
        "proof": guest(),
        "accept_dealer": acceptance(),
        "random": os.urandom,
        "seconds": 10.0,
    }
    return introduced(address, **told | changed)


def test_a_dealer_that_proved_itself_deals_right_pads() -> None:
    matrix = random_matrix()
    entries = random_entries(matrix, "forward")
    with dealing() as server:
        key, peer = asked(server.server_address)
        assert server.key is not None
        assert key.raw == server.key.public.raw
        assert peer.simulated
        supplier = RemoteDealer(*server.server_address, key=key)
        engine = UnderPads(Watched(), supplier=supplier)
        engine.admit(matrix)
        product = engine.product(matrix, "forward", entries)
        supplier.close()
    assert torch.equal(product, Inside().product(matrix, "forward", entries))


@proven
def test_a_dealer_of_another_deployment_is_refused() -> None:
    with (
        dealing(OTHER, accept_guest=acceptance()) as server,
        pytest.raises(Refused) as refused,
    ):
        asked(server.server_address)
    assert refused.value.code == "compose-hash-mismatch"


@proven
def test_whoever_has_only_a_key_is_no_dealer() -> None:
    from manifest_world import signer

    with (
        dealing(proof=ProveKey(signer("mallory"))) as server,
        pytest.raises(ChannelRefused, match="proves itself in another way"),
    ):
        asked(server.server_address)


@proven
def test_a_dealer_gives_its_key_to_no_guest_of_another_deployment() -> None:
    with dealing() as server, pytest.raises(SealtrainError):
        asked(server.server_address, proof=guest(OTHER))


@proven
@pytest.mark.parametrize("record", [0, 1], ids=["ready", "the key"])
def test_who_stands_between_cannot_put_in_a_key_of_theirs(record: int) -> None:
    """The key travels in the channel: altered bytes open nothing, whichever they are."""

    def altered(number: int, frame: bytes) -> list[bytes]:
        return [frame[:-1] + bytes([frame[-1] ^ 1])] if number == record else [frame]

    with (
        dealing() as server,
        relayed(server.server_address, back=altered) as (address, _),
        pytest.raises(ChannelBroken),
    ):
        asked(address)


def test_who_only_listens_in_between_changes_nothing() -> None:
    with dealing() as server, relayed(server.server_address) as (address, _):
        assert server.key is not None
        assert asked(address)[0].raw == server.key.public.raw
