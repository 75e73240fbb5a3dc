"""A guest asks for keys and checks what it gets before it uses any (spec/key-release.md §4, §5).

``obtain`` and ``renew`` check of every answer:

1. the receipt is signed by the attested broker;
2. it is about this request: kind, run, recipe, datasets with their roots, evidence, transcript;
3. the ledger holds it, under the attested key and origin, and names the data of the run;
4. for a release: the answer opens with the key made for this request and holds exactly one key for
   each dataset asked for, and the lease, checkpoint and digest of this very receipt.

The ephemeral key is made from fresh randomness for each request and forgotten afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import from_rfc3339
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.secret import Random, Secret
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.broker_proof import AttestedBroker
from sealtrain.consortium.receipts import (
    Anchor,
    ReleaseReceipt,
    RunDataset,
    data_of_entry,
    receipt_digest,
    verify_receipt,
)
from sealtrain.errors import DataInvalid
from sealtrain.ledger.ledger import LedgerProof, verify_proof
from sealtrain.ledger.rotation import Rotation
from sealtrain.release.errors import AnswerInvalid
from sealtrain.release.messages import (
    RELEASE_PURPOSE,
    RENEWAL_PURPOSE,
    ReleaseAnswer,
    ReleaseRequest,
    RenewalAnswer,
    RenewalRequest,
    SealedKeys,
    answer_info,
    load_message,
    transcript_digest,
)
from sealtrain.sealing.errors import WrongKey
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.sealing.stanza import Stanza
from sealtrain.signing.continues import Continues
from sealtrain.signing.dsse import Envelope

Collect = Callable[[Binding], Evidence]
"""Makes this guest's evidence for 64 bytes of report data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipted:
    """A broker's decision: its signed receipt and the proof that the ledger holds it.

    Attributes:
        rotations: That led to the broker's key from the one that the lock names, oldest first.
    """

    receipt: ReleaseReceipt
    envelope: Envelope
    proof: LedgerProof
    rotations: tuple[Rotation, ...]

    def to_dict(self) -> dict[str, JsonValue]:
        """As the run manifest carries it."""
        return {
            "receipt": self.envelope.to_dict(),
            "proof": self.proof.to_dict(),
            "rotations": [rotation.envelope.to_dict() for rotation in self.rotations],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one broker handed out for a run, and how long it may be used.

    Attributes:
        run_id: 32 hex digits.
        keys: By dataset id what its stanza held: a data key, or this broker's share of one.
        latest_checkpoint: Newest anchored one; a resuming guest refuses anything older.
        lease_key: Shows that a renewal is the lease holder's (``release.lease_code``).
        model_key: Of the model of the run before, where it was asked for.
        receipts: Of the release, and of the newest renewal where there was one: a lease is renewed
            at every checkpoint, and all of them would fill the guest's memory.
    """

    run_id: str
    keys: dict[str, Secret]
    latest_checkpoint: Anchor | None
    lease_key: Secret
    receipts: tuple[Receipted, ...]
    model_key: Secret | None = None

    @property
    def lease_id(self) -> str:
        """The lease, 64 hex digits."""
        return self.receipts[-1].receipt.lease.lease_id

    @property
    def lease_ends(self) -> int:
        """First second at which the keys must not be used any more, by the broker's clock."""
        return from_rfc3339(self.receipts[-1].receipt.lease.not_after)

    @property
    def lease_seconds(self) -> int:
        """From the broker's last decision to the end of the lease, by the broker's own clock."""
        return self.lease_ends - from_rfc3339(self.receipts[-1].receipt.released_at)

    @property
    def simulated(self) -> bool:
        """The broker saw simulated evidence."""
        return self.receipts[-1].receipt.simulated


class AskedKey(NamedTuple):
    """A dataset whose key a guest asks for, and the stanza that wraps it."""

    owner_id: str
    dataset_id: str
    root: str
    stanza: Stanza


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRequest:
    """The keys that a guest asks one broker for.

    Attributes:
        run_id: 32 hex digits; fresh for a new run.
        recipe_hash: SHA-256 of the lock this guest runs.
        datasets: With recipe or share stanzas, 1 to 256, none twice.
        resume: Continue a run this broker released keys to before.
        elsewhere: The data of the run that other brokers are asked for.
        submission_id: Which submission the run is for, 32 hex digits.
        continues: The run whose model's key is asked for too, and the model's stanza.
    """

    run_id: str
    recipe_hash: str
    datasets: Sequence[AskedKey]
    resume: bool
    elsewhere: Sequence[RunDataset] = ()
    submission_id: str | None = None
    continues: tuple[Continues, Stanza] | None = None


def obtain(
    client: BrokerClient,
    broker: AttestedBroker,
    collect: Collect,
    asked: KeyRequest,
    *,
    random: Random = os.urandom,
) -> Grant:
    """Ask for the keys of datasets.

    Args:
        broker: What it proved; its app id and compose hash are those asked for.
        collect: This guest's evidence.
        asked: The keys to ask for, and the run they are for.
        random: Source of the ephemeral key.

    Raises:
        Refused: The broker refused (its class), or the answer fails a check (``AnswerInvalid``,
            ``SignatureInvalid``, ``ProofInvalid``).
        Unreachable: Broker or guest API did not answer.
        DataInvalid: The arguments do not make a request.
    """
    private = HpkePrivateKey(Secret(random(32)))
    challenge = client.challenge(broker.consortium_id, "release").challenge
    transcript: dict[str, JsonValue] = {
        **_conversation(broker, challenge, asked.run_id, asked.recipe_hash),
        "version": 3,
        "submission_id": asked.submission_id,
        "hpke_public_key": to_base64(private.public.raw),
        "datasets": [
            {
                "owner_id": owner_id,
                "dataset_id": dataset_id,
                "root": root,
                "stanza": stanza.to_dict(),
            }
            for owner_id, dataset_id, root, stanza in asked.datasets
        ],
        "elsewhere": [
            {"owner_id": owner_id, "dataset_id": dataset_id, "root": root}
            for owner_id, dataset_id, root in asked.elsewhere
        ],
        "resume": asked.resume,
        **_ask_for_model(asked),
    }
    evidence = collect(Binding(RELEASE_PURPOSE, transcript))
    request = ReleaseRequest.from_dict(transcript | {"evidence": evidence.to_dict()})
    answer = client.release(request)
    receipted = _check_receipt(answer, request, broker)
    keys = _open(answer, request, private)
    _same("receipt", keys.receipt_digest, receipt_digest(receipted.envelope))  # (4)
    _same("lease", keys.lease, receipted.receipt.lease)
    _same("checkpoint", keys.latest_checkpoint, receipted.receipt.checkpoint)
    return Grant(
        run_id=asked.run_id,
        keys={name: Secret(from_base64(text)) for name, text in keys.keys.items()},
        latest_checkpoint=keys.latest_checkpoint,
        lease_key=Secret(from_base64(keys.lease_key, length=32)),
        receipts=(receipted,),
        model_key=None
        if keys.model_key is None
        else Secret(from_base64(keys.model_key, length=32)),
    )


def renew(
    client: BrokerClient,
    broker: AttestedBroker,
    collect: Collect,
    grant: Grant,
    *,
    checkpoint: tuple[int, str] | None = None,
) -> Grant:
    """Ask for a later end of the lease, anchoring a checkpoint on the way.

    Args:
        client: Of the broker that granted it.
        broker: As for ``obtain``.
        collect: This guest's evidence.
        grant: As obtained or renewed last.
        checkpoint: (counter, SHA-256 of the sealed checkpoint), ``None`` to anchor nothing new.

    Returns:
        The same under the renewed lease.

    Raises:
        LeaseStale: Too late; obtain again with ``resume``.
        CheckpointRefused: A newer checkpoint of this run is anchored.
        SealtrainError: As ``obtain``.
    """
    last = grant.receipts[-1].receipt
    challenge = client.challenge(broker.consortium_id, "renewal").challenge
    transcript: dict[str, JsonValue] = {
        **_conversation(broker, challenge, grant.run_id, last.recipe_hash),
        "version": 2,
        "lease_id": grant.lease_id,
        "checkpoint": None
        if checkpoint is None
        else {"counter": checkpoint[0], "digest": checkpoint[1]},
    }
    evidence = collect(Binding(RENEWAL_PURPOSE, transcript))
    request = RenewalRequest.from_dict(transcript | {"evidence": evidence.to_dict()})
    receipted = _check_receipt(client.renew(request, grant.lease_key), request, broker)
    receipt = receipted.receipt
    _same("lease", receipt.lease.lease_id, grant.lease_id)
    if request.checkpoint is not None:
        _same("checkpoint", receipt.checkpoint, request.checkpoint)
    return replace(
        grant, latest_checkpoint=receipt.checkpoint, receipts=(grant.receipts[0], receipted)
    )


def _ask_for_model(asked: KeyRequest) -> dict[str, JsonValue]:
    if asked.continues is None:
        return {}
    place, stanza = asked.continues
    return {"continues": {**place.to_dict(), "stanza": stanza.to_dict()}}


def _conversation(
    broker: AttestedBroker, challenge: str, run_id: str, recipe_hash: str
) -> dict[str, JsonValue]:
    return {
        "broker_id": broker.broker_id,
        "challenge": challenge,
        "run_id": run_id,
        "consortium_id": broker.consortium_id,
        "app_id": broker.app_id,
        "compose_hash": broker.compose_hash,
        "recipe_hash": recipe_hash,
    }


def _check_receipt(
    answer: ReleaseAnswer | RenewalAnswer,
    request: ReleaseRequest | RenewalRequest,
    broker: AttestedBroker,
) -> Receipted:
    envelope = answer.receipt.envelope()
    receipt = verify_receipt(envelope, broker.signing_key)  # (1)
    asked = request.datasets if isinstance(request, ReleaseRequest) else ()
    releasing = isinstance(request, ReleaseRequest)
    _same("run", answer.run_id, request.run_id)  # (2)
    _same("kind", receipt.kind, "release" if releasing else "renewal")
    _same("run", receipt.run_id, request.run_id)
    _same("resume", receipt.resume, isinstance(request, ReleaseRequest) and request.resume)
    _same("consortium", receipt.consortium_id, request.consortium_id)
    _same("app id", receipt.app_id, request.app_id)
    _same("compose hash", receipt.compose_hash, request.compose_hash)
    _same("recipe hash", receipt.recipe_hash, request.recipe_hash)
    _same("evidence", receipt.evidence_digest, request.evidence.digest)
    _same("transcript", receipt.transcript_digest, transcript_digest(request.transcript()))
    _same(
        "datasets",
        [(dataset.owner_id, dataset.dataset_id, dataset.root) for dataset in receipt.datasets],
        [(dataset.owner_id, dataset.dataset_id, dataset.root) for dataset in asked],
    )
    named = request.continues if isinstance(request, ReleaseRequest) else None
    _same("run before", receipt.continues, None if named is None else named.place)
    proof = LedgerProof.from_dict(answer.proof)  # (3)
    entry = verify_proof(proof, broker.signing_key, origin=broker.origin)
    body = entry["body"] if isinstance(entry["body"], dict) else {}
    recorded = entry["kind"], body.get("receipt_digest")
    _same("ledger entry", recorded, (receipt.kind, receipt_digest(envelope)))
    if isinstance(request, ReleaseRequest):
        _same("ledger entry's data", data_of_entry(body), request.data)
        _same("ledger entry's submission", body.get("submission_id"), request.submission_id)
    return Receipted(receipt=receipt, envelope=envelope, proof=proof, rotations=broker.since_named)


def _open(answer: ReleaseAnswer, request: ReleaseRequest, private: HpkePrivateKey) -> SealedKeys:
    try:
        plain = private.open(
            from_base64(answer.enc), info=answer_info(transcript_digest(request.transcript()))
        )
    except (WrongKey, DataInvalid) as error:
        raise AnswerInvalid(
            "the answer does not open with the key made for this request",
            check="answer",
            hint="it was made for another request or altered on the way",
        ) from error
    try:
        keys = load_message(SealedKeys, plain.reveal(), error=AnswerInvalid)
    except DataInvalid:
        # Never chained: the parser's message must not carry what it could not parse.
        raise AnswerInvalid("the answer is not what the protocol says", check="answer") from None
    _same("keys", sorted(keys.keys), sorted(dataset.dataset_id for dataset in request.datasets))
    _same("model key", keys.model_key is not None, request.continues is not None)
    return keys


def _same(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise AnswerInvalid(
            f"the broker's answer is about another {what}",
            check=what,
            got=got,
            expected=expected,
            hint="retry over another network path: the answer is to another request",
        )
