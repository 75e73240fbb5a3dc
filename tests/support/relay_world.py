"""An operator's own "broker" between a guest and the real one: keys pass, all else is invented."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorum_world import QuorumWire
from release_world import DAY, ReleaseWorld, booted, evidence_of

from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.client.pin import BrokerPin
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.receipts import (
    Anchor,
    Lease,
    ReleaseReceipt,
    receipt_digest,
    sign_receipt,
    verify_receipt,
)
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.proofs import LedgerProof
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
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.identity import broker_id
from sealtrain_simulator.pki import SimulatedPki

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

    def registered(self, **query: str) -> frozenset[str]:
        self.asked.append("registered")
        return self.real.registered(**query)

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
                "datasets": [{"dataset_id": one, "root": root} for one, root in data],
                "elsewhere": [],
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
