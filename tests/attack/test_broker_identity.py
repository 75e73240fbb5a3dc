"""Which broker a guest obeys: an operator's relay, a second instance, a swapped receipt."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from quorum_world import QuorumWire
from release_world import ROOT, ReleaseWorld, evidence_of, ids_of, release_world, renewed
from world import DAY, OWNERS, booted, deployed, identity, signer, simulated_pki

from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.client.broker_proof import attest_pinned_broker
from sealtrain.client.grants import Grants, WantedKey
from sealtrain.client.pin import BrokerPin, load_pin
from sealtrain.client.quorum import Quorum
from sealtrain.consortium.errors import ApprovalRevoked
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.receipts import (
    Anchor,
    Lease,
    OwnedId,
    ReleaseReceipt,
    receipt_digest,
    sign_receipt,
    verify_receipt,
)
from sealtrain.errors import BrokerNotApproved, SealtrainError, SignatureInvalid, TrustInvalid
from sealtrain.keys.derive import signing_key
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.proofs import LedgerProof
from sealtrain.ledger.rotation import rotation_entry, sign_rotation
from sealtrain.release.errors import AnswerInvalid
from sealtrain.release.messages import (
    IDENTITY_PURPOSE,
    KEYS_PURPOSE,
    BrokerIdentity,
    BrokerKeys,
    Challenge,
    EnvelopeDocument,
    ReleaseAnswer,
    ReleaseRequest,
    RenewalAnswer,
    RenewalRequest,
    ledger_origin,
    transcript_digest,
)
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.errors import BrokerMismatch, ProofInvalid
from sealtrain.signing.identity import broker_id
from sealtrain_rehearsal.simulator.pki import SimulatedPki

COMPOSE = b'{"manifest_version":2,"name":"an-operators-own"}'
LATER = 3650 * DAY
INVENTED = Anchor(counter=99, digest="ab" * 32)


@dataclass(kw_only=True)
class Relay:
    """Speaks as a broker and holds no root secret, only a key and evidence of its own.

    Attributes:
        claims: Signing key that its evidence names: its own, or the real broker's.
        asked: What reached it of requests that a guest makes of a broker that it obeys.
        shows: Rotations of a ledger's key, as it tells them.
    """

    world: ReleaseWorld
    real: QuorumWire
    pki: SimulatedPki
    signer: Ed25519Signer
    ledger: Ledger
    claims: bytes
    url: str = "http://127.0.0.1:66"
    asked: list[str] = field(default_factory=list)
    shows: tuple[tuple[int, dict[str, JsonValue]], ...] = ()
    anchor: Anchor | None = None
    last: ReleaseReceipt | None = None

    @property
    def pin(self) -> BrokerPin:
        """The operator's broker file: everything in it is true of the relay."""
        return BrokerPin(
            url=self.url,
            signing_key=to_base64(self.claims),
            compose_hash=sha256_hex(COMPOSE),
            appraisal=insecure_simulator_policy(self.pki.root_der),
        )

    def close(self) -> None:
        """There is no connection."""

    def consortium(self, consortium_id: str) -> Consortium:
        return self.real.consortium(consortium_id)

    def ask_registered(self, wanted: Iterable[OwnedId], **query: str) -> frozenset[OwnedId]:
        self.asked.append("registered")
        return self.real.ask_registered(wanted, **query)

    def decisions(self, target: Any) -> list[dict[str, JsonValue]]:
        return []  # no revocation reaches the guest

    def ledger_rotations(self) -> tuple[tuple[int, dict[str, JsonValue]], ...]:
        return self.shows

    def ledger_proof(self, index: int) -> LedgerProof:
        return self.ledger.proof(index)

    def identity(self, nonce: str) -> BrokerIdentity:
        real = self.real.identity(nonce).to_dict()
        return BrokerIdentity.model_validate_json(self._restated(real, IDENTITY_PURPOSE))

    def keys(self, **query: str) -> BrokerKeys:
        real = self.real.keys(**query).to_dict()
        return BrokerKeys.model_validate_json(self._restated(real, KEYS_PURPOSE))

    def _restated(self, document: dict[str, Any], purpose: str) -> bytes:
        document["signing_key"] = to_base64(self.claims)
        statement = {k: v for k, v in document.items() if k not in ("version", "evidence")}
        guest = booted(self.pki, COMPOSE, 7)
        evidence = evidence_of(guest, Binding(purpose, statement), self.pki, self.world.clock())
        return canonical_json({"version": 1, **statement, "evidence": evidence.to_dict()})

    def challenge(self, consortium_id: str, purpose: str) -> Challenge:
        return self.real.challenge(consortium_id, purpose)

    def release(self, request: ReleaseRequest) -> ReleaseAnswer:
        self.asked.append("release")
        real = self.real.release(request)
        key = self.world.keyring.signer.public
        self.last = self._longer(verify_receipt(real.receipt.envelope(), key))
        receipt, proof = self._booked("release", self.last, request)
        return ReleaseAnswer(
            version=2, run_id=request.run_id, enc=real.enc, receipt=receipt, proof=proof
        )

    def renew(self, request: RenewalRequest) -> RenewalAnswer:
        self.asked.append("renewal")
        assert self.last is not None
        self.anchor = request.checkpoint or self.anchor
        renewed = self._longer(self.last).model_copy(
            update={
                "kind": "renewal",
                "resume": False,
                "datasets": (),
                "evidence_digest": request.evidence.digest,
                "transcript_digest": transcript_digest(request.transcript()),
                "checkpoint": self.anchor,
            }
        )
        receipt, proof = self._booked("renewal", renewed, None)
        return RenewalAnswer(version=2, run_id=request.run_id, receipt=receipt, proof=proof)

    def _longer(self, receipt: ReleaseReceipt) -> ReleaseReceipt:
        now = self.world.clock()
        lease = Lease(lease_id=receipt.lease.lease_id, not_after=to_rfc3339(now + LATER))
        mine = {
            "broker_id": broker_id(self.signer.public),
            "released_at": to_rfc3339(now),
            "lease": lease,
            "checkpoint": INVENTED,
        }
        return receipt.model_copy(update=mine)

    def _booked(
        self, kind: str, receipt: ReleaseReceipt, request: ReleaseRequest | None
    ) -> tuple[EnvelopeDocument, dict[str, Any]]:
        envelope = sign_receipt(receipt, self.signer)
        data = [] if request is None else sorted(request.data)
        index = self.ledger.append(
            kind,
            {
                "receipt_digest": receipt_digest(envelope),
                "datasets": [dataset._asdict() for dataset in data],
                "elsewhere": [],
                "submission_id": None if request is None else request.submission_id,
            },
        )
        return EnvelopeDocument.of(envelope), self.ledger.proof(index).to_dict()


