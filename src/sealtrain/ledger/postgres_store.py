"""A ledger's store: a schema of its own in a PostgreSQL database.

- The tables are those of the SQLite file (``ledger_store``), with the same hashes. No migration
  touches them.
- One advisory lock for every appending transaction: writers in several processes take turns, and
  each reads the size after it has the lock.
- Triggers refuse to update, delete, truncate or skip anything, also while a server replicates.
  They stop mistakes, not the database's administrator; ``recompute`` and tree heads kept elsewhere
  detect the latter.
- A connection that broke is made anew, and then the newest head that was computed here must still
  be there: a server put in the place of another may have lost what that one had acknowledged.

The entries and hashes used last stay in memory (``KeptTree``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, LiteralString

import psycopg

from sealtrain.errors import ConfigError, LedgerInconsistent
from sealtrain.ledger.postgres import Postgres, is_unreachable, unreachable
from sealtrain.ledger.postgres_schema import MAKE, STRUCTURE, structure
from sealtrain.ledger.tree import (
    Growth,
    KeptTree,
    another_meta,
    grow,
    recomputed,
    subtree,
    tampered,
)

_BATCH: Final = 1000

_SAY: Final = "INSERT INTO sealtrain_ledger.meta (name, value) VALUES (%s, %s)"
_SAID: Final = "SELECT name, value FROM sealtrain_ledger.meta"
_SIZE: Final = "SELECT coalesce(max(i) + 1, 0) FROM sealtrain_ledger.entry"
_NODE: Final = "SELECT hash FROM sealtrain_ledger.node WHERE level = %s AND i = %s"
_ENTRIES: Final = "SELECT data FROM sealtrain_ledger.entry WHERE i >= %s ORDER BY i LIMIT %s"
_PAGE: Final = """
SELECT data FROM (
    SELECT i, data, sum(octet_length(data)) OVER (ORDER BY i) AS total FROM (
        SELECT i, data FROM sealtrain_ledger.entry WHERE i >= %s ORDER BY i LIMIT %s
    ) AS asked
) AS counted WHERE total <= %s OR i = %s ORDER BY i
"""
_ALL_ENTRIES: Final = "SELECT i, data FROM sealtrain_ledger.entry ORDER BY i"
_ALL_NODES: Final = (
    "SELECT level, i, hash FROM sealtrain_ledger.node ORDER BY (i + 1) << level, level"
)
# The lock is the number of "STLG", as in the head of the file of ledger_store.
_LOCK: Final = "SELECT pg_advisory_xact_lock(1398033479)"
_BEGIN: Final = "BEGIN; SELECT pg_advisory_xact_lock(1398033479)"
_APPEND: Final = """
WITH entries AS (
    INSERT INTO sealtrain_ledger.entry (i, data)
    SELECT %(first)s + n - 1, data
    FROM unnest(%(data)s::bytea[]) WITH ORDINALITY AS given (data, n) ORDER BY n
)
INSERT INTO sealtrain_ledger.node (level, i, hash)
SELECT * FROM unnest(%(level)s::integer[], %(i)s::bigint[], %(hash)s::bytea[])
"""


class PostgresLedger:
    """Entries by index and hashes by range, durable once ``append`` returns."""

    def __init__(self, database: Postgres, meta: dict[str, str], *, any_key: bool = False) -> None:
        """Open the ledger of a database, or make one that says ``meta``.

        Args:
            database: Where.
            meta: What the ledger must say about itself: its origin and key id.
            any_key: It may have been made with another key, which ``made_with`` then names.

        Raises:
            LedgerInconsistent: Another structure, or other ``meta``.
            Unreachable: The database cannot be reached.
            ConfigError: The server's settings do not make commits durable.
        """
        self._database = database
        self.name = database.name
        self.kept = KeptTree(self._stored)
        self._seen = (0, b"")  # the largest head computed here
        # Readers do not wait for a writer that waits for its turn.
        self._reader = _Line(database, self._still_there)
        self._writer = _Line(database, self._still_there)
        try:
            with self._writer.transaction() as connection:
                self.made_with = _prepare(connection, database.name, meta, any_key=any_key)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections. Nothing is lost without it."""
        for line in (self._reader, self._writer):
            line.close()

    def size(self) -> int:
        """Number of entries."""
        return int(self._reader.rows(_SIZE)[0][0])

    def append(self, entries: Sequence[bytes]) -> int:
        """Write entries, all or none, and return the index of the first.

        Raises:
            Unreachable: They could not be made durable. If the connection broke during the commit,
                they may be written all the same.
            LedgerInconsistent: Entries are gone that were there before.
        """
        with self._writer.transaction() as connection:
            first = self._next(connection)
            made = self._insert(connection, first, entries)
        self.kept.remember(made)
        return first

    def pending(self, connection: Any) -> _PostgresPending:
        """Entries that are part of a transaction of the same database, written at its end.

        Args:
            connection: In that transaction.
        """
        return _PostgresPending(self, connection)

    def _next(self, connection: psycopg.Connection) -> int:
        """Index of the next entry, for the holder of the ledger's lock."""
        first = int(connection.execute(_SIZE).fetchall()[0][0])
        if first < self._seen[0]:
            raise _set_back(self._seen[0], first)
        return first

    def _insert(
        self, connection: psycopg.Connection, first: int, entries: Sequence[bytes]
    ) -> Growth:
        """Write entries from an index on."""
        made = grow(first, entries, self.kept.node)
        connection.execute(
            _APPEND,
            {
                "first": first,
                "data": list(entries),
                "level": [level for level, _ in made.nodes],
                "i": [place for _, place in made.nodes],
                "hash": list(made.nodes.values()),
            },
        )
        return made

    def read(self, start: int, limit: int) -> list[bytes]:
        """Up to ``limit`` entries from index ``start`` on."""
        rows = self._reader.rows(_ENTRIES, [start, limit])
        return [bytes(row[0]) for row in rows]

    def page(self, start: int, limit: int, max_bytes: int) -> list[bytes]:
        """As ``read``, and no more than ``max_bytes`` of them, but one in any case."""
        rows = self._reader.rows(_PAGE, [start, limit, max_bytes, start])
        return [bytes(row[0]) for row in rows]

    def subtree(self, start: int, end: int) -> bytes:
        """Root over the entries ``start … end-1``, a range as a Merkle tree divides it."""
        root = subtree(start, end, self.kept.node)
        if start == 0 and end > self._seen[0]:
            self._seen = (end, root)
        return root

    def recompute(self) -> int:
        """Recompute every hash from the entries and return their number.

        Raises:
            LedgerInconsistent: An entry or hash is missing, extra or changed.
        """
        with _failures(self._database.name), closing(self._database.connect()) as connection:
            connection.execute("SET statement_timeout = 0")  # of a long ledger
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                return recomputed(
                    _streamed(connection, "entries", _ALL_ENTRIES),
                    _streamed(connection, "nodes", _ALL_NODES),
                )

    def _stored(self, level: int, place: int) -> bytes:
        rows = self._reader.rows(_NODE, [level, place])
        if not rows:
            raise tampered(f"stored hash {(level, place)} is missing")
        return bytes(rows[0][0])

    def _still_there(self, connection: psycopg.Connection) -> None:
        """Compare the newest head computed here with the ledger on a new connection."""
        size, root = self._seen
        if size == 0:
            return

        def node(level: int, place: int) -> bytes:
            row = connection.execute(_NODE, [level, place]).fetchone()
            if row is None:
                raise _set_back(size, "fewer")
            return bytes(row[0])

        if subtree(0, size, node) != root:
            raise _set_back(size, "another history")


