"""Identifies a broker's memory: tells it from an older copy, from a new one and from others.

The ledger does not state which challenges and signed requests were used, so a memory that was
restored or rebuilt has forgotten some. It then begins anew: earlier challenges are of another
generation and are refused, and owners' requests signed before are stale (spec/key-release.md §3,
spec/requests.md §1).

A copy of a database remembers leases that were replaced since and challenges that were used since.
So the database notes where it was made, and a broker does not start on a database that was moved:
``sealtrain broker restored`` first checks it and ends those leases and challenges
(``store.restored``). A standby that takes over is the same database. A file needs no note:
``store.backup`` restores it.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.base.secret import Random
from sealtrain.broker.store.database import place_of
from sealtrain.broker.store.tables import home, incarnations
from sealtrain.errors import ConfigError
from sealtrain.ledger.backends import backend_of


def move_in(connection: Connection, *, anew: bool = False) -> None:
    """Note where the database is, the first time or ``anew``; else compare.

    Raises:
        ConfigError: It was copied from another place.
    """
    query = backend_of(place_of(connection.engine)).identity
    if query is None:
        return
    here = str(connection.exec_driver_sql(query).scalar_one())
    if anew:
        connection.execute(home.delete())
    noted = connection.execute(sa.select(home.c.identity)).scalar_one_or_none()
    if noted is None:
        connection.execute(home.insert().values(identity=here))
    elif noted != here:
        raise ConfigError(
            "the database was restored or copied from another place",
            check="database",
            got=here,
            expected=noted,
            hint="stop every broker on the original, then run: sealtrain broker restored",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One memory of a broker.

    Attributes:
        generation: Of the challenges that are valid, 32 hex digits.
        began_at: When it began without an earlier memory's contents, seconds since the epoch; 0 for
            the first memory of a ledger.
    """

    generation: str
    began_at: int


def incarnation_of(connection: Connection) -> Incarnation | None:
    """The memory that a database holds; ``None`` before its first."""
    row = connection.execute(
        sa.select(incarnations.c.generation, incarnations.c.began_at)
    ).one_or_none()
    return None if row is None else Incarnation(generation=row[0], began_at=row[1])


def begin_anew(
    connection: Connection, random: Random, *, began_at: int | None = None
) -> Incarnation:
    """Begin a new memory in a database: every earlier challenge is refused.

    Args:
        connection: In a transaction that holds the write lock.
        random: Source of the generation.
        began_at: As ``Incarnation``; ``None`` for a memory that forgot only challenges.
    """
    before = incarnation_of(connection)
    kept = 0 if before is None else before.began_at
    made = Incarnation(generation=random(16).hex(), began_at=kept if began_at is None else began_at)
    connection.execute(incarnations.delete())
    connection.execute(
        incarnations.insert().values(
            place=0, generation=made.generation, began_at=made.began_at, forgotten_before=0
        )
    )
    return made
