"""Operators' tokens: shown once, kept as hashes (spec/requests.md §2).

A token is ``sealtrain_`` and 32 random bytes in base64url. The database holds its SHA-256, a name,
a scope and its expiry; a reader of the database cannot use it.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.base.digests import sha256_hex
from sealtrain.base.secret import Random
from sealtrain.broker.errors import TokenRefused
from sealtrain.broker.store.tables import tokens
from sealtrain.errors import AlreadyExists, LimitExceeded, UsageError

Scope = Literal["metrics", "status"]
MAX_TOKENS: Final = 64
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PREFIX: Final = "sealtrain_"
_BYTES: Final = 32
_MAX_LENGTH: Final = 256


def scope_of(name: str) -> Scope:
    """Return ``name``, checked.

    Raises:
        UsageError: The scope is unknown.
    """
    for scope in get_args(Scope):
        if scope == name:
            found: Scope = scope
            return found
    raise UsageError(
        "the token's scope is unknown",
        check="scope",
        got=name,
        expected=" or ".join(get_args(Scope)),
    )


def name_of(name: str) -> str:
    """Return the name of a token, checked.

    Raises:
        UsageError: The name is malformed.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            "the token's name is malformed", check="token", got=name[:64], expected=_NAME.pattern
        )
    return name


def make_token(random: Random) -> str:
    """A new token.

    Args:
        random: Source of its 32 bytes.
    """
    return _PREFIX + base64.urlsafe_b64encode(random(_BYTES)).decode("ascii").rstrip("=")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenState:
    """A token's name, scope and expiry, without its secret."""

    name: str
    scope: Scope
    made_at: int
    not_after: int


KeptToken = tuple[str, TokenState]
"""SHA-256 of a token, with its name, scope and expiry."""


class Tokens:
    """Reads and writes of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, token: str, state: TokenState) -> None:
        """Keep a token's hash.

        Raises:
            AlreadyExists: A token has that name.
            LimitExceeded: The database holds the most tokens it keeps.
        """
        names = [token_state.name for token_state in self.all()]
        if state.name in names:
            raise AlreadyExists(
                f"a token named {state.name} exists already", check="token", hint="remove it first"
            )
        if len(names) >= MAX_TOKENS:
            raise LimitExceeded(
                "the database holds the most tokens it keeps",
                check="tokens",
                got=len(names),
                expected=f"fewer than {MAX_TOKENS}",
                hint="remove unused tokens: sealtrain broker token remove NAME",
            )
        self._connection.execute(
            tokens.insert().values(
                name=state.name,
                digest=_digest(token),
                scope=state.scope,
                made_at=state.made_at,
                not_after=state.not_after,
            )
        )

    def remove(self, name: str) -> None:
        """Forget a token: the broker refuses it from now on.

        Raises:
            UsageError: No token has that name.
        """
        if self._connection.execute(tokens.delete().where(tokens.c.name == name)).rowcount != 1:
            raise UsageError("no token has that name", check="token", got=name)

    def all(self) -> list[TokenState]:
        """Every token, by name."""
        return [state for _, state in self.list_tokens()]

    def list_tokens(self) -> list[KeptToken]:
        """Every token with its hash."""
        rows = self._connection.execute(sa.select(tokens).order_by(tokens.c.name)).all()
        return [(row.digest, _state(row)) for row in rows]


def admit_token(kept: Sequence[KeptToken], token: str, scope: Scope, *, now: int) -> TokenState:
    """Return the token that was shown, if it is good for ``scope``.

    Args:
        kept: Every stored token.
        token: As the caller sent it; empty for none.
        scope: The scope that the request needs.
        now: Seconds since the epoch.

    Raises:
        TokenRefused: It is unknown, expired, or of another scope.
    """
    shown = _digest(token[:_MAX_LENGTH])
    # Every token is compared, each in constant time.
    same = [state for digest, state in kept if hmac.compare_digest(digest, shown)]
    for state in same:
        if state.scope == scope and now <= state.not_after:
            return state
    raise TokenRefused(
        "the operator's token is missing or not valid for this request",
        check="token",
        got="none" if not token else "one that is unknown, over or of another scope",
        expected=f"Authorization: Bearer, a token of scope {scope}",
        hint=f"sealtrain broker token create NAME --scope {scope}",
    )


def _state(row: Any) -> TokenState:
    return TokenState(
        name=row.name, scope=scope_of(row.scope), made_at=row.made_at, not_after=row.not_after
    )


def _digest(token: str) -> str:
    return sha256_hex(token.encode("utf-8", "surrogateescape"))
