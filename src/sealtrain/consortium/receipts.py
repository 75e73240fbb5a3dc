"""The receipt that a broker signs when it releases keys, and its verification.

Format: spec/run-manifest.md §4.

A receipt says: at this time this broker gave the keys of these datasets to this run, because this
evidence appraised well and these owners had approved. It holds no key. The broker writes the
receipt's digest (``receipt_digest``) into its ledger, so a receipt that is shown to an auditor but
missing from the ledger is detected.

``verify_receipt`` checks, in order:

1. the envelope carries the signature of the broker's key and no other;
2. its payload is canonical JSON and a ``ReleaseReceipt`` without unknown fields;
3. it names that broker;
4. the lease ends after the release.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from sealtrain.base.canonical import parse_canonical
from sealtrain.base.clock import from_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import Hex32, Hex40, Hex64, OwnerName, StrictModel, Timestamp, load_model
from sealtrain.consortium.chainword import ChainWord
from sealtrain.errors import DataInvalid
from sealtrain.signing import dsse
from sealtrain.signing.continues import Continues
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.identity import broker_id

RECEIPT_PAYLOAD_TYPE = "application/vnd.sealtrain.release-receipt+json"
MAX_DATASETS = 1024


class OwnedId(NamedTuple):
    """Which dataset is meant: any owner can repeat an id, so it counts only beside its owner."""

    owner_id: str
    """64 hex digits."""
    dataset_id: str
    """32 hex digits."""


class RunDataset(NamedTuple):
    """One dataset of a run, with the root under which the run has it."""

    owner_id: str
    """64 hex digits."""
    dataset_id: str
    """32 hex digits."""
    root: str
    """64 hex digits."""

    @property
    def owned(self) -> OwnedId:
        """Which dataset, root aside."""
        return OwnedId(self.owner_id, self.dataset_id)


class ReleasedDataset(StrictModel):
    """One dataset whose key was released."""

    dataset_id: Hex32
    owner_id: Hex64
    root: Hex64


class Lease(StrictModel):
    """How long the guest may keep using the keys."""

    lease_id: Hex64
    not_after: Timestamp


class Anchor(StrictModel):
    """Latest sealed checkpoint the broker knows of this run; its counter never goes back."""

    counter: int = Field(ge=0)
    digest: Hex64


class ReleaseReceipt(StrictModel):
    """Payload of a receipt.

    Attributes:
        kind: ``release`` for the first answer to a run or its resumption, ``renewal`` for a
            longer lease without new keys.
        broker_id: Of the broker that signed it, 64 hex digits.
        resume: The guest asked to continue a run that had begun before.
        datasets: In the order of the request; empty for a renewal.
        approved_by: Names of the owners whose approvals were valid at ``released_at``.
        evidence_digest: SHA-256 of the evidence the broker appraised.
        transcript_digest: SHA-256 of the canonical request transcript the evidence commits to.
        verdict: The appraisal claim by claim, ``attest.appraise.Verdict.to_dict()``.
        simulated: The evidence came from the simulator and proves nothing about hardware.
        checkpoint: Anchor after this decision, ``None`` before the first checkpoint.
        continues: Of a release with the key of the model of the run before: that run's manifest.
        chain: By which the broker knew that the owners' contract allows the deployment, where it
            asks one.
    """

    version: Literal[2] = 2
    kind: Literal["release", "renewal"]
    broker_id: Hex64
    run_id: Hex32
    resume: bool
    consortium_id: Hex64
    app_id: Hex40
    compose_hash: Hex64
    recipe_hash: Hex64
    datasets: tuple[ReleasedDataset, ...] = Field(max_length=MAX_DATASETS)
    approved_by: tuple[OwnerName, ...]
    evidence_digest: Hex64
    transcript_digest: Hex64
    verdict: dict[str, Any]
    simulated: bool
    released_at: Timestamp
    lease: Lease
    checkpoint: Anchor | None
    continues: Continues | None = Field(default=None, exclude_if=lambda value: value is None)
    chain: ChainWord | None = Field(default=None, exclude_if=lambda value: value is None)


def sign_receipt(receipt: ReleaseReceipt, signer: dsse.Ed25519Signer) -> dsse.Envelope:
    """Envelope of ``receipt`` under the broker's signing key."""
    return dsse.sign(receipt.to_bytes(), RECEIPT_PAYLOAD_TYPE, signer)


def verify_receipt(envelope: dsse.Envelope, broker_public_key: bytes) -> ReleaseReceipt:
    """Receipt inside ``envelope``, once the module's checks hold.

    Args:
        envelope: As read from a broker's answer or from a manifest.
        broker_public_key: Raw Ed25519 public key, 32 bytes.

    Raises:
        SignatureInvalid: Not signed by this broker.
        StatementInvalid: Signed, but not a receipt this version understands, or one that names
            another broker.
    """
    payload = dsse.verify(envelope, [broker_public_key], payload_type=RECEIPT_PAYLOAD_TYPE)
    try:
        document = parse_canonical(payload)
    except DataInvalid as error:
        raise StatementInvalid(f"release receipt: {error.message}", check="receipt") from error
    receipt = load_model(ReleaseReceipt, document, StatementInvalid, "release receipt")
    if receipt.to_bytes() != payload:  # an optional field is left out, and never null
        raise StatementInvalid("release receipt is not in its one form", check="receipt")
    signer = broker_id(broker_public_key)
    if receipt.broker_id != signer:
        raise StatementInvalid(
            "release receipt names another broker than the one that signed it",
            check="receipt broker",
            got=receipt.broker_id,
            expected=signer,
        )
    try:
        released = from_rfc3339(receipt.released_at)
        ends = from_rfc3339(receipt.lease.not_after)
    except DataInvalid as error:
        raise StatementInvalid("release receipt names no real time", check="receipt") from error
    if ends <= released:
        raise StatementInvalid(
            "release receipt has a lease that ends before it begins",
            check="receipt lease",
            got=receipt.lease.not_after,
            expected=f"after {receipt.released_at}",
        )
    return receipt


def data_of_entry(body: Mapping[str, Any]) -> frozenset[RunDataset]:
    """All data of a run, as the ledger's entry of one of its releases names it.

    Args:
        body: Of an entry ``release``.

    Raises:
        StatementInvalid: It names none, or not in its form.
    """
    try:
        listed = [*body["datasets"], *body["elsewhere"]]
        return frozenset(
            RunDataset(str(dataset["owner_id"]), str(dataset["dataset_id"]), str(dataset["root"]))
            for dataset in listed
        )
    except (KeyError, TypeError) as error:
        raise StatementInvalid(
            "the ledger's entry of a release does not name the data of its run",
            check="ledger entry",
        ) from error


def receipt_digest(envelope: dsse.Envelope) -> str:
    """SHA-256 of the envelope's canonical bytes: what the ledger entry of the receipt names."""
    return sha256_hex(envelope.to_bytes())