class _PostgresPending:
    """Entries of several threads, in memory until ``write``."""

    def __init__(self, ledger: PostgresLedger, connection: psycopg.Connection) -> None:
        self._ledger = ledger
        self._connection = connection
        self._entries: list[bytes] = []
        self._first: int | None = None
        self._made: Growth | None = None

    @property
    def count(self) -> int:
        return len(self._entries)

    def append(self, entries: Sequence[bytes]) -> int:
        """Add entries; the first ones take the lock, so that their index is theirs.

        Raises:
            Unreachable: The database does not answer.
            LedgerInconsistent: Entries are gone that were there before.
        """
        if self._first is None:
            with _failures(self._ledger.name):
                self._connection.execute(_LOCK)
                self._first = self._ledger._next(self._connection)
        index = self._first + len(self._entries)
        self._entries.extend(entries)
        return index

    def waiting(self) -> tuple[int, tuple[bytes, ...]]:
        return self._first or 0, tuple(self._entries)

    def undo(self, count: int) -> None:
        del self._entries[count:]
        if not self._entries:
            self._first = None  # rolling back to before the lock released it

    def write(self) -> None:
        """Write the entries in the transaction.

        Raises:
            Unreachable: The database does not answer.
        """
        if self._first is None:
            return
        with _failures(self._ledger.name):
            self._made = self._ledger._insert(self._connection, self._first, self._entries)

    def written(self) -> None:
        if self._made is not None:
            self._ledger.kept.remember(self._made)

    def dropped(self) -> None:
        """The transaction's end lets go of the lock."""


