"""Authenticates a caller by the request's head alone, before the broker reads its body.

1. An owner, submitter or runner by a signature on the request (spec/requests.md §1).
2. The holder of a lease by an authentication code under the lease's key (spec/key-release.md §5),
   and a guest that hands in its run's manifest by one under a key of that key (§6).
3. Every other caller is counted, by address and in total, before its body is read.

A caller authenticated by 1 or 2 has its own connection slot, threads and count: other callers
cannot use them up. The event loop's thread calls this module; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request

from sealtrain.base.connections import address_group
from sealtrain.broker.http.bodies import connection_of
from sealtrain.broker.service.controllers import SignerRole
from sealtrain.broker.service.owners import OwnersRequest
from sealtrain.broker.service.service import Broker
from sealtrain.broker.urls import resolve_asked_url
from sealtrain.release.lease_code import LEASE_HEADER, LeaseShown, read_lease_header


class Admission:
    """Admits requests to one broker.

    Args:
        broker: The broker that answers.
        public_urls: URLs under which owners reach it; none for the address of the connection.
    """

    def __init__(self, broker: Callable[[], Broker], public_urls: tuple[str, ...]) -> None:
        self._broker = broker
        self._public_urls = public_urls

    def owner(self, request: Request, role: SignerRole = "owner") -> OwnersRequest:
        """Return the signer of a request's head.

        Args:
            role: Whose keys may sign it.

        Raises:
            SignatureInvalid: No such key signed it for this URL.
            RequestStale: It was signed too long ago, or ahead.
            RequestReplayed: This process saw its nonce before.
        """
        found = self._broker().owners.find_signer(
            method=request.method,
            url=_own_url(request, self._public_urls),
            headers=request.headers.items(),
            role=role,
        )
        _admit(request, found.caller)
        return found

    def holder(self, request: Request) -> LeaseShown | None:
        """Return the lease whose holder authenticated the head; ``None`` if none did."""
        shown = read_lease_header(request.headers.get(LEASE_HEADER, ""))
        if shown is None or not self._broker().has_granted(shown):
            return None
        _admit(request, f"lease {shown.lease_id}")
        return shown

    def closer(self, request: Request) -> LeaseShown | None:
        """Return the lease under whose key a manifest's head was made; ``None`` if none was."""
        shown = read_lease_header(request.headers.get(LEASE_HEADER, ""))
        if shown is None or not self._broker().closes(shown):
            return None
        _admit(request, f"manifest {shown.lease_id}")
        return shown

    def stranger(self, request: Request) -> None:
        """Count a request of an unauthenticated caller.

        Raises:
            TooManyRequests: The address, or all callers together, reached this minute's cap.
        """
        broker, now = self._broker(), self._broker().now()
        broker.shares.take(caller_of(request), now)
        broker.throttle.take(now)


def caller_of(request: Request) -> str:
    """The address group that an unauthenticated request counts for."""
    return "" if request.client is None else address_group(request.client.host)


def _admit(request: Request, caller: str) -> None:
    connection = connection_of(request)
    if connection is not None:
        connection.admit(caller)


def _own_url(request: Request, public_urls: tuple[str, ...]) -> str:
    """The request's URL, under the address the operator configured."""
    scope = request.scope
    host, port = scope["server"]
    scheme = scope["scheme"]  # of the connection; a proxy that the operator named may say another
    listening = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    query = scope["query_string"].decode("latin-1")
    return resolve_asked_url(
        public_urls or (listening,),
        host=request.headers.get("host", ""),
        target=scope["raw_path"].decode("latin-1") + (f"?{query}" if query else ""),
    )
