"""A broker whose key was rotated is still the one that the lock and the stanzas name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from quorum_world import QuorumWire, QuorumWorld, quorum_world
from release_world import ROOT, ReleaseWorld
from world import deployed

from sealtrain.base.secret import Secret
from sealtrain.broker.service.keyring import Keyring
from sealtrain.broker.service.rotating import rotate_key
from sealtrain.broker.service.service import Broker
from sealtrain.client.broker_proof import AttestedBroker, fetch_keys
from sealtrain.client.grant import renew
from sealtrain.client.wrapping import wrap_for_brokers
from sealtrain.consortium.receipts import verify_receipt
from sealtrain.errors import BrokerNotApproved
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.rotation import read_rotation, rotation_entry
from sealtrain.release.messages import ledger_origin
from sealtrain.sealing.errors import NoStanza
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.errors import BrokerMismatch
from sealtrain.signing.identity import broker_id

pytestmark = [pytest.mark.claim("C68"), pytest.mark.claim("C90")]

NEXT = [Secret(bytes([200 + number]) * 32) for number in range(3)]


@contextmanager
def rotated(
    world: ReleaseWorld, *, old: bytes = ROOT, new: Secret = NEXT[0], held: bool = True
) -> Iterator[Broker]:
    """The same broker after ``sealtrain broker rotate-root``; ``held``: with the former root."""
    before = Secret(old)
    origin = ledger_origin(world.consortium.consortium_id)
    path = world.state / "ledger.sqlite"
    rotate_key(path, origin, old=before, new=new, now=world.clock())
    keyring = Keyring(new, [before] if held else [])
    with Ledger.open(
        path, origin=origin, signer=keyring.signer, clock=world.clock, former=keyring.former
    ) as ledger:
        yield Broker(replace(world.parts, keyring=keyring, ledger=ledger))


def wire_of(broker: Broker, place: int = 1) -> QuorumWire:
    return QuorumWire(broker=broker, url=f"http://127.0.0.1:{place}")


def attested(world: ReleaseWorld, wire: Any, **changed: Any) -> AttestedBroker:
    pin = changed.pop("pin", world.pin)
    now = changed.pop("now", world.clock())
    return fetch_keys(wire, pin, world.consortium, deployed(world.locked, **changed), now=now)


def test_a_run_goes_on_at_the_broker_whose_key_was_rotated(world: ReleaseWorld) -> None:
    """Lock, broker file and stanzas name the key that it had: its ledger says what became of it."""
    before = world.obtain()
    with rotated(world) as broker:
        wire = wire_of(broker)
        found = attested(world, wire)
        assert found.named_as == world.pin.broker_id
        assert found.broker_id == broker_id(Keyring(NEXT[0]).signer.public)
        assert found.ids == (found.broker_id, world.pin.broker_id)
        after = world.obtain(wire=wire, attested=found, run_id=before.run_id, resume=True)
        assert {name: key.reveal() for name, key in after.keys.items()} == {
            name: key.reveal() for name, key in before.keys.items()
        }
        listed = after.receipts[-1].to_dict()
        receipt = verify_receipt(Envelope.from_dict(listed["receipt"]), found.signing_key)
        assert receipt.broker_id == found.broker_id
        (rotation,) = listed["rotations"]
        entry = rotation_entry(Envelope.from_dict(rotation))
        step = read_rotation(entry, origin=found.origin)
        assert (broker_id(step.old), step.new) == (world.pin.broker_id, found.signing_key)
    assert before.receipts[-1].to_dict()["rotations"] == []


def test_a_lease_of_the_former_key_is_not_renewed_by_the_next(world: ReleaseWorld) -> None:
    grant, known = world.obtain(), world.attest()
    with rotated(world) as broker:
        wire = wire_of(broker)
        with pytest.raises(BrokerMismatch):
            renew(wire, known, world.collect(world.guest()), grant)
        found = attested(world, wire)
        again = renew(wire, found, world.collect(world.guest()), grant)
        assert again.lease_id == grant.lease_id


def test_what_an_owner_seals_afterwards_names_the_present_key(world: ReleaseWorld) -> None:
    from world import identity

    from sealtrain.client.grants import WantedKey

    with rotated(world) as broker:
        found = attested(world, wire_of(broker))
        one = world.sealed["hospital-a"]
        me = identity(one.owner).public
        fresh = wrap_for_brokers(
            one.key, dataset_id=one.dataset_id, owner=me, brokers=[found], threshold=None
        )
        wanted = WantedKey(
            dataset_id=one.dataset_id,
            root=one.root,
            owner=one.owner,
            owner_id=me.owner_id,
            stanzas=(one.stanza, *fresh),
        )
        assert wanted.stanza_for(found) == fresh[0]
        assert replace(wanted, stanzas=(one.stanza,)).stanza_for(found) == one.stanza
        assert wanted.stanza_for(world.attest()) == one.stanza


def test_without_the_former_root_nothing_sealed_before_opens(world: ReleaseWorld) -> None:
    with rotated(world, held=False) as broker:
        wire = wire_of(broker)
        with pytest.raises(NoStanza):
            world.obtain(wire=wire, attested=attested(world, wire))


def test_a_lock_that_names_the_next_key_is_served_by_who_has_it(world: ReleaseWorld) -> None:
    """A lock made after the rotation; the broker that still has the old key serves none such."""
    named = broker_id(Keyring(NEXT[0]).signer.public)
    with pytest.raises(BrokerNotApproved):
        attested(world, world.wire, brokers=[named])
    with rotated(world) as broker:
        found = attested(world, wire_of(broker), brokers=[named])
        assert (found.named_as, found.since_named) == (named, ())


def test_every_broker_may_rotate_before_owners_rewrap(tmp_path: Path) -> None:
    """Shares name the ids that the brokers had; each proves that it had them."""
    with quorum_world(tmp_path) as world, ExitStack() as stack:
        run_id = os.urandom(16).hex()
        before = world.obtain(run_id=run_id)
        for place, each_world in enumerate(world.worlds):
            made = rotated(each_world, old=bytes([place + 1]) * 32, new=NEXT[place])
            world.wires[place].broker = stack.enter_context(made)
        after = world.obtain(run_id=run_id, resume=True)
        assert after.data_keys == before.data_keys
        assert after.run_key.reveal() == before.run_key.reveal()
        assert set(after.held) == {wire.url for wire in world.wires}
        assert_told_nothing(world)


def assert_told_nothing(world: QuorumWorld) -> None:
    assert world.told == []
