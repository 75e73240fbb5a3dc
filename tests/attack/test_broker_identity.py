"""Which broker a guest obeys: an operator's relay, a second instance, a swapped receipt."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifest_world import OWNERS, identity, signer, simulated_pki
from quorum_world import QuorumWire
from relay_world import INVENTED, Relay, relay
from release_world import ROOT, ReleaseWorld, ids_of, release_world, renewed

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.client.attested import Deployed, fetch_keys, pinned_identity
from sealtrain.client.grants import Grants, Wanted
from sealtrain.client.pin import BrokerPin, load_pin
from sealtrain.client.quorum import Quorum
from sealtrain.consortium.receipts import Lease, receipt_digest, sign_receipt, verify_receipt
from sealtrain.errors import (
    AnswerInvalid,
    ApprovalRevoked,
    BrokerMismatch,
    BrokerNotApproved,
    ProofInvalid,
    SealtrainError,
    SignatureInvalid,
    TrustInvalid,
)
from sealtrain.keys.derive import signing_key
from sealtrain.ledger.rotation import rotation_entry, sign_rotation
from sealtrain.release.messages import ledger_origin
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.ed25519 import Ed25519Signer

pytestmark = pytest.mark.claim("C90")

MALLORY = signer("an operator")
REAL = "http://127.0.0.1:1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ReleaseWorld]:
    with release_world(tmp_path) as made:
        made.wire = QuorumWire(broker=made.broker, url=REAL)
        yield made


@pytest.fixture
def between(world: ReleaseWorld) -> Iterator[Relay]:
    """The operator's relay: its evidence passes the policy of the operator's own broker file."""
    with relay(world, world.wire, simulated_pki("an operator's"), MALLORY) as made:
        yield made


class Asked:
    """A guest's brokers, by what its broker files say, and what it was told of them."""

    def __init__(self, world: ReleaseWorld, *relays: Relay, beside: bool = False) -> None:
        self.world = world
        self.told: list[tuple[str, str]] = []
        clients: dict[str, Any] = {one.url: one for one in relays}
        pins = [one.pin for one in relays]
        if beside:
            clients[REAL] = world.wire
            pins.append(world.pin)
        self.quorum = Quorum(
            pins,
            consortium_id=world.consortium.consortium_id,
            deployed=Deployed(
                app_id=world.locked.app_id,
                compose_hash=world.locked.compose_hash,
                brokers=world.locked.lock.brokers,
            ),
            clock=world.clock,
            on_failure=lambda url, error: self.told.append((url, error.code)),
            client=lambda url: clients[url],
        )
        self.collect = world.collect(world.guest())

    def obtain(self, run_id: str, *, resume: bool = False) -> Grants:
        wanted = [
            Wanted(
                dataset_id=one.dataset_id,
                root=one.root,
                owner=one.owner,
                owner_id=identity(one.owner).public.owner_id,
                stanzas=(one.stanza,),
            )
            for one in self.world.sealed.values()
        ]
        return self.quorum.obtain(
            self.collect,
            run_id=run_id,
            recipe_hash=self.world.locked.recipe_hash,
            datasets=wanted,
            resume=resume,
        )


def fresh_id() -> str:
    return os.urandom(16).hex()


# A relay with a key of its own


def test_a_relay_with_its_own_key_and_evidence_is_asked_for_nothing(
    world: ReleaseWorld, between: Relay
) -> None:
    guest = Asked(world, between)
    with pytest.raises(BrokerNotApproved) as caught:
        guest.quorum.meet()
    assert caught.value.expected == world.pin.broker_id
    assert caught.value.exit_code == 3
    for resume in (False, True):
        with pytest.raises(BrokerNotApproved):
            guest.obtain(fresh_id(), resume=resume)
    assert between.asked == []
    assert "release" not in world.kinds()


def test_beside_the_real_broker_a_relays_leases_and_anchors_count_nothing(
    world: ReleaseWorld, between: Relay
) -> None:
    run_id = fresh_id()
    Asked(world, beside=True).obtain(run_id)
    guest = Asked(world, between, beside=True)
    grants = guest.obtain(run_id, resume=True)
    assert set(grants.held) == {REAL}
    assert grants.latest_checkpoint is None  # not the one that the relay invents
    assert grants.lease_ends == world.clock() + 3600
    assert guest.told == [(between.url, "broker-not-approved")]
    for owner in ("hospital-a", "hospital-b"):
        world.revoke(owner)
    world.clock.advance(1500)
    after, problem = guest.quorum.renew(grants, guest.collect, (3, "cd" * 32))
    assert isinstance(problem, ApprovalRevoked)
    assert after.lease_ends == grants.lease_ends
    assert "renewal" not in between.asked


