"""Lets in who shows an operator's token (spec/requests.md §2)."""

from __future__ import annotations

from typing import Final

from sealtrain.broker.parts import BrokerParts
from sealtrain.broker.tokens import Scope

__all__ = ["Operators"]

_BEARER: Final = "bearer "


class Operators:
    """The operators of one broker. Thread-safe."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self.began = parts.clock()
        """When the broker was put together, seconds since the epoch."""

    def admit(self, authorization: str, scope: Scope) -> str:
        """Return the name of the token that a request shows.

        Args:
            authorization: The header of that name; empty where there is none.
            scope: What is asked for.

        Raises:
            TokenRefused: None, or one that is not good for this.
        """
        bearer = authorization[: len(_BEARER)].lower() == _BEARER
        token = authorization[len(_BEARER) :].strip() if bearer else ""
        with self._parts.store.transaction() as transaction:
            return transaction.tokens.admit(token, scope, now=self._parts.clock()).name
