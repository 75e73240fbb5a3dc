"""The part of a transaction that lets the nonce of a signed request serve once."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.broker.store.tables import nonces
from sealtrain.errors import RequestReplayed

__all__ = ["Nonces", "replayed"]


class Nonces:
    """Reads and writes of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def spend(self, key_id: str, nonce: str, *, now: int, forget_after: int) -> None:
        """Use a nonce up, and forget those that are over.

        Args:
            key_id: Whose nonce it is.
            nonce: As signed.
            now: Seconds since the epoch.
            forget_after: Last second at which it must be known.

        Raises:
            RequestReplayed: This key used it before.
        """
        self._connection.execute(nonces.delete().where(nonces.c.forget_after < now))
        try:
            self._connection.execute(
                nonces.insert().values(key_id=key_id, nonce=nonce, forget_after=forget_after)
            )
        except sa.exc.IntegrityError as error:
            raise replayed(nonce) from error


def replayed(nonce: str) -> RequestReplayed:
    """The error for a request whose nonce served before."""
    return RequestReplayed(
        "the request was sent before",
        check="request nonce",
        got=nonce,
        expected="a nonce that serves once",
        hint="sign a new request: run the command again",
    )