@contextmanager
def relay(
    world: ReleaseWorld,
    real: QuorumWire,
    pki: SimulatedPki,
    signer: Ed25519Signer,
    *,
    claims: bytes | None = None,
) -> Iterator[Relay]:
    """A relay before one broker, with a ledger of its own."""
    path = Path(world.folder) / "relay.sqlite"
    origin = ledger_origin(world.consortium.consortium_id)
    with Ledger.open(path, origin=origin, signer=signer, clock=world.clock) as ledger:
        yield Relay(
            world=world,
            real=real,
            pki=pki,
            signer=signer,
            ledger=ledger,
            claims=claims or signer.public,
        )


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
        clients: dict[str, Any] = {relay.url: relay for relay in relays}
        pins = [relay.pin for relay in relays]
        if beside:
            clients[REAL] = world.wire
            pins.append(world.pin)
        self.quorum = Quorum(
            pins,
            consortium_id=world.consortium.consortium_id,
            deployed=deployed(world.locked),
            clock=world.clock,
            on_failure=lambda url, error: self.told.append((url, error.code)),
            client=lambda url: clients[url],
        )
        self.collect = world.collect(world.guest())

    def obtain(self, run_id: str, *, resume: bool = False) -> Grants:
        wanted = [
            WantedKey(
                dataset_id=dataset.dataset_id,
                root=dataset.root,
                owner=dataset.owner,
                owner_id=identity(dataset.owner).public.owner_id,
                stanzas=(dataset.stanza,),
            )
            for dataset in self.world.sealed.values()
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
    return world.keys_from(wire, pin, brokers=brokers or world.locked.lock.brokers)


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
            lambda: attest_pinned_broker(
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
            lambda: attest_pinned_broker(
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
        deployed=deployed(world.locked),
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
