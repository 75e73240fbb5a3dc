"""What every restored broker does before it serves: compare its two halves, end what is over.

Challenges that wait end, because one may have been used since; leases end, because one may have
been replaced since. Guests resume with fresh evidence. Files are put back by ``broker.backup``; in
PostgreSQL by ``pg_restore``, and a broker there does not start before this was done (``settle``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.base.canonical import parse_json
from sealtrain.broker.database import begun, engine_of
from sealtrain.broker.home import move_in
from sealtrain.broker.schema import HEAD, version_of
from sealtrain.broker.tables import challenges, leases, metadata
from sealtrain.consortium.ledger_tree import StoredTree
from sealtrain.consortium.postgres import Postgres
from sealtrain.errors import ConfigError, LedgerInconsistent

__all__ = ["Settled", "ended", "settle"]

# Tables whose rows name an entry of the ledger, and the field of the entry that names the row.
_RECORDED: Final = {
    "decisions": "digest",
    "datasets": "digest",
    "withdrawals": "digest",
    "owner_policies": "digest",
    "successions": "digest",
    "manifests": "manifest_digest",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a restored database holds.

    Attributes:
        origin: Of its ledger.
        size: Entries of the ledger.
        root: Root over them, hex.
        leases_ended: Leases that were live in it.
        challenges_ended: Challenges that waited in it.
    """

    origin: str
    size: int
    root: str
    leases_ended: int
    challenges_ended: int


def settle(database: Postgres, *, now: int) -> Settled:
    """Check a database that was restored or copied, and let a broker start on it.

    Args:
        database: Where it is now.
        now: Seconds since the epoch.

    Raises:
        LedgerInconsistent: Its ledger does not hold together, or not with its tables.
        ConfigError: It was written by another version, or holds no broker's state.
        Unreachable: It cannot be read or written; nothing was changed.
    """
    from sealtrain.consortium.ledger_postgres import PostgresLedger, meta_of

    meta = meta_of(database)
    ledger = PostgresLedger(database, meta)
    engine = engine_of(database)
    try:
        size = ledger.recompute()
        with begun(engine) as connection:
            leases_ended, challenges_ended = ended(connection, ledger, now)
            move_in(connection, anew=True)
        return Settled(
            origin=meta["origin"],
            size=size,
            root=ledger.subtree(0, size).hex(),
            leases_ended=leases_ended,
            challenges_ended=challenges_ended,
        )
    finally:
        engine.dispose()
        ledger.close()


def ended(connection: Connection, ledger: StoredTree, now: int) -> tuple[int, int]:
    """Check the tables against their ledger, then end what must not go on.

    Returns:
        Leases and challenges that ended.

    Raises:
        ConfigError: The tables are of another version.
        LedgerInconsistent: They name an entry that the ledger does not have.
    """
    version = version_of(connection)
    if version != HEAD:
        raise ConfigError(
            "the backup was made by another version of the broker",
            check="schema version",
            got=version,
            expected=HEAD,
            hint="restore it with the version of sealtrain that made it",
        )
    for name, field in _RECORDED.items():
        table = metadata.tables[name]
        for digest, index in connection.execute(sa.select(table.c.digest, table.c.ledger_index)):
            _recorded(ledger, name, field, digest, index)
    over = connection.execute(
        leases.update()
        .where(leases.c.superseded_at.is_(None), leases.c.not_after > now)
        .values(superseded_at=now)
    ).rowcount
    waited = connection.execute(
        challenges.update().where(challenges.c.used_at.is_(None)).values(used_at=now)
    ).rowcount
    return over, waited


def _recorded(ledger: StoredTree, table: str, field: str, digest: str, index: int) -> None:
    found = ledger.read(index, 1) if 0 <= index < ledger.size() else []
    if not found or parse_json(found[0])["body"].get(field) != digest:
        raise LedgerInconsistent(
            f"the backup's database names an entry of the ledger that is not there ({table})",
            check="ledger entry",
            got=index,
            hint="the two are not of one broker, or not of one moment",
        )
