"""The part of a transaction that remembers which challenges served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.base.secret import Random
from sealtrain.broker.store.incarnation import begin_anew
from sealtrain.broker.store.statements import run
from sealtrain.broker.store.tables import incarnations, used_challenges

__all__ = ["Remembered", "UsedChallenges"]

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
    """Which challenges count.

    Attributes:
        generation: Of those that serve.
        forgotten_before: Used ones that expired before it are not remembered any more.
    """

    generation: str
    forgotten_before: int


class UsedChallenges:
    """Reads and writes of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def memory(self) -> Remembered:
        """The present generation, and the expiry below which used ones were forgotten."""
        return Remembered(*run(self._connection, _MEMORY, {}).fetchone())

    def forget(self, memory: Remembered, *, now: int) -> Remembered:
        """Forget used challenges that are long over."""
        before = now - _KEEP_SECONDS
        if before < memory.forgotten_before + _FORGET_EVERY:
            return memory
        run(self._connection, _FORGET, {"before": before})
        run(self._connection, _FORGOTTEN, {"before": before})
        return Remembered(memory.generation, before)

    def use(self, challenge: str, *, expires_at: int) -> bool:
        """Remember that a challenge served; whether it had not before."""
        said = {"key": challenge, "until": expires_at}
        return bool(run(self._connection, _USE, said).rowcount == 1)

    def begin_anew(self, random: Random) -> Remembered:
        """Let no challenge serve that was made before, and forget all."""
        self._connection.execute(used_challenges.delete())
        return Remembered(begin_anew(self._connection, random).generation, 0)
