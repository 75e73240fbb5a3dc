"""Prepares a restored broker to serve: compares ledger and tables, ends its leases.

It records the ledger's entries that are missing from the tables, begins a new memory, so that every
earlier challenge is refused, and ends leases, because a lease may have been replaced since. Guests
resume with fresh evidence. ``store.backup`` restores files; ``pg_restore`` restores PostgreSQL, and
a broker there does not start before its operator ran ``sealtrain broker restored`` (``settle``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from sealtrain.broker.store.database import begin_transaction, engine_of
from sealtrain.broker.store.following import LedgerFollower
from sealtrain.broker.store.incarnation import begin_anew, move_in
from sealtrain.broker.store.schema import HEAD, version_of
from sealtrain.broker.store.tables import leases
from sealtrain.errors import ConfigError
from sealtrain.ledger.backend import DatabaseServer
from sealtrain.ledger.reading import meta_of
from sealtrain.ledger.store import LedgerStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredDatabase:
    """A restored database.

    Attributes:
        origin: Of its ledger.
        size: Entries of the ledger.
        root: Root over them, hex.
        leases_ended: Leases that were live in it.
    """

    origin: str
    size: int
    root: str
    leases_ended: int


def settle(database: DatabaseServer, *, now: int) -> RestoredDatabase:
    """Check a database that was restored or copied, and let a broker start on it.

    Args:
        database: Where it is now.
        now: Seconds since the epoch.

    Raises:
        LedgerInconsistent: Its ledger is inconsistent in itself or with its tables.
        ConfigError: It was written by another version, or holds no broker's state.
        Unreachable: It cannot be read or written; nothing was changed.
    """
    meta = meta_of(database)
    ledger = LedgerStore(database, meta, any_key=True)
    engine = engine_of(database)
    try:
        size = ledger.recompute()
        with begin_transaction(engine) as connection:
            leases_ended = end_leases(connection, ledger, meta["origin"], now)
            move_in(connection, anew=True)
        return RestoredDatabase(
            origin=meta["origin"],
            size=size,
            root=ledger.subtree(0, size).hex(),
            leases_ended=leases_ended,
        )
    finally:
        engine.dispose()
        ledger.close()


def end_leases(connection: Connection, ledger: LedgerStore, origin: str, now: int) -> int:
    """Bring the tables in step with their ledger, then end leases and challenges.

    Returns:
        Leases that ended.

    Raises:
        ConfigError: The tables are of another version.
        LedgerInconsistent: They name an entry that is missing from the ledger.
    """
    version = version_of(connection)
    if version != HEAD:
        raise ConfigError(
            "another version of the broker made the backup",
            check="schema version",
            got=version,
            expected=HEAD,
            hint="restore it with the version of sealtrain that made it",
        )
    following = LedgerFollower(ledger, origin)
    following.verify(connection)
    following.catch_up(connection)
    begin_anew(connection, os.urandom, began_at=now)
    return int(
        connection.execute(
            leases.update()
            .where(leases.c.superseded_at.is_(None), leases.c.not_after > now)
            .values(superseded_at=now)
        ).rowcount
    )
