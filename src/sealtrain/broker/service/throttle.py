"""Caps on requests that cost the broker disk or a quote: in total, and by account."""

from __future__ import annotations

import threading
from collections import Counter
from ipaddress import ip_address, ip_network

from sealtrain.errors import TooManyRequests

__all__ = ["Shares", "Throttle", "address_group"]


class _Minute:
    """Calls of each account in the current calendar minute of the broker's clock. Thread-safe."""

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
        problem = "the broker has reached its cap of answers in one minute"
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
    """At most so many calls of each account in any calendar minute. Thread-safe.

    Args:
        per_minute: Calls of one account in a minute.
        whose: What an account is, for messages.
        accounts: How many are told apart; the others share one.
    """

    def __init__(self, per_minute: int, whose: str, *, accounts: int = 65_536) -> None:
        problem = f"this {whose} has reached its cap of requests in one minute"
        self._calls = _Minute(per_minute, accounts=accounts, problem=problem)

    def take(self, account: str, now: int) -> None:
        """Count one call.

        Args:
            account: Of the caller.
            now: Seconds since the epoch.

        Raises:
            TooManyRequests: This account has used up this minute.
        """
        self._calls.take(account, now)


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
