"""Caps on how often the broker does what costs it disk or a quote: in all, and for one address."""

from __future__ import annotations

import threading
from collections import Counter
from ipaddress import ip_address, ip_network

from sealtrain.errors import TooManyRequests

__all__ = ["Shares", "Throttle"]


class _Minute:
    """Calls of each account in the present calendar minute of the broker's clock. Thread-safe."""

    def __init__(self, per_minute: int, *, accounts: int, problem: str) -> None:
        self._per_minute = per_minute
        self._accounts = accounts
        self._problem = problem
        self._lock = threading.Lock()
        self._minute = -1
        self._taken: Counter[str] = Counter()

    def take(self, account: str, now: int) -> None:
        with self._lock:
            if now // 60 != self._minute:
                self._minute, self._taken = now // 60, Counter()
            if account not in self._taken and len(self._taken) >= self._accounts:
                account = "others"
            if self._taken[account] >= self._per_minute:
                raise TooManyRequests(
                    self._problem,
                    check="rate",
                    got=f"over {self._per_minute} a minute",
                    expected=f"at most {self._per_minute} a minute",
                    hint="try again in a minute",
                )
            self._taken[account] += 1


class Throttle:
    """At most so many calls in any calendar minute of the broker's clock. Thread-safe."""

    def __init__(self, per_minute: int) -> None:
        problem = "the broker has answered all it answers in one minute"
        self._calls = _Minute(per_minute, accounts=1, problem=problem)

    def take(self, now: int) -> None:
        """Count one call.

        Args:
            now: Seconds since the epoch.

        Raises:
            TooManyRequests: This minute is used up.
        """
        self._calls.take("all", now)


class Shares:
    """At most so many calls of one address in any calendar minute. Thread-safe.

    An IPv6 address counts as its /64: whoever has one has all of them.

    Args:
        per_minute: Calls of one address in a minute.
        exempt: Addresses that speak for many, such as a proxy that does not say for whom.
        addresses: How many are told apart; the others share one account.
    """

    def __init__(
        self, per_minute: int, *, exempt: tuple[str, ...] = (), addresses: int = 65_536
    ) -> None:
        problem = "this address has asked all it may ask in one minute"
        self._calls = _Minute(per_minute, accounts=addresses, problem=problem)
        self._exempt = frozenset(exempt)

    def take(self, address: str, now: int) -> None:
        """Count one call.

        Args:
            address: Of the caller.
            now: Seconds since the epoch.

        Raises:
            TooManyRequests: This address has used up this minute.
        """
        if address not in self._exempt:
            self._calls.take(_network(address), now)


def _network(address: str) -> str:
    try:
        parsed = ip_address(address)
    except ValueError:
        return "unknown"  # not a socket of the internet
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ip_network((parsed.packed[:8] + bytes(8), 64)))
    return str(parsed)
