"""The part of a transaction that keeps owners' cosignatures of the ledger's checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.broker.store.tables import cosignatures, cosigned

CosignedNote = tuple[str, list[str]]
"""A checkpoint's signed note and the owners' cosignature lines of it."""


class Cosignatures:
    """Reads and writes of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, size: int, *, note: str, owner: str, line: str) -> None:
        """Keep a verified cosignature, unless the owner cosigned this size before."""
        if not self._connection.execute(sa.select(cosigned).filter_by(size=size)).all():
            self._connection.execute(cosigned.insert().values(size=size, note=note))
        if not self._connection.execute(
            sa.select(cosignatures).filter_by(size=size, owner=owner)
        ).all():
            self._connection.execute(
                cosignatures.insert().values(size=size, owner=owner, line=line)
            )

    def page(self, start: int, limit: int) -> Iterator[CosignedNote]:
        """Cosigned checkpoints of at least ``start`` entries, smallest first, as they are taken."""
        return self._notes(
            sa.select(cosigned)
            .where(cosigned.c.size >= start)
            .order_by(cosigned.c.size)
            .limit(limit)
        )

    def newest(self, quorum: int) -> CosignedNote | None:
        """The largest checkpoint that at least ``quorum`` owners cosigned."""
        enough = (
            sa.select(cosignatures.c.size)
            .group_by(cosignatures.c.size)
            .having(sa.func.count() >= quorum)
        )
        newest = sa.select(cosigned).where(cosigned.c.size.in_(enough))
        return next(self._notes(newest.order_by(cosigned.c.size.desc()).limit(1)), None)

    def _notes(self, query: sa.Select[Any]) -> Iterator[CosignedNote]:
        for row in self._connection.execute(query).all():
            yield str(row.note), self._lines(row.size)

    def _lines(self, size: int) -> list[str]:
        found = self._connection.execute(sa.select(cosignatures).filter_by(size=size))
        # Sorted here: a database's order of text depends on its collation.
        return [str(row.line) for row in sorted(found, key=lambda row: row.owner)]