class _Line:
    """One connection, made anew when it broke; any thread may use it, one at a time."""

    def __init__(self, database: Postgres, made: Callable[[psycopg.Connection], None]) -> None:
        self._database = database
        self._made = made
        self._lock = threading.RLock()
        self._connection: psycopg.Connection | None = None

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def rows(self, query: LiteralString, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query that changes nothing."""
        with self._lock, _failures(self._database.name):
            return self._first(query, parameters).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection]:
        """A transaction that holds the ledger's lock."""
        with self._lock, _failures(self._database.name):
            connection = self._first(_BEGIN).connection
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")
                raise

    def _first(self, query: LiteralString, parameters: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        """Run a first statement, on a new connection where the last one was broken before."""
        connection = self._connection
        if connection is not None:
            try:
                return connection.execute(query, parameters or None)
            except psycopg.OperationalError:
                if not connection.broken and not connection.closed:
                    raise
                self.close()
        connection = self._database.connect()
        try:
            self._made(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection.execute(query, parameters or None)


def _prepare(
    connection: psycopg.Connection, name: str, meta: dict[str, str], *, any_key: bool
) -> str:
    """Make the ledger if there is none, and check it; returns the id of the key it began with."""
    if not structure(connection):
        connection.execute(MAKE)
        for item in sorted(meta.items()):
            connection.execute(
                "INSERT INTO sealtrain_ledger.meta (name, value) VALUES (%s, %s)", item
            )
    if structure(connection) != STRUCTURE:
        raise tampered("its tables or its append-only triggers were changed")
    said: dict[str, str] = dict(
        connection.execute("SELECT name, value FROM sealtrain_ledger.meta").fetchall()
    )
    made_with = said.get("key_id", meta.get("key_id", ""))
    expected = meta | {"key_id": made_with} if any_key and "key_id" in said else meta
    for key in sorted(said | expected):
        if expected.get(key) != said.get(key):
            raise another_meta(name, key, said.get(key), expected.get(key))
    return made_with


def meta_of(database: Postgres) -> dict[str, str]:
    """Origin and key id in the metadata of a database's ledger.

    Raises:
        ConfigError: There is none.
        Unreachable: The database cannot be reached.
    """
    with _failures(database.name), closing(database.connect()) as connection:
        if not structure(connection):
            raise ConfigError(
                f"the database {database.name} holds no ledger",
                check="database",
                hint="give the database that was restored",
            )
        return dict(connection.execute(_SAID).fetchall())


def _streamed(connection: psycopg.Connection, name: str, query: LiteralString) -> Iterator[Any]:
    """Rows of a query that may be longer than memory."""
    with connection.cursor(name) as cursor:
        cursor.itersize = _BATCH
        cursor.execute(query)
        yield from cursor


@contextmanager
def _failures(name: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if is_unreachable(error):
            raise unreachable(name, error) from error
        raise tampered(f"PostgreSQL reports {type(error).__name__}") from error


def _set_back(size: int, got: object) -> LedgerInconsistent:
    return LedgerInconsistent(
        "the database lost entries of the ledger that were there before",
        check="ledger size",
        got=got,
        expected=f"the history of {size} entries that this broker has seen",
        hint="the server was replaced by a lagging standby or an old copy: see the operator guide",
    )
