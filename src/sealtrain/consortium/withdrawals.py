"""What an owner signs to take datasets back for good. See ``spec/approvals.md`` §6.

A withdrawal is canonical JSON in a DSSE envelope under ``PAYLOAD_TYPE``; ``consortium.owned``
checks it. It is never refused for its date: a wrong clock must not keep an owner from withdrawing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.models import Hex32
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.owned import OwnedDocument, verify_owned
from sealtrain.records import dsse
from sealtrain.records.identity import PublicIdentity

__all__ = [
    "MAX_WITHDRAWN",
    "PAYLOAD_TYPE",
    "SignedWithdrawal",
    "Withdrawal",
    "sign_withdrawal",
    "verify_withdrawal",
]

PAYLOAD_TYPE = "application/vnd.sealtrain.withdrawal+json"
MAX_WITHDRAWN = 1024
_MAX_BYTES = 128 << 10


class Withdrawal(OwnedDocument):
    """The signed document."""

    datasets: tuple[Hex32, ...] = Field(min_length=1, max_length=MAX_WITHDRAWN)
    """Ids of the datasets, in order, none twice."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if list(self.datasets) != sorted(set(self.datasets)):
            raise ValueError("datasets must stand in the order of their ids, none twice")
        return self

    @classmethod
    def of(
        cls, datasets: Iterable[str], *, consortium_id: str, owner: PublicIdentity, signed_at: int
    ) -> Self:
        """Write a withdrawal.

        Args:
            datasets: Ids, in any order.
            consortium_id: The owner's consortium.
            owner: Whose datasets they are.
            signed_at: Now, seconds since the epoch.

        Raises:
            StatementInvalid: The document would break its format.
        """
        own: dict[str, JsonValue] = {"datasets": sorted(set(datasets))}
        return cls.write(own, consortium_id=consortium_id, owner=owner, signed_at=signed_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedWithdrawal:
    """A withdrawal whose signature was verified, and who signed it."""

    owner: PublicIdentity
    withdrawal: Withdrawal
    envelope: dsse.Envelope
    digest: str
    """SHA-256 of the envelope's bytes, 64 hex digits."""

    @property
    def entry(self) -> dict[str, JsonValue]:
        """Body of the ledger's entry about it."""
        return {
            "owner": self.owner.name,
            "datasets": list(self.withdrawal.datasets),
            "digest": self.digest,
            "envelope": self.envelope.to_dict(),
        }


def sign_withdrawal(withdrawal: Withdrawal, signer: dsse.Ed25519Signer) -> dsse.Envelope:
    """Envelope of ``withdrawal`` under the owner's signing key."""
    return dsse.sign(canonical_json(withdrawal.to_dict()), PAYLOAD_TYPE, signer)


def verify_withdrawal(envelope: dsse.Envelope, consortium: Consortium) -> SignedWithdrawal:
    """Return what an owner of ``consortium`` withdrew. Arguments and errors as ``verify_owned``."""
    owner, withdrawal = verify_owned(
        Withdrawal,
        envelope,
        consortium,
        payload_type=PAYLOAD_TYPE,
        what="withdrawal",
        max_bytes=_MAX_BYTES,
    )
    return SignedWithdrawal(
        owner=owner, withdrawal=withdrawal, envelope=envelope, digest=envelope.digest
    )
