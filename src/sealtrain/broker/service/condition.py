"""A broker's health: whether all it needs to decide works, and how much it holds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from sealtrain.broker.service.parts import BrokerParts
from sealtrain.errors import Refused, Unreachable


class Condition:
    """The health of one broker. Thread-safe."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._size = parts.ledger.size

    def require(self) -> None:
        """Return if the broker can decide now.

        Raises:
            Unreachable: A database, the disk, the collateral or the chain cannot be used.
        """
        for look in self._list_checks().values():
            look()

    def failing(self) -> dict[str, str]:
        """Everything the broker needs to decide and that fails now: name → the error found."""
        found: dict[str, str] = {}
        for name, look in self._list_checks().items():
            try:
                look()
            except (Unreachable, Refused) as error:
                found[name] = error.got or error.message
        return found

    def sizes(self) -> dict[str, tuple[str, int]]:
        """Sizes of its databases: name → description and number; only those that can be read."""
        found: dict[str, tuple[str, int]] = {}
        with suppress(Unreachable, Refused):
            found["ledger_entries"] = ("Entries of the ledger.", self._measure())
        with suppress(Unreachable):
            challenges, leases, decisions = self._count()
            found["leases"] = ("Leases that are live.", leases)
            found["challenges_used"] = ("Used challenges that are remembered.", challenges)
            found["decisions"] = ("Decisions of owners.", decisions)
        return found

    @property
    def ledger_size(self) -> int:
        """Entries of the ledger, or the last number read."""
        with suppress(Unreachable, Refused):
            self._measure()
        return self._size

    def _list_checks(self) -> dict[str, Callable[[], object]]:
        chain = {} if self._parts.chain is None else {"chain": self._parts.chain.ready}
        return {
            "database": self._count,
            "ledger": self._measure,
            **self._parts.surroundings,
            **chain,
        }

    def _measure(self) -> int:
        self._size = self._parts.ledger.size
        return self._size

    def _count(self) -> tuple[int, int, int]:
        with self._parts.store.reading() as transaction:
            return transaction.counts(self._parts.clock())
