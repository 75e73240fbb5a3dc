"""Lets in what owners signed for this broker, once (spec/requests.md §1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sealtrain.broker.parts import BrokerParts
from sealtrain.broker.throttle import Throttle
from sealtrain.records.http_signature import verify_request

__all__ = ["Owners"]

_REMEMBERED_SECONDS: Final = 3600


class Owners:
    """The owners of one broker's consortium, as they ask it. Thread-safe."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        owners = parts.consortium.owners
        self._keys = {one.key_id: one.signing_bytes for one in owners}
        self._names = {one.key_id: one.name for one in owners}
        self._ids = parts.ids
        # Apart from everybody else's: no flood keeps an owner from revoking.
        self._throttles = {one.key_id: Throttle(parts.limits.owner_share) for one in owners}

    def admit(
        self, *, method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes
    ) -> str:
        """Return the name of the owner who signed a request; its nonce has then served.

        Args:
            method: HTTP method.
            url: What is asked, as this broker knows itself.
            headers: Every header line.
            body: What came.

        Raises:
            SignatureInvalid: Not signed by an owner, for this URL and these bytes.
            BrokerMismatch: Signed for another broker.
            RequestStale: Signed too long ago, or ahead.
            RequestReplayed: It came before.
            LimitExceeded: This owner asked all an owner may ask in one minute.
        """
        now, limits = self._parts.clock(), self._parts.limits
        signed = verify_request(
            method,
            url,
            headers,
            body,
            self._keys,
            brokers=self._ids,
            now=now,
            max_age=limits.request_seconds,
            max_ahead=limits.request_ahead_seconds,
        )
        self._throttles[signed.key_id].take(now)
        # Longer than it could be used: a clock that is set back a little revives nothing.
        over = signed.created + limits.request_seconds + _REMEMBERED_SECONDS
        with self._parts.store.transaction() as transaction:
            transaction.nonces.spend(signed.key_id, signed.nonce, now=now, forget_after=over)
        return self._names[signed.key_id]
