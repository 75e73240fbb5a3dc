"""Connections to a broker's database: how they are made, and how a transaction begins.

Every transaction begins with the write lock, so what it read is still true when it commits,
whatever other threads or processes do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

__all__ = ["engine_of"]

_BUSY_MILLISECONDS: Final = 20_000


def engine_of(path: Path, *, migrating: bool = False) -> Engine:
    """Connections to a database.

    Args:
        path: SQLite file; its folder must exist.
        migrating: Do not enforce foreign keys: SQLite changes a table by replacing it.
    """
    engine = sa.create_engine(f"sqlite+pysqlite:///{path}", pool_size=8, max_overflow=64)

    def configure(connection: Any, _record: Any) -> None:
        # The driver's own BEGIN comes too late and without the lock; ``begin`` sends ours.
        connection.isolation_level = None
        for pragma in (
            f"busy_timeout = {_BUSY_MILLISECONDS}",
            "journal_mode = WAL",
            "synchronous = FULL",
            f"foreign_keys = {'OFF' if migrating else 'ON'}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    sa.event.listen(engine, "connect", configure)
    sa.event.listen(engine, "begin", _begin_immediate)
    return engine


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
