"""Admits each request that was signed for this broker, once (spec/requests.md §1).

``find_signer`` looks at a request's head and costs one signature; ``admit`` needs the body and the
database. A replayed request is refused before it is counted: an attacker who replays signed
requests uses up none of the owner's quota.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sealtrain.base.clock import to_rfc3339
from sealtrain.broker.service.controllers import SignerRole
from sealtrain.broker.service.parts import BrokerParts
from sealtrain.broker.service.throttle import Shares
from sealtrain.broker.store.nonces import report_replay
from sealtrain.signing.errors import RequestStale
from sealtrain.signing.http_signature import SignedHead, verify_head

_REMEMBERED_SECONDS: Final = 3600
_SPENT: Final = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnersRequest:
    """A request whose head an owner, submitter or runner signed."""

    owner: str
    """Name of the signer."""
    is_owner: bool
    head: SignedHead

    @property
    def caller(self) -> str:
        """What the signer's requests count for."""
        return f"owner {self.owner}" if self.is_owner else f"controller {self.owner}"


class Owners:
    """Authenticates owners, submitters and runners of one broker. Thread-safe."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._ids = parts.ids
        # Apart from all other callers: no flood keeps an owner from revoking.
        self._shares = Shares(parts.limits.owner_share, "owner")
        self._controllers = Shares(parts.limits.posts_per_controller, "submitter or runner")
        self._spent: dict[tuple[str, str], None] = {}
        self._spending = threading.Lock()

    def find_signer(
        self,
        *,
        method: str,
        url: str,
        headers: Iterable[tuple[str, str]],
        role: SignerRole = "owner",
    ) -> OwnersRequest:
        """Return the signer of a request's head. Waits for nothing.

        Args:
            method: HTTP method.
            url: The request's URL, under the broker's own address.
            headers: Every header line.
            role: Whose keys may sign it; an owner is a submitter too.

        Raises:
            SignatureInvalid: Not signed by such a key, for this URL.
            BrokerMismatch: Signed for another broker.
            RequestStale: Signed too long ago, or ahead.
            RequestReplayed: This process saw it before.
        """
        limits = self._parts.limits
        head = verify_head(
            method,
            url,
            headers,
            self._parts.controllers.keys(role),
            brokers=self._ids,
            now=self._parts.clock(),
            max_age=limits.request_seconds,
            max_ahead=limits.request_ahead_seconds,
        )
        signed = head.request
        if (signed.key_id, signed.nonce) in self._spent:
            raise report_replay(signed.nonce)
        signer = self._parts.controllers.signers(role)[signed.key_id]
        return OwnersRequest(owner=signer.name, is_owner=signer.owner, head=head)

    def admit(self, asked: OwnersRequest, body: bytes) -> str:
        """Return the name of the signer of a request; its nonce has then served.

        Args:
            asked: What ``find_signer`` returned.
            body: As received.

        Raises:
            SignatureInvalid: Not signed for these bytes.
            RequestStale: Signed before this memory began.
            RequestReplayed: Its nonce was used before.
            TooManyRequests: This owner reached the cap of one minute.
        """
        now, limits = self._parts.clock(), self._parts.limits
        signed = asked.head.require_body(body)
        # Longer than it is fresh: a clock that is set back a little revives no request.
        over = signed.created + limits.request_seconds + _REMEMBERED_SECONDS
        with self._parts.store.transaction() as transaction:
            self._since_memory_began(transaction.began_at, signed.created)
            transaction.nonces.spend(signed.key_id, signed.nonce, now=now, forget_after=over)
        self._remember(signed.key_id, signed.nonce)
        shares = self._shares if asked.is_owner else self._controllers
        shares.take(asked.owner, now)
        return asked.owner

    def _remember(self, key_id: str, nonce: str) -> None:
        """Keep the nonces used last, so that refusing a replay needs no database query."""
        with self._spending:
            self._spent[key_id, nonce] = None
            for place in list(islice(self._spent, max(0, len(self._spent) - _SPENT))):
                del self._spent[place]

    def _since_memory_began(self, began_at: int, created: int) -> None:
        """Refuse a request that may have been used in a memory that was lost.

        Only shortly before this memory began: a clock that was ahead then must not keep owners out
        for long.
        """
        if began_at - self._parts.limits.request_seconds <= created < began_at:
            raise RequestStale(
                "the broker's memory began anew after the request was signed",
                check="request time",
                got=to_rfc3339(created),
                expected=f"{to_rfc3339(began_at)} or later",
                hint="sign a new request: run the command again",
            )
