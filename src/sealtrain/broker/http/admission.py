"""Who asks, told by a request's head alone, before its body is read or anything is done for it.

1. An owner by a signature on the request (spec/requests.md §1).
2. The holder of a lease by an authentication code under the lease's key (spec/key-release.md §5).
3. Anybody else counts, by address and all together, before a body is read.

Who is told by 1 or 2 has a slot for its connection, threads and a count of its own: others cannot
use them up. Called by the event loop's thread; nothing here waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from fastapi import Request

from sealtrain.broker.http.bodies import connection_of
from sealtrain.broker.service.owners import OwnersRequest
from sealtrain.broker.service.service import Broker
from sealtrain.broker.service.throttle import address_group
from sealtrain.broker.urls import asked_url
from sealtrain.errors import DataInvalid
from sealtrain.release.lease_code import LEASE_HEADER, LeaseShown, lease_shown

__all__ = ["Admission", "account_of"]

_RUN_ID: Final = re.compile(r"[0-9a-f]{32}")
_MOST_RUNS: Final = 256


class Admission:
    """The door of one broker.

    Args:
        broker: Whose.
        public_urls: URLs under which owners reach it; none for the address of the connection.
    """

    def __init__(self, broker: Callable[[], Broker], public_urls: tuple[str, ...]) -> None:
        self._broker = broker
        self._public_urls = public_urls

    def owner(self, request: Request) -> OwnersRequest:
        """Return which owner signed a request's head.

        Raises:
            SignatureInvalid: None did, for this URL.
            RequestStale: It was signed too long ago, or ahead.
            RequestReplayed: It came before, as far as is known here.
        """
        found = self._broker().owners.known(
            method=request.method,
            url=_own_url(request, self._public_urls),
            headers=request.headers.items(),
        )
        _admit(request, f"owner {found.owner}")
        return found

    def holder(self, request: Request) -> LeaseShown | None:
        """Return whose lease a request's head shows; ``None`` where it shows none that is."""
        shown = lease_shown(request.headers.get(LEASE_HEADER, ""))
        if shown is None or not self._broker().granted(shown):
            return None
        _admit(request, f"lease {shown.lease_id}")
        return shown

    def stranger(self, request: Request) -> None:
        """Count a request of anybody.

        Raises:
            TooManyRequests: The address, or all together, asked all they may in this minute.
        """
        broker, now = self._broker(), self._broker().now()
        broker.shares.take(account_of(request), now)
        broker.throttle.take(now)

    def runs(self, request: Request) -> tuple[str, ...]:
        """Run ids that a request's query names, as it says itself.

        Raises:
            DataInvalid: None, too many, or what is no run id.
        """
        named = tuple(dict.fromkeys(request.query_params.getlist("run_id")))
        if not 1 <= len(named) <= _MOST_RUNS or not all(map(_RUN_ID.fullmatch, named)):
            raise DataInvalid(
                "the request does not name the manifest's runs",
                check="query",
                expected=f"1 to {_MOST_RUNS} times run_id=, 32 hexadecimal digits",
            )
        return named


def account_of(request: Request) -> str:
    """What a request of anybody counts for: its address group."""
    return "" if request.client is None else address_group(request.client.host)


def _admit(request: Request, account: str) -> None:
    connection = connection_of(request)
    if connection is not None:
        connection.admit(account)


def _own_url(request: Request, public_urls: tuple[str, ...]) -> str:
    """What was asked, at the address the broker knows itself by."""
    scope = request.scope
    host, port = scope["server"]
    listening = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    query = scope["query_string"].decode("latin-1")
    return asked_url(
        public_urls or (listening,),
        host=request.headers.get("host", ""),
        target=scope["raw_path"].decode("latin-1") + (f"?{query}" if query else ""),
    )
