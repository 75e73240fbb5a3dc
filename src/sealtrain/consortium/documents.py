"""The table of documents that owners sign about their own data and brokers record.

One line makes a broker accept a kind at its path, record it in ledger and database, and find it
again by owner and by subject; and an audit judge it. The rules of a kind are in its own module.
"""

from __future__ import annotations

from collections.abc import Mapping
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
