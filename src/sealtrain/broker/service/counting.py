"""Count what is stored: decisions, and the privacy that runs reserved.

This process verifies each decision again once, by its digest. Reservations are counted from the
ledger each time: a sum kept in the database could be set back with an old copy of its file. The
database remembers at which places of the ledger reservations stand, so that setting back the ledger
alone is detected here, and setting back both by the holder of a checkpoint or receipt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from sealtrain.base.digests import sha256_hex
from sealtrain.broker.config import BrokerLimits
from sealtrain.broker.store.transaction import Transaction
from sealtrain.consortium.approvals import ApprovalTally, SignedDecision, tally, verify_decision
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.standing_approval import Begun, Spent, Use, use_of
from sealtrain.errors import LedgerInconsistent
from sealtrain.ledger.ledger import MAX_PAGE, Ledger
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.needs import Needs
from sealtrain.signing.target import Target


class Counting:
    """Tallies of one consortium. Remembers which bytes it verified, by their digest."""

    def __init__(self, consortium: Consortium, limits: BrokerLimits) -> None:
        self._consortium = consortium
        self._limit = limits.decisions
        self._verified: dict[str, SignedDecision] = {}

    def tally(
        self,
        transaction: Transaction,
        target: Target,
        now: int,
        *,
        needs: Needs,
        spent: Mapping[str, Spent] = MappingProxyType({}),
    ) -> ApprovalTally:
        """Where the approval of ``target`` stands.

        Args:
            transaction: Reads the decisions to count.
            target: The recipe in question.
            now: The broker's time, seconds since the epoch.
            needs: Of the recipe, as the guest measured it.
            spent: Of a run that would begin: standing approvals that let none begin.

        Raises:
            Refused: The database holds a decision that does not verify: it was altered from
                outside.
            LimitExceeded: It holds more decisions than the broker's cap.
        """
        return tally(
            self.decisions(transaction),
            self._consortium,
            target,
            now,
            needs=needs,
            spent=spent,
        )

    def uses(
        self, transaction: Transaction, target: Target, reserved: Iterable[Begun]
    ) -> dict[str, tuple[SignedDecision, Use]]:
        """Standing approvals of a target, each with what runs took of it, by digest.

        Args:
            transaction: Reads the decisions and the runs.
            target: The recipe in question.
            reserved: Runs that reserved privacy, as the ledger states them.
        """
        found: dict[str, tuple[SignedDecision, Use]] = {}
        private = tuple(reserved)
        for data, place in transaction.recorded_decisions(limit=self._limit):
            signed = self._decision(data)
            if signed.decision.standing is None or signed.decision.target != target:
                continue
            begun = transaction.find_run_starts(**target.to_dict(), after=place)
            used = replace(use_of(signed, place, private), runs=len(begun))
            found[signed.digest] = signed, used
        return found

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The privacy that runs reserved, counted from the ledger.

    Attributes:
        spent: Sum of epsilon by (owner, dataset name), over all runs.
        runs: Each run that reserved some.
    """

    spent: Mapping[tuple[str, str], float] = field(default_factory=dict)
    runs: tuple[Begun, ...] = ()


def sum_reserved(ledger: Ledger, reserved: Mapping[int, str]) -> Reserved:
    """Privacy reserved by all runs.

    Args:
        ledger: The broker's.
        reserved: Index of every ledger entry that holds a reservation → run id, as the database
            remembers them; the ledger may hold more.

    Raises:
        LedgerInconsistent: A reservation is missing from the ledger.
    """
    total: Counter[tuple[str, str]] = Counter()
    runs: list[Begun] = []
    missing = dict(reserved)
    for index, entry in _entries(ledger):
        body = entry["body"]
        found = body.get("privacy") if entry["kind"] == "release" else None
        if not found:
            continue
        if missing.get(index) == body["run_id"]:
            del missing[index]
        for reserve in found:
            total[reserve["owner"], reserve["name"]] += reserve["epsilon"]
        runs.append(_read_begun(index, body))
    if missing:
        raise LedgerInconsistent(
            "the ledger has lost reservations of privacy that this broker made",
            check="privacy budget",
            got=f"{len(missing)} of {len(reserved)} missing",
            hint="the ledger file was set back: restore the newest copy",
        )
    return Reserved(spent=dict(total), runs=tuple(runs))


def reserving(ledger: Ledger, places: Iterable[int]) -> tuple[Begun, ...]:
    """The runs whose reservations stand at some places of the ledger; reads nothing else of it."""
    found = ((place, ledger.entries(place, 1)) for place in sorted(places))
    return tuple(_read_begun(place, entries[0]["body"]) for place, entries in found if entries)


def _read_begun(index: int, body: Mapping[str, Any]) -> Begun:
    """A run, by the entry of its first release."""
    return Begun(
        index=index,
        target=Target(
            app_id=body["app_id"],
            compose_hash=body["compose_hash"],
            recipe_hash=body["recipe_hash"],
        ),
        reserved=tuple(
            (reserve["owner"], reserve["name"], reserve["epsilon"])
            for reserve in body.get("privacy") or ()
        ),
    )


def _entries(ledger: Ledger) -> Iterator[tuple[int, dict[str, Any]]]:
    start = 0
    while page := ledger.entries(start, MAX_PAGE):
        yield from enumerate(page, start)
        start += len(page)
