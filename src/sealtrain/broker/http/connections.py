"""A broker's connections: the stage of each, and which gives way to a new one.

A connection counts for the address group that holds it until its request proves to be an owner's or
a lease holder's; then it has a slot of its own, which no other caller can take. When the others
fill the table, one of the address group that holds most gives way:

1. a connection whose request's head is unfinished, the oldest first;
2. else a connection that is idle between two requests;
3. else a connection whose body is unfinished, or whose caller does not read the answer.

A connection that waits for its answer is not cut: the lanes bound their number. The same order
holds for the memory of unfinished bodies. Only the event loop's thread uses this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import IntEnum

from sealtrain.broker.config import BrokerLimits
from sealtrain.broker.service.throttle import address_group
from sealtrain.errors import TooManyRequests

__all__ = ["Connection", "Connections", "Stage"]


class Stage(IntEnum):
    """How far a connection's request has come, in the order in which connections give way."""

    HEAD = 0
    IDLE = 1
    BODY = 2
    UNREAD = 3
    WORK = 4


class Connection:
    """One connection.

    Attributes:
        group: Addresses that count together.
        stage: How far its request has come.
    """

    __slots__ = ("_cut", "_table", "caller", "group", "held", "number", "stage")

    def __init__(
        self, table: Connections, group: str, number: int, cut: Callable[[], object]
    ) -> None:
        self._table = table
        self._cut = cut
        self.group = group
        self.number = number
        self.stage = Stage.HEAD
        self.caller: str | None = None
        """The authenticated owner or lease of its request; ``None`` until authenticated."""
        self.held = 0
        """Bytes of its request's body in memory."""

    def admit(self, caller: str) -> None:
        """Give it a slot of its own, protected from other callers, if the caller has one left."""
        self._table.admit(self, caller)

    def hold(self, size: int) -> None:
        """Account for bytes of a body that are in memory.

        Raises:
            TooManyRequests: Bodies fill their share of memory, and no connection gives way.
        """
        self._table.hold(self, size)

    def finished(self) -> None:
        """Its request was answered: the next request on it is unauthenticated again."""
        self.held, self.caller = 0, None

    def cut(self) -> None:
        """End it."""
        self._cut()


class Connections:
    """The connections of one server.

    Args:
        limits: How many there may be.
        exempt: Addresses that speak for many, such as reverse proxies.
    """

    def __init__(self, limits: BrokerLimits, exempt: Iterable[str] = ()) -> None:
        self._limits = limits
        self._exempt = frozenset(address_group(one) for one in exempt)
        self._open: dict[int, Connection] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, address: str, cut: Callable[[], object]) -> Connection | None:
        """Accept a new connection, cutting another if the table is full.

        Args:
            address: Of the peer.
            cut: Ends the connection.

        Returns:
            The connection; ``None`` where there is no room for it.
        """
        group = address_group(address)
        strangers = [one for one in self._open.values() if one.caller is None]
        mine = [stranger for stranger in strangers if stranger.group == group]
        crowded = group not in self._exempt and (len(mine) >= self._limits.connections_per_address)
        full = len(strangers) >= self._limits.connections
        if (crowded and not self._evict(mine)) or (
            not crowded and full and not self._evict(strangers)
        ):
            return None
        self._number += 1
        made = Connection(self, group, self._number, cut)
        self._open[made.number] = made
        return made

    def close(self, connection: Connection) -> None:
        """Forget a connection that ended."""
        self._open.pop(connection.number, None)

    def admit(self, connection: Connection, caller: str) -> None:
        """As ``Connection.admit``."""
        held = sum(one.caller == caller for one in self._open.values())
        if held < self._limits.connections_per_caller:
            connection.caller = caller

    def hold(self, connection: Connection, size: int) -> None:
        """As ``Connection.hold``."""
        connection.held = size
        while connection.caller is None:
            strangers = [one for one in self._open.values() if one.caller is None]
            if sum(stranger.held for stranger in strangers) <= self._limits.body_bytes:
                return
            slow = [
                stranger
                for stranger in strangers
                if stranger.held and stranger.stage is Stage.BODY and stranger is not connection
            ]
            if not self._evict(slow):
                connection.held = 0
                raise TooManyRequests(
                    "the broker holds too many unfinished requests",
                    check="rate",
                    hint="ask again in a moment",
                )

    def _evict(self, among: list[Connection]) -> bool:
        """Cut the connection that gives way; return whether there was any."""
        idle = [one for one in among if one.stage is not Stage.WORK]
        if not idle:
            return False
        # A proxy speaks for many callers and weighs as one of them.
        weights = Counter(one.group for one in among)
        victim = min(
            idle,
            key=lambda one: (
                -1 if one.group in self._exempt else -weights[one.group],
                one.stage,
                one.number,
            ),
        )
        self.close(victim)
        victim.cut()
        return True
