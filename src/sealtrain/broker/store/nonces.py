"""The parts of a transaction that accept a challenge, and a signed request's nonce, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.base.secret import Random
from sealtrain.broker.errors import RequestReplayed
from sealtrain.broker.store.incarnation import begin_anew
from sealtrain.broker.store.statements import run
from sealtrain.broker.store.tables import incarnations, nonces, used_challenges

_KEEP_SECONDS: Final = 3600
_FORGET_EVERY: Final = 60
# Built once: asked with every decision (see ``store.statements``).
_MEMORY: Final = sa.select(incarnations.c.generation, incarnations.c.forgotten_before)
_before: Final[sa.BindParameter[int]] = sa.bindparam("before", type_=sa.BigInteger)
_key: Final[sa.BindParameter[str]] = sa.bindparam("key", type_=sa.Text)
_FORGET: Final = used_challenges.delete().where(used_challenges.c.expires_at < _before)
_FORGOTTEN: Final = incarnations.update().values(forgotten_before=_before)
_USE: Final = used_challenges.insert().from_select(
    ["challenge", "expires_at"],
    sa.select(_key, sa.bindparam("until", type_=sa.BigInteger)).where(
        ~sa.exists().where(used_challenges.c.challenge == _key)
    ),
)


@dataclass(frozen=True, slots=True)
class Remembered:
    """Which used challenges a database remembers.

    Attributes:
        generation: Of the valid challenges.
        forgotten_before: Used challenges that expired before this time are forgotten.
    """

    generation: str
    forgotten_before: int


class UsedChallenges:
    """Reads and writes of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def memory(self) -> Remembered:
        """The current generation, and the expiry before which used challenges were forgotten."""
        return Remembered(*run(self._connection, _MEMORY, {}).fetchone())

    def forget(self, memory: Remembered, *, now: int) -> Remembered:
        """Forget used challenges that expired long ago."""
        before = now - _KEEP_SECONDS
        if before < memory.forgotten_before + _FORGET_EVERY:
            return memory
        run(self._connection, _FORGET, {"before": before})
        run(self._connection, _FORGOTTEN, {"before": before})
        return Remembered(memory.generation, before)

    def use(self, challenge: str, *, expires_at: int) -> bool:
        """Mark a challenge as used; return whether it was unused."""
        said = {"key": challenge, "until": expires_at}
        return bool(run(self._connection, _USE, said).rowcount == 1)

    def begin_anew(self, random: Random) -> Remembered:
        """Invalidate every earlier challenge, and forget all."""
        self._connection.execute(used_challenges.delete())
        return Remembered(begin_anew(self._connection, random).generation, 0)


class Nonces:
    """Reads and writes of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def spend(self, key_id: str, nonce: str, *, now: int, forget_after: int) -> None:
        """Use a nonce up, and forget those that expired.

        Args:
            key_id: Key that signed the request.
            nonce: As signed.
            now: Seconds since the epoch.
            forget_after: Last second at which it must be remembered.

        Raises:
            RequestReplayed: This key used it before.
        """
        self._connection.execute(nonces.delete().where(nonces.c.forget_after < now))
        try:
            self._connection.execute(
                nonces.insert().values(key_id=key_id, nonce=nonce, forget_after=forget_after)
            )
        except sa.exc.IntegrityError as error:
            raise report_replay(nonce) from error


def report_replay(nonce: str) -> RequestReplayed:
    """The error for a request whose nonce was used before."""
    return RequestReplayed(
        "the request is a replay: its nonce was used before",
        check="request nonce",
        got=nonce,
        expected="a nonce that serves once",
        hint="sign a new request: run the command again",
    )
