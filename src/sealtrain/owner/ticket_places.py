"""What a run ticket may name on a runner's machine (spec/run-control.md §8).

A submitter writes the ticket and the operator's machine acts on it, so each place must be one that
the operator listed, or lie below one:

1. a path, as it resolves: neither ``..`` nor a link leads out of a folder,
2. a URL, by whole parts of its path, none of them ``..`` however it is written,
3. ``HOST:PORT``, or ``HOST:*`` for every port.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from sealtrain.client.errors import TicketInvalid
from sealtrain.client.ticket import RunTicket
from sealtrain.storage.address import is_url

_PATHS: Final = ("base", "certificate", "certificate_key", "states")
_URLS: Final = ("store", "collateral", "credentials", "outbound_proxy")
_LISTEN: Final = ("health", "listen", "listen_writes")


class Places:
    """The places that an operator listed. Immutable."""

    def __init__(self, listed: Sequence[str]) -> None:
        """List them.

        Args:
            listed: Folders, URLs, ``HOST:PORT`` and ``HOST:*``.
        """
        self._urls = tuple(place.rstrip("/") for place in listed if is_url(place))
        others = [place for place in listed if not is_url(place)]
        self._folders = tuple(
            Path(place).resolve() for place in others if "/" in place or ":" not in place
        )
        self._hosts = frozenset(place for place in others if "/" not in place and ":" in place)

    def require(self, ticket: RunTicket) -> None:
        """Return if a ticket names no other place.

        Raises:
            TicketInvalid: It does.
        """
        for field, place in _list_places(ticket):
            if not self._holds(place):
                raise TicketInvalid(
                    "the run ticket names a place that this runner's operator did not list",
                    check=field,
                    got=place[:200],
                    expected="a place below one of --allow",
                    hint="ask the operator of the runner",
                )

    def _holds(self, place: str) -> bool:
        if is_url(place):
            return self._holds_url(place)
        if "/" not in place and ":" in place:
            host = place.rpartition(":")[0]
            return place in self._hosts or f"{host}:*" in self._hosts
        path = Path(place)
        if not path.is_absolute():
            return False
        there = path.resolve()
        return any(there == folder or folder in there.parents for folder in self._folders)

    def _holds_url(self, place: str) -> bool:
        parts = unquote(urlsplit(place).path).replace("\\", "/").split("/")
        if "." in parts or ".." in parts:
            return False
        place = place.rstrip("/")
        return any(place == url or place.startswith(f"{url}/") for url in self._urls)


def _list_places(ticket: RunTicket) -> Iterator[tuple[str, str]]:
    """Field and place of everything in a ticket that a guest reads, writes, asks or listens at."""
    for name in (*_PATHS, *_URLS, *_LISTEN):
        place = getattr(ticket, name)
        if place is not None:
            yield name, place
    for pin in ticket.brokers:
        yield "brokers", pin.url
    for place in ticket.data:
        yield "data", place
    if ticket.previous is not None:
        yield "previous", ticket.previous
    for model in ticket.models.values():
        yield "models", model.address
    for place in (*ticket.peers.values(), *ticket.holders.values()):
        yield "peers", place
