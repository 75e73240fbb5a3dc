"""A server's connections: how many, the stage of each, and which gives way to a new one.

Every server of this package counts its callers here: brokers, small HTTP servers (``base.wsgi``),
the ports of parties (``channel.ports``), at which nodes of a run meet too, and
ranks of several nodes that meet.

A connection counts for the address group that holds it until its caller proves to be one that the
server knows, such as an owner or a lease holder; then it has a slot of its own, which no other
caller can take. When the others fill the table, one of the address group that holds most gives way:

1. a connection whose caller has proven nothing, or whose request's head is unfinished, the oldest
   first;
2. else a connection that is idle between two requests;
3. else a connection whose body is unfinished, or whose caller does not read the answer;
4. else a connection that is served without proof, where its group still holds more than the new
   one's would.

A connection that waits for its answer is not cut. For the memory of unfinished bodies a connection
of the group that holds most bytes gives way. Thread-safe.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address, ip_network
from typing import Protocol

from sealtrain.errors import TooManyRequests


class ConnectionStage(IntEnum):
    """How far a connection's request has come, in the order in which connections give way."""

    HEAD = 0
    IDLE = 1
    BODY = 2
    UNREAD = 3
    SERVED = 4
    WORK = 5


_ENDED = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK})
_UNFINISHED = (ConnectionStage.BODY, ConnectionStage.SERVED)


class ConnectionCaps(Protocol):
    """What a server takes. ``Caps`` and a broker's limits have it."""

    @property
    def connections(self) -> int:
        """Open connections of callers that have proven nothing."""

    @property
    def connections_per_address(self) -> int:
        """Of these, of one address group."""

    @property
    def connections_per_caller(self) -> int:
        """Open connections of one proven caller, beside the others."""

    @property
    def body_bytes(self) -> int:
        """Memory for what unproven callers have sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """See ``ConnectionCaps``."""

    connections: int
    connections_per_address: int
    connections_per_caller: int = 0
    body_bytes: int


def address_group(address: str) -> str:
    """The addresses that count as one caller: an IPv4 address, even if mapped; a /64 of IPv6.

    Args:
        address: Of a socket; anything else is of one group.
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return "unknown"  # not a socket of the internet
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed.packed[:8] + bytes(8), 64)))


def listener_ended(failure: OSError) -> bool:
    """Whether an ``accept`` failed because its listener is closed, so that no other will succeed.

    It fails for a caller that went away, or where connections take all descriptors or memory, too:
    a server goes on listening then, a moment later.
    """
    return failure.errno in _ENDED


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
        self.stage = ConnectionStage.HEAD
        self.caller: str | None = None
        """Who its caller proved to be, such as an owner or the holder of a lease; or ``None``."""
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

    def finish_request(self) -> None:
        """Its request was answered: the next request on it is unauthenticated again."""
        self.held, self.caller = 0, None

    def cut(self) -> None:
        """End it."""
        self._cut()


class Connections:
    """The connections of one server.

    Args:
        caps: How many there may be.
        exempt: Addresses that speak for many, such as reverse proxies.
    """

    def __init__(self, caps: ConnectionCaps, exempt: Iterable[str] = ()) -> None:
        self._caps = caps
        self._lock = threading.RLock()
        self._exempt = frozenset(address_group(address) for address in exempt)
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
        with self._lock:
            return self._open_connection(address_group(address), cut)

    def _open_connection(self, group: str, cut: Callable[[], object]) -> Connection | None:
        strangers = [connection for connection in self._open.values() if connection.caller is None]
        mine = [stranger for stranger in strangers if stranger.group == group]
        crowded = group not in self._exempt and (len(mine) >= self._caps.connections_per_address)
        full = len(strangers) >= self._caps.connections
        among = mine if crowded else strangers
        weights = Counter(stranger.group for stranger in among)
        if (crowded or full) and not self._evict(among, weights, weights[group] + 1):
            return None
        self._number += 1
        made = Connection(self, group, self._number, cut)
        self._open[made.number] = made
        return made

    def close(self, connection: Connection) -> bool:
        """Forget a connection that ended or needs its place no longer.

        Returns:
            Whether it had its place until now: it was not cut for another.
        """
        with self._lock:
            return self._open.pop(connection.number, None) is not None

    def admit(self, connection: Connection, caller: str) -> None:
        """As ``Connection.admit``."""
        with self._lock:
            held = sum(held.caller == caller for held in self._open.values())
            if held < self._caps.connections_per_caller:
                connection.caller = caller

    def hold(self, connection: Connection, size: int) -> None:
        """As ``Connection.hold``."""
        with self._lock:
            self._hold(connection, size)

    def _hold(self, connection: Connection, size: int) -> None:
        connection.held = size
        while connection.caller is None:
            strangers = [
                connection for connection in self._open.values() if connection.caller is None
            ]
            weights: Counter[str] = Counter()
            for stranger in strangers:
                weights[stranger.group] += stranger.held
            if weights.total() <= self._caps.body_bytes:
                return
            slow = [
                stranger
                for stranger in strangers
                if stranger.held and stranger.stage in _UNFINISHED and stranger is not connection
            ]
            if not self._evict(slow, weights, weights[connection.group], served_last=False):
                connection.held = 0
                raise TooManyRequests(
                    "the server holds too many unfinished requests",
                    check="rate",
                    hint="ask again in a moment",
                )

    def _evict(
        self,
        among: list[Connection],
        weights: Counter[str],
        share: int,
        *,
        served_last: bool = True,
    ) -> bool:
        """Cut the connection that gives way; return whether there was any.

        Args:
            weights: What each address group holds.
            share: What the group has then for which it gives way.
            served_last: Whether all others go before one that is served.
        """
        idle = [
            connection
            for connection in among
            if connection.stage < ConnectionStage.SERVED
            or (connection.stage is ConnectionStage.SERVED and weights[connection.group] > share)
        ]
        if not idle:
            return False
        # A proxy speaks for many callers and weighs as one of them.
        victim = min(
            idle,
            key=lambda candidate: (
                served_last and candidate.stage is ConnectionStage.SERVED,
                -1 if candidate.group in self._exempt else -weights[candidate.group],
                candidate.stage,
                candidate.number,
            ),
        )
        self.close(victim)
        victim.cut()
        return True
