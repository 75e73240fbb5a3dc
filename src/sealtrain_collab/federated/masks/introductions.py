"""Who the other parties of a masked sum are, without the lead's word (spec/masked-sums.md §3).

A broker of the lock that released a party's data keys signed a receipt. It names the run, the
party's own run id, the owner of the data and the digest of what the guest asked, and in that lies a
public key of the guest. So what is sealed to this key opens only in the guest that holds this
owner's data, whatever the lead says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sealtrain.base.canonical import canonical_json, parse_canonical
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.client.grant import Grant
from sealtrain.consortium.receipts import verify_receipt
from sealtrain.errors import DataInvalid, MasksRefused, SealtrainError
from sealtrain.ledger.rotation import read_rotation, rotation_entry
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.signing import dsse
from sealtrain.signing.identity import broker_id
from sealtrain.signing.parties import party_run_id
from sealtrain_collab.federated.masks.messages import Introduction

__all__ = ["Facts", "introduce", "members_digest", "peer_key"]

_MAX_TRANSCRIPT_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a party knows by itself of the run it takes part in.

    Attributes:
        run_id: Of the whole run.
        consortium_id: Of the lock.
        app_id: Of the deployment that this guest measured.
        compose_hash: Of its document.
        recipe_hash: Of the lock.
        brokers: Ids that the lock names.
        origin: Of the brokers' ledgers.
        owners: Owner ids of those who may take part, by name.
        simulated: Whether this guest's own evidence is simulated.
    """

    run_id: str
    consortium_id: str
    app_id: str
    compose_hash: str
    recipe_hash: str
    brokers: Collection[str]
    origin: str
    owners: Mapping[str, str]
    simulated: bool


def introduce(party: str, grant: Grant) -> Introduction:
    """A party's introduction.

    Args:
        party: Its owner's name.
        grant: What a broker granted, with its receipt and what was asked.
    """
    released = grant.receipts[0]
    return Introduction(
        party=party,
        broker_key=to_base64(released.signing_key),
        rotations=tuple(one.envelope.to_dict() for one in released.rotations),
        receipt=released.envelope.to_dict(),
        transcript=to_base64(grant.transcript),
    )


def members_digest(members: Sequence[Introduction]) -> str:
    """Digest of all introductions of an attempt, 64 hex digits."""
    return sha256_hex(canonical_json([one.to_dict() for one in members]))


def peer_key(introduction: Introduction, facts: Facts) -> HpkePublicKey:
    """The key of the guest that holds the data of the introduced party.

    Raises:
        MasksRefused: The introduction is not of a party of this run, not by a broker of the
            lock, or not about this key.
    """
    party = introduction.party
    try:
        return _peer_key(introduction, facts)
    except MasksRefused:
        raise
    except SealtrainError as error:  # what the lead brings may be anything
        raise _refused(party, error.check or "receipt", error.code) from error


def _peer_key(introduction: Introduction, facts: Facts) -> HpkePublicKey:
    party = introduction.party
    if party not in facts.owners:
        raise _refused(party, "party", "not of this run")
    key = from_base64(introduction.broker_key, length=32)
    ids = _ids(introduction, key, facts.origin)
    if not set(ids) & set(facts.brokers):
        raise _refused(party, "broker", ids[0])
    receipt = verify_receipt(dsse.Envelope.from_dict(introduction.receipt), key)
    expected = {
        "kind": (receipt.kind, "release"),
        "run": (receipt.run_id, party_run_id(facts.run_id, party)),
        "consortium": (receipt.consortium_id, facts.consortium_id),
        "app id": (receipt.app_id, facts.app_id),
        "compose hash": (receipt.compose_hash, facts.compose_hash),
        "recipe hash": (receipt.recipe_hash, facts.recipe_hash),
        "owner": ({one.owner_id for one in receipt.datasets}, {facts.owners[party]}),
        "simulated": (receipt.simulated, facts.simulated),
    }
    for what, (got, wanted) in expected.items():
        if got != wanted:
            raise _refused(party, what, str(got))
    asked = from_base64(introduction.transcript)
    if sha256_hex(asked) != receipt.transcript_digest:
        raise _refused(party, "transcript", sha256_hex(asked))
    transcript = parse_canonical(asked, max_bytes=_MAX_TRANSCRIPT_BYTES)
    public = transcript.get("hpke_public_key") if isinstance(transcript, dict) else None
    if not isinstance(public, str):
        raise _refused(party, "transcript", "no key")
    return HpkePublicKey(from_base64(public))


def _ids(introduction: Introduction, key: bytes, origin: str) -> list[str]:
    """Of the key that signed, and of those that it was rotated from."""
    keys = [key]
    for envelope in reversed(introduction.rotations):
        rotation = read_rotation(rotation_entry(dsse.Envelope.from_dict(envelope)), origin=origin)
        if rotation.new != keys[-1]:
            raise DataInvalid("a rotation leads to another key", check="rotations")
        keys.append(rotation.old)
    return [broker_id(one) for one in keys]


def _refused(party: str, check: str, got: str) -> MasksRefused:
    return MasksRefused(
        "a party of the masked sum is not introduced by a broker of the lock",
        owner=party,
        check=f"introduction {check}",
        got=got[:200],
        hint="the lead brought another party's introduction, an older one, or its own",
    )