def test_a_relay_that_claims_the_real_brokers_key_signs_nothing_with_it(
    world: ReleaseWorld,
) -> None:
    """The operator's policy lets its evidence say anything; receipts are signed all the same."""
    pki, key = simulated_pki("an operator's"), world.keyring.signer.public
    with relay(world, world.wire, pki, MALLORY, claims=key) as liar:
        guest = Asked(world, liar)
        guest.quorum.meet()
        with pytest.raises(SignatureInvalid):
            guest.obtain(fresh_id())


def test_an_owner_does_not_seal_for_a_relay(world: ReleaseWorld, between: Relay) -> None:
    """An owner's broker file says what a broker must run, and a relay runs in no such guest."""
    pin = world.pin.model_copy(update={"url": between.url})
    with pytest.raises(SealtrainError) as caught:
        attest(world, pin, between)
    assert caught.value.code == "quote-root-untrusted"
    between.claims = world.keyring.signer.public
    with pytest.raises(SealtrainError) as caught:
        attest(world, pin, between)
    assert caught.value.code == "quote-root-untrusted"


def attest(world: ReleaseWorld, pin: BrokerPin, wire: Any, brokers: Sequence[str] = ()) -> Any:
    return fetch_keys(
        wire,
        pin,
        world.consortium,
        Deployed(
            app_id=world.locked.app_id,
            compose_hash=world.locked.compose_hash,
            brokers=brokers or world.locked.lock.brokers,
        ),
        now=world.clock(),
    )


# A relay that says it was rotated to


def test_a_relay_cannot_make_itself_the_successor_of_the_real_broker(
    world: ReleaseWorld, between: Relay
) -> None:
    origin, old = ledger_origin(world.consortium.consortium_id), world.keyring.signer
    honest = sign_rotation(origin, old=old, new=MALLORY, now=world.clock())
    alone = replace(honest, signatures=honest.signatures[1:])
    twice = replace(honest, signatures=(honest.signatures[1],) * 2)
    for forged in (alone, twice):
        body = rotation_entry(forged)
        between.shows = ((between.ledger.append("rotation", body), body),)
        with pytest.raises(SignatureInvalid):
            Asked(world, between).quorum.meet()
    # It may show what others rotated: that leads to none of its keys.
    stranger = rotation_entry(sign_rotation(origin, old=old, new=signer("next"), now=0))
    between.shows = ((between.ledger.append("rotation", stranger), stranger),)
    with pytest.raises(BrokerNotApproved):
        Asked(world, between).quorum.meet()


def test_a_rotation_that_no_ledger_holds_makes_no_successor(
    world: ReleaseWorld, between: Relay
) -> None:
    """Both keys signed it, and it is nowhere in the ledger that the successor shows."""
    origin = ledger_origin(world.consortium.consortium_id)
    hidden = sign_rotation(origin, old=world.keyring.signer, new=MALLORY, now=world.clock())
    between.ledger.append("approval", {"note": "something else"})
    between.shows = ((0, rotation_entry(hidden)),)
    with pytest.raises((ProofInvalid, AnswerInvalid)):
        Asked(world, between).quorum.meet()


# A second instance of the genuine broker


def test_a_second_instance_with_another_root_is_another_broker(
    world: ReleaseWorld, tmp_path: Path
) -> None:
    """The same deployment document, machine and policy: only the root secret differs."""
    with release_world(tmp_path, root=bytes(32), brokers=(ROOT,)) as second:
        assert second.pin.compose_hash == world.pin.compose_hash
        wire = QuorumWire(broker=second.broker, url=REAL)
        for check in (
            lambda: attest(world, world.pin, wire),
            lambda: pinned_identity(
                wire, world.pin, world.consortium.consortium_id, now=world.clock()
            ),
        ):
            with pytest.raises(BrokerMismatch) as caught:
                check()
            assert (caught.value.got, caught.value.expected) == (
                second.pin.broker_id,
                world.pin.broker_id,
            )
        # A file that names the second one is no help: the lock does not.
        for check in (
            lambda: attest(world, second.pin, wire),
            lambda: pinned_identity(
                wire,
                second.pin,
                world.consortium.consortium_id,
                brokers=world.locked.lock.brokers,
                now=world.clock(),
            ),
        ):
            with pytest.raises(BrokerNotApproved):
                check()


def test_two_urls_of_one_broker_are_one_broker(world: ReleaseWorld) -> None:
    """Two leases of one broker would count as those of two."""
    again = QuorumWire(broker=world.broker, url="http://127.0.0.1:2")
    told: list[str] = []
    quorum = Quorum(
        [world.pin, world.pin.model_copy(update={"url": again.url})],
        consortium_id=world.consortium.consortium_id,
        deployed=Deployed(
            app_id=world.locked.app_id,
            compose_hash=world.locked.compose_hash,
            brokers=world.locked.lock.brokers,
        ),
        clock=world.clock,
        on_failure=lambda _url, error: told.append(error.code),
        client=lambda url: world.wire if url == REAL else again,
    )
    quorum.meet()
    assert told == ["broker-mismatch"]


