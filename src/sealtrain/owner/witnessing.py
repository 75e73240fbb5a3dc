"""Watch that the ledger of each broker only grows, and cosign it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.base.clock import system_clock
from sealtrain.client.connection import watch_ledger
from sealtrain.client.watch import cosign_newest, find_witnessed_head
from sealtrain.owner.owner_files import AtEach, OwnerFiles, at_each

if TYPE_CHECKING:
    from sealtrain.consortium.members import Consortium
    from sealtrain.ledger.witness import Witnessed
    from sealtrain.signing.tree_head import TreeHead


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLedger:
    """A broker's ledger that extends the one that the owner saw last.

    Attributes:
        head: Its tree head, which the owner cosigned and remembers from now on.
        before: The tree head that the owner remembered; ``None`` for the first one.
        witnessed: The newest tree head that enough owners cosigned.
    """

    head: TreeHead
    before: TreeHead | None
    witnessed: Witnessed

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "size": self.head.size,
            "root": self.head.root,
            "before": None if self.before is None else self.before.size,
            "witnessed": {
                "size": self.witnessed.head.size,
                "by": sorted(self.witnessed.times),
            },
        }


def witness(owner: OwnerFiles, consortium: Consortium, *, quorum: int = 1) -> AtEach[WatchedLedger]:
    """See that the ledger of each broker only grew since last time, and cosign it.

    Args:
        owner: The owner that witnesses, with the brokers to watch.
        consortium: As the owner holds it.
        quorum: So many owners must have cosigned a tree head, at least 1.

    Raises:
        ApprovalUnknown: The owner is not in the consortium.
        LedgerInconsistent: A ledger is shorter than it was, rewritten or forked; both signed tree
            heads are kept beside the owner's memory.
        SealtrainError: No broker answered: the worst failure.
    """
    me = owner.keys
    consortium.owner(me.name)

    def at(broker: Path) -> WatchedLedger:
        with watch_ledger(broker, consortium, owner.identity, owner.state) as watch:
            cosign_newest(
                watch.client, watch.kept, owner=me.name, signer=me.witness, now=system_clock()
            )
            head, before = watch.kept.head, watch.before
            found = find_witnessed_head(watch.client, watch.kept, consortium, quorum=max(1, quorum))
        if head is None:
            raise AssertionError("a watched ledger has a tree head")
        return WatchedLedger(head=head, before=before, witnessed=found)

    return at_each(owner.brokers, at)
