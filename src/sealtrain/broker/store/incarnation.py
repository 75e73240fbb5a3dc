"""Which memory a broker has: what tells it from an older copy, from a new one and from others.

The ledger does not hold which challenges and signed requests were used, so a memory that was
restored or rebuilt has forgotten some. It then begins anew: challenges made before are of another
generation and serve nowhere, and owners' requests signed before are stale (spec/key-release.md §3,
spec/requests.md §1).
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.base.secret import Random
from sealtrain.broker.store.tables import incarnations

__all__ = ["Incarnation", "begin_anew", "incarnation_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One memory of a broker.

    Attributes:
        generation: Of the challenges that serve, 32 hex digits.
        began_at: When it began without what another one remembered, seconds since the epoch; 0 for
            the first memory of a ledger.
    """

    generation: str
    began_at: int


def incarnation_of(connection: Connection) -> Incarnation | None:
    """The memory that a database is; ``None`` before it is any."""
    row = connection.execute(
        sa.select(incarnations.c.generation, incarnations.c.began_at)
    ).one_or_none()
    return None if row is None else Incarnation(generation=row[0], began_at=row[1])


def begin_anew(
    connection: Connection, random: Random, *, began_at: int | None = None
) -> Incarnation:
    """Make a database another memory; no challenge that was made before serves.

    Args:
        connection: In a transaction that holds the write lock.
        random: Source of the generation.
        began_at: As ``Incarnation``; ``None`` for a memory that forgot nothing but challenges.
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