# What a broker takes


@pytest.mark.claim("C91")
def test_a_broker_serves_no_recipe_that_names_others(tmp_path: Path) -> None:
    """Its owners approved and registered; the lock that the guest measured names another broker."""
    with release_world(tmp_path, brokers=(bytes(32),)) as world:
        lying = attest(world, world.pin, world.wire, brokers=[world.pin.broker_id])
        with pytest.raises(BrokerNotApproved) as caught:
            world.obtain(attested=lying)
        assert caught.value.expected == ids_of(bytes(32))[0]
        assert world.refusals()[-1]["code"] == "broker-not-approved"
        world.assert_no_key_left()


@pytest.mark.claim("C91")
def test_a_request_for_one_broker_is_refused_at_another_before_evidence_is_looked_at(
    world: ReleaseWorld, tmp_path: Path
) -> None:
    with release_world(tmp_path, root=bytes(32)) as second:
        grant = world.obtain()
        request = world.wire.requests[-1]
        for name, sent in (
            ("release", lambda: second.wire.release(request)),
            ("renewal", lambda: second.wire.renew(renewal_of(world, grant), grant.lease_key)),
        ):
            with pytest.raises(BrokerMismatch) as caught:
                sent()
            assert caught.value.expected == second.pin.broker_id
            assert second.refusals()[-1]["action"] == name
            assert second.refusals()[-1]["check"] == "broker"
        second.assert_no_key_left()


def renewal_of(world: ReleaseWorld, grant: Any) -> Any:
    renewed(world, grant)
    return world.wire.requests[-1]


# A receipt beside keys


@pytest.mark.claim("C91")
@pytest.mark.parametrize("changed", ["lease", "lease id", "checkpoint", "approvals"])
def test_no_other_receipt_stands_beside_real_keys(world: ReleaseWorld, changed: str) -> None:
    """Not even one that the broker's own key signed and its ledger holds."""
    key: Ed25519Signer = signing_key(Secret(ROOT), "broker")

    def swapped(document: dict[str, Any]) -> None:
        if "enc" not in document:
            return
        envelope = Envelope.from_dict(document["receipt"])
        receipt = verify_receipt(envelope, key.public)
        later = to_rfc3339(world.clock() + 10**8)
        fields: dict[str, Any] = {
            "lease": {"lease": Lease(lease_id=receipt.lease.lease_id, not_after=later)},
            "lease id": {"lease": Lease(lease_id="ab" * 32, not_after=receipt.lease.not_after)},
            "checkpoint": {"checkpoint": INVENTED},
            "approvals": {"approved_by": OWNERS},
        }[changed]
        other = sign_receipt(receipt.model_copy(update=fields), key)
        index = world.ledger.append("release", entry_of(world, document, other))
        document["receipt"] = other.to_dict()
        document["proof"] = world.ledger.proof(index).to_dict()

    world.wire.on_answer = swapped
    with pytest.raises(AnswerInvalid) as caught:
        world.obtain()
    assert caught.value.check == "receipt"


def entry_of(world: ReleaseWorld, document: dict[str, Any], other: Envelope) -> dict[str, Any]:
    body = dict(document["proof"]["entry"]["body"])
    return body | {"receipt_digest": receipt_digest(other)}


@pytest.mark.claim("C91")
def test_a_receipt_that_names_another_broker_than_its_signer_is_none(world: ReleaseWorld) -> None:
    grant = world.obtain()
    receipt = grant.receipts[-1].receipt
    forged = sign_receipt(
        receipt.model_copy(update={"broker_id": "ab" * 32}), signing_key(Secret(ROOT), "broker")
    )
    with pytest.raises(SealtrainError) as caught:
        verify_receipt(forged, world.keyring.signer.public)
    assert (caught.value.code, caught.value.check) == ("statement-invalid", "receipt broker")


# Broker files


def test_a_broker_file_names_its_broker(world: ReleaseWorld, tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text(world.pin.to_yaml())
    assert load_pin(path).broker_id == world.pin.broker_id
    document = world.pin.to_dict()
    for broken in (
        {k: v for k, v in document.items() if k != "signing_key"},
        document | {"signing_key": to_base64(bytes(31))},
        document | {"version": 1},
        document | {"broker_id": world.pin.broker_id},
    ):
        path.write_text(yaml.safe_dump(broken))
        with pytest.raises(TrustInvalid):
            load_pin(path)
    path.write_text(world.pin.to_yaml() + "url: http://mallory\n")
    with pytest.raises(TrustInvalid):
        load_pin(path)
