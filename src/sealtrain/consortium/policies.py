"""What an owner asks of guests that read their data, beyond what the broker asks of all.

See ``spec/approvals.md`` §8. A policy touches only runs whose recipe names data of its owner: such
a guest must meet it too, and the lease is no longer than it says. Each continues the one before it,
so an old one cannot be handed in again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.models import Hex32, Hex64, Timestamp, load_model
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.owned import OwnedDocument, verify_owned
from sealtrain.errors import DataInvalid, StatementInvalid
from sealtrain.records import dsse
from sealtrain.records.identity import PublicIdentity

__all__ = [
    "ENTRY_KIND",
    "PAYLOAD_TYPE",
    "OwnerPolicy",
    "SignedPolicy",
    "continues",
    "sign_policy",
    "verify_policy",
]

PAYLOAD_TYPE = "application/vnd.sealtrain.owner-policy+json"
ENTRY_KIND = "owner-policy"
_MAX_BYTES = 512 << 10


class OwnerPolicy(OwnedDocument):
    """The signed document. Both null: the owner asks for nothing of their own any more."""

    version: Literal[1]
    appraisal: AppraisalPolicy | None
    """What guests must show."""
    lease_seconds: Annotated[int, Field(ge=60, le=7 * 24 * 3600)] | None
    """Longest lease."""
    previous: Hex64 | None
    """Digest of the envelope this one continues; ``None`` for an owner's first."""
    nonce: Hex32
    signed_at: Timestamp

    @model_validator(mode="after")
    def _real_time(self) -> Self:
        try:
            from_rfc3339(self.signed_at)
        except DataInvalid as error:
            raise ValueError("signed_at names no real time") from error
        return self

    @classmethod
    def of(
        cls,
        *,
        consortium_id: str,
        owner: PublicIdentity,
        appraisal: AppraisalPolicy | None,
        lease_seconds: int | None,
        previous: str | None,
        signed_at: int,
        random: Callable[[int], bytes] = os.urandom,
    ) -> Self:
        """Write a policy.

        Args:
            consortium_id: The owner's consortium.
            owner: Whose data it is about.
            appraisal: What guests must show, ``None`` for what the broker asks of all.
            lease_seconds: Longest lease, 60 to 604800; ``None`` for the broker's.
            previous: Digest of the one in force, ``None`` where there is none.
            signed_at: Now, seconds since the epoch.
            random: Source of the nonce.

        Raises:
            StatementInvalid: The document would break its format.
        """
        document: dict[str, JsonValue] = {
            "version": 1,
            "consortium_id": consortium_id,
            "owner": owner.name,
            "owner_id": owner.owner_id,
            "appraisal": None if appraisal is None else appraisal.to_dict(),
            "lease_seconds": lease_seconds,
            "previous": previous,
            "nonce": random(16).hex(),
            "signed_at": to_rfc3339(signed_at),
        }
        return load_model(cls, document, StatementInvalid, "policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedPolicy:
    """A policy whose signature was verified, and who signed it."""

    owner: PublicIdentity
    policy: OwnerPolicy
    envelope: dsse.Envelope
    digest: str
    """SHA-256 of the envelope's bytes, 64 hex digits."""

    @property
    def entry(self) -> dict[str, JsonValue]:
        """Body of the ledger's entry about it."""
        return {
            "owner": self.owner.name,
            "digest": self.digest,
            "envelope": self.envelope.to_dict(),
        }


def sign_policy(policy: OwnerPolicy, signer: dsse.Ed25519Signer) -> dsse.Envelope:
    """Envelope of ``policy`` under the owner's signing key."""
    return dsse.sign(canonical_json(policy.to_dict()), PAYLOAD_TYPE, signer)


def verify_policy(envelope: dsse.Envelope, consortium: Consortium) -> SignedPolicy:
    """Return what an owner of ``consortium`` asks. Arguments and errors as ``verify_owned``."""
    owner, policy = verify_owned(
        OwnerPolicy,
        envelope,
        consortium,
        payload_type=PAYLOAD_TYPE,
        what="policy",
        max_bytes=_MAX_BYTES,
    )
    return SignedPolicy(owner=owner, policy=policy, envelope=envelope, digest=envelope.digest)


def continues(signed: SignedPolicy, before: str | None) -> SignedPolicy:
    """Return a policy that continues the one in force.

    Args:
        signed: As received.
        before: Digest of the owner's policy in force, ``None`` where there is none.

    Raises:
        StatementInvalid: It continues another one.
    """
    if signed.policy.previous != before:
        raise StatementInvalid(
            "the policy does not continue the one in force",
            check="previous policy",
            owner=signed.owner.name,
            got=signed.policy.previous,
            expected=before,
            hint="read the one in force and sign again: sealtrain policy set",
        )
    return signed
