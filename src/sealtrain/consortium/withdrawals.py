"""An owner's permanent withdrawal of datasets. See ``spec/approvals.md`` §6.

A withdrawal is canonical JSON in a DSSE envelope under ``PAYLOAD_TYPE``; ``consortium.owned``
checks it. It is never refused for its date: a wrong clock must not keep an owner from withdrawing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import Field, model_validator

from sealtrain.base.canonical import JsonValue
from sealtrain.base.models import Hex32
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.consortium.owner_document import RecordedBefore, RecordedDocument
from sealtrain.signing.identity import PublicIdentity

PAYLOAD_TYPE = "application/vnd.sealtrain.withdrawal+json"
MAX_WITHDRAWN = 1024


class Withdrawal(RecordedDocument):
    """The signed document."""

    payload_type = PAYLOAD_TYPE
    what = "withdrawal"
    max_bytes = 128 << 10
    entry_kind = "withdrawal"
    path = "/v1/withdrawals"
    summary = "Withdraw datasets for good"

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
            owner: The owner of the datasets.
            signed_at: Now, seconds since the epoch.

        Raises:
            StatementInvalid: The document would break its format.
        """
        own: dict[str, JsonValue] = {"datasets": sorted(set(datasets))}
        return cls.write(own, consortium_id=consortium_id, owner=owner, signed_at=signed_at)

    def ledger_fields(self) -> dict[str, JsonValue]:
        """As ``RecordedDocument.ledger_fields``."""
        return {"datasets": list(self.datasets)}

    def subjects(self) -> tuple[str, ...]:
        """Ids of the datasets."""
        return self.datasets

    def follow(self, before: RecordedBefore) -> None:
        """Return if all ids are of datasets that this owner registered, or that no owner did.

        Of another owner's dataset the withdrawal would say nothing, which its signer should hear.

        Raises:
            DatasetMismatch: Only other owners registered one of them.
        """
        for dataset_id in self.datasets:
            owners = dict(before.owners_of(dataset_id))
            if owners and self.owner_id not in owners.values():
                raise DatasetMismatch(
                    "another owner registered this dataset id",
                    check="dataset owner",
                    owner=self.owner,
                    got=self.owner,
                    expected=sorted(owners)[0],
                    hint="seal your own data: sealing makes a new random dataset id",
                )
