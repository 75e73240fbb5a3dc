"""An owner's policy for guests that read their data, beyond the broker's policy for all.

See ``spec/approvals.md`` §8. A policy touches only runs whose recipe names data of its owner: such
a guest must meet it too, and the lease is no longer than it says. Each continues the one before it,
so an old one cannot be handed in again.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.base.canonical import JsonValue
from sealtrain.base.models import Hex64
from sealtrain.consortium.owner_document import RecordedBefore, RecordedDocument, SignedDocument
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.identity import PublicIdentity

PAYLOAD_TYPE = "application/vnd.sealtrain.owner-policy+json"


class OwnerPolicy(RecordedDocument):
    """The signed document. If both are null, the owner no longer adds any requirement."""

    payload_type = PAYLOAD_TYPE
    what = "policy"
    max_bytes = 512 << 10
    entry_kind = "owner-policy"
    path = "/v1/policies"
    summary = "Set what guests must show that read an owner's data"

    appraisal: AppraisalPolicy | None
    """Claims that guests must show."""
    lease_seconds: Annotated[int, Field(ge=60, le=7 * 24 * 3600)] | None
    """Longest lease."""
    previous: Hex64 | None
    """Digest of the envelope this one continues; ``None`` for an owner's first."""

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
    ) -> Self:
        """Write a policy.

        Args:
            consortium_id: The owner's consortium.
            owner: The owner of the data.
            appraisal: Claims that guests must show; ``None`` for only the broker's policy.
            lease_seconds: Longest lease, 60 to 604800; ``None`` for the broker's.
            previous: Digest of the one in force, ``None`` where there is none.
            signed_at: Now, seconds since the epoch.

        Raises:
            StatementInvalid: The document would break its format.
        """
        own: dict[str, JsonValue] = {
            "appraisal": None if appraisal is None else appraisal.to_dict(),
            "lease_seconds": lease_seconds,
            "previous": previous,
        }
        return cls.write(own, consortium_id=consortium_id, owner=owner, signed_at=signed_at)

    def follow(self, before: RecordedBefore) -> None:
        """Return if it continues the owner's policy in force.

        Raises:
            StatementInvalid: It continues another one.
        """
        in_force = before.newest(self.entry_kind, self.owner)
        if self.previous != in_force:
            raise StatementInvalid(
                "the policy does not continue the policy in force",
                check="previous policy",
                owner=self.owner,
                got=self.previous,
                expected=in_force,
                hint="read the policy in force and sign again: sealtrain policy set",
            )


SignedPolicy = SignedDocument[OwnerPolicy]
