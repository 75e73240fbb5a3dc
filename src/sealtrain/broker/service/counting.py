"""Count stored decisions: this process verifies each one again once, by its digest."""

from __future__ import annotations

from sealtrain.base.digests import sha256_hex
from sealtrain.broker.config import BrokerLimits
from sealtrain.broker.store.transaction import Transaction
from sealtrain.consortium.approvals import SignedDecision, Tally, Target, tally, verify_decision
from sealtrain.consortium.members import Consortium
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.needs import Needs

__all__ = ["Counting"]


class Counting:
    """Tallies of one consortium. Remembers which bytes it verified, by their digest."""

    def __init__(self, consortium: Consortium, limits: BrokerLimits) -> None:
        self._consortium = consortium
        self._limit = limits.decisions
        self._verified: dict[str, SignedDecision] = {}

    def tally(self, transaction: Transaction, target: Target, now: int, *, needs: Needs) -> Tally:
        """Where the approval of ``target`` stands.

        Args:
            transaction: Reads the decisions to count.
            target: The recipe in question.
            now: The broker's time, seconds since the epoch.
            needs: Of the recipe, as the guest measured it.

        Raises:
            Refused: The database holds a decision that does not verify: it was altered from
                outside.
            LimitExceeded: It holds more decisions than the broker's cap.
        """
        return tally(self.decisions(transaction), self._consortium, target, now, needs=needs)

    def decisions(self, transaction: Transaction) -> list[SignedDecision]:
        """Every decision of the consortium, verified, in the order of the ledger.

        Raises:
            Refused: As ``tally``.
            LimitExceeded: As ``tally``.
        """
        return [self._decision(data) for data in transaction.decisions(limit=self._limit)]

    def _decision(self, data: bytes) -> SignedDecision:
        digest = sha256_hex(data)
        known = self._verified.get(digest)
        if known is None:
            known = verify_decision(Envelope.from_bytes(data), self._consortium)
            if len(self._verified) < self._limit:
                self._verified[digest] = known
        return known
