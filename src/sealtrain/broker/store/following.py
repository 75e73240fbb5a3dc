"""Keeps a broker's database in step with its ledger, whichever was written last.

A ledger in a file commits before the database, so a broker that dies in between, or whose disk is
full then, leaves entries that are missing from the database. A database may also be an old copy, or
new. One row of it states how many entries it reflects, and the leaf hash of the last of them.

1. Before a transaction does anything, it records the entries that the row does not reach, in
   order, by the change that each states (``store.recording``).
2. A database that reflects more than the ledger holds, or other entries, stops the broker: the
   ledger was set back or replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.base.canonical import parse_json
from sealtrain.base.clock import from_rfc3339
from sealtrain.broker.store.entry_index import add_to_index
from sealtrain.broker.store.recording import RecordedEntry, change
from sealtrain.broker.store.statements import run
from sealtrain.broker.store.tables import metadata, reflected
from sealtrain.broker.store.transaction import Transaction
from sealtrain.errors import DataInvalid, LedgerInconsistent, SealtrainError, Unreachable
from sealtrain.ledger.references import TABLES
from sealtrain.ledger.store import LedgerStore
from sealtrain.signing import merkle

_PAGE: Final = 500
# Built once: asked with every transaction (see ``store.statements``).
_REACHED: Final = sa.select(reflected.c.entries)
_ADVANCE: Final = (
    reflected.update()
    .where(reflected.c.entries == sa.bindparam("before", type_=sa.BigInteger))
    .values(
        entries=sa.bindparam("after", type_=sa.BigInteger), leaf=sa.bindparam("last", type_=sa.Text)
    )
)


class LedgerFollower:
    """How far one database reflects one ledger. Thread-safe: its state is in the database.

    Args:
        tree: The ledger's entries.
        origin: Of the ledger.
    """

    def __init__(self, tree: LedgerStore, origin: str) -> None:
        self._tree = tree
        self._origin = origin

    @property
    def size(self) -> int:
        """Entries of the ledger."""
        return self._tree.size()

    def holds(self, connection: Connection, size: int) -> bool:
        """Whether a database reflects so many entries."""
        return _read_reached(connection) >= size

    def catch_up(self, connection: Connection) -> int:
        """Record the entries missing from the database; returns their number.

        Args:
            connection: In a transaction that holds the write lock.

        Raises:
            LedgerInconsistent: The ledger is shorter than the database reflects, or an entry is
                malformed for its kind.
            Unreachable: The ledger cannot be read.
        """
        before = after = _read_reached(connection)
        size = self._tree.size()
        if size < before:
            raise _set_back(before, size)
        if size == before:
            return 0
        transaction = Transaction(connection)
        while page := self._tree.read(after, _PAGE):
            for index, data in enumerate(page, start=after):
                self._record(transaction, index, data)
            self.advance(connection, after, page)
            after += len(page)
        return after - before

    def advance(self, connection: Connection, before: int, entries: Sequence[bytes]) -> None:
        """Note that the database reflects more entries, and by what they are found.

        Args:
            connection: In the transaction that holds their changes.
            before: Entries it reflected.
            entries: The next ones, at least one.

        Raises:
            Unreachable: It reflected another number: another program appends to the ledger.
        """
        add_to_index(connection, before, entries)
        after = before + len(entries)
        said = {"before": before, "after": after, "last": merkle.leaf_hash(entries[-1]).hex()}
        if run(connection, _ADVANCE, said).rowcount != 1:
            raise Unreachable(
                "another program writes to the broker's ledger",
                check="ledger",
                expected=f"a ledger of {before} entries",
                hint="retry: the request was not recorded",
            )

    def verify(self, connection: Connection) -> None:
        """Return if the ledger holds every entry that the database names.

        Raises:
            LedgerInconsistent: An entry is missing: ledger or database was set back or replaced.
        Unreachable: The ledger or the database cannot be read.
        """
        row = connection.execute(sa.select(reflected)).one()
        if row.entries > (size := self._tree.size()):
            raise _set_back(row.entries, size)
        if row.entries and self._tree.subtree(row.entries - 1, row.entries).hex() != row.leaf:
            raise _set_back(row.entries, "another history")
        for name, referring in TABLES.items():
            table = metadata.tables[name]
            for value, index in connection.execute(
                sa.select(table.c[referring.column], table.c.ledger_index)
            ):
                self._require_recorded(name, referring.field, value, index)

    def _require_recorded(self, table: str, field: str, value: str, index: int) -> None:
        found = self._tree.read(index, 1) if 0 <= index < self._tree.size() else []
        if not found or parse_json(found[0])["body"].get(field) != value:
            raise LedgerInconsistent(
                f"the database names an entry that is missing from the ledger ({table})",
                check="ledger entry",
                got=index,
                hint="restore both of one broker and one moment: see the operator guide",
            )

    def _record(self, transaction: Transaction, index: int, data: bytes) -> None:
        try:
            entry = parse_json(data)
            change(
                transaction,
                RecordedEntry(
                    index=index,
                    kind=entry["kind"],
                    at=from_rfc3339(entry["at"]),
                    body=entry["body"],
                    origin=self._origin,
                ),
            )
        except (Unreachable, sa.exc.DBAPIError):
            raise
        except (KeyError, TypeError, ValueError, SealtrainError) as error:
            raise LedgerInconsistent(
                "an entry of the ledger is malformed, so the database cannot record it",
                check="ledger entry",
                got=index,
                hint="audit the ledger: sealtrain log audit",
            ) from error


def _read_reached(connection: Connection) -> int:
    row = run(connection, _REACHED, {}).fetchone()
    if row is None:
        raise DataInvalid("the database does not say which entries it reflects", check="database")
    return int(row[0])


def _set_back(reflects: int, got: object) -> LedgerInconsistent:
    return LedgerInconsistent(
        "the ledger does not fit the history that the broker's database reflects",
        check="ledger size",
        got=got,
        expected=f"the history of {reflects} entries that the database has seen",
        hint="the ledger was set back or replaced: put its newest copy back; owners compare it "
        "with the checkpoint they keep",
    )
