"""Admits operators by token (spec/requests.md §2), even while the database is unreachable.

The broker remembers the tokens it read last, because an operator asks for its status when something
fails. A token removed meanwhile is valid until the database can be read again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from sealtrain.broker.service.parts import BrokerParts
from sealtrain.broker.store.tokens import KeptToken, Scope, admit_token
from sealtrain.errors import Unreachable

_BEARER: Final = "bearer "


class Operators:
    """The operators of one broker. Thread-safe."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._kept: list[KeptToken] = []
        self._read()
        self.began = parts.clock()
        """When the broker was put together, seconds since the epoch."""

    def admit(self, authorization: str, scope: Scope) -> str:
        """Return the name of the token that a request shows.

        Args:
            authorization: The header of that name; empty where there is none.
            scope: The scope that the request needs.

        Raises:
            TokenRefused: The token is missing, unknown, expired or of another scope.
        """
        bearer = authorization[: len(_BEARER)].lower() == _BEARER
        token = authorization[len(_BEARER) :].strip() if bearer else ""
        with suppress(Unreachable):
            self._read()
        return admit_token(self._kept, token, scope, now=self._parts.clock()).name

    def _read(self) -> None:
        with self._parts.store.reading() as transaction:
            self._kept = transaction.tokens.list_tokens()
