"""Switch a SQLite file to its write-ahead log, waiting for other users of the file."""

from __future__ import annotations

import sqlite3
import time
from typing import Final

__all__ = ["switch_to_wal"]

_POLL_S: Final = 0.01


def switch_to_wal(db: sqlite3.Connection, *, patience: float) -> None:
    """Switch the journal, waiting for others: here SQLite's own busy timeout does not apply.

    Args:
        db: A connection without a transaction.
        patience: Seconds that others may keep the file busy.

    Raises:
        sqlite3.OperationalError: They kept it longer, or the file cannot be written.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return
