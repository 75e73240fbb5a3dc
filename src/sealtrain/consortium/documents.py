"""The tables of documents that owners sign and hand in, and brokers record.

One line of ``DOCUMENTS`` makes a broker accept a kind at its path, record it in ledger and
database, and find it again by owner and by subject; and an audit judge it. The rules of a kind are
in its own module. Decisions, dataset manifests and successions are handed in as they are, but have
rules and tables of their own (decision 0107).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sealtrain.consortium.owner_document import RecordedDocument
from sealtrain.consortium.policies import OwnerPolicy
from sealtrain.consortium.withdrawals import Withdrawal

DOCUMENTS: Final[Mapping[str, type[RecordedDocument]]] = {
    kind.entry_kind: kind
    for kind in (
        Withdrawal,
        OwnerPolicy,
    )
}
"""By the kind of its ledger entry."""


@dataclass(frozen=True, slots=True)
class HandedIn:
    """How owners hand in documents of one kind.

    Attributes:
        path: Of a broker's API.
        summary: What it does, for the API's description.
    """

    path: str
    summary: str


def list_handed_in() -> dict[str, HandedIn]:
    """All that owners hand in, by the kind of its ledger entry; a revocation as an approval."""
    return {
        "approval": HandedIn("/v1/approvals", "Submit an approval or revocation"),
        "dataset": HandedIn("/v1/datasets", "Register a dataset"),
        **{kind: HandedIn(row.path, row.summary) for kind, row in DOCUMENTS.items()},
        "succession": HandedIn(
            "/v1/successions", "End this consortium: its owners put another one in its place"
        ),
    }
