"""Where a ledger lives: its entries, and the roots of full subtrees, in a database.

- An append that returned is on disk: it survives a crash and a power cut.
- Triggers refuse to update, delete, replace or skip anything. They stop mistakes, not a person who
  administers the database; for that there are ``recompute`` and tree heads kept elsewhere.
- A transaction that appends begins with the one lock of all that append and reads the size after
  it: writers in several processes take turns.
- One connection to read and one to append: any thread may call, and nothing is read that is not on
  disk. What was used last is kept in memory (``KeptTree``).
- A connection that broke is made anew, and then the newest head that was computed here must still
  be there: a server put in the place of another may have lost what that one had acknowledged.

What differs from database to database is its ``LedgerDatabase``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Dialect, Engine
from sqlalchemy.pool import PoolProxiedConnection

from sealtrain.errors import LedgerInconsistent
from sealtrain.ledger.backend import BUSY_SECONDS, LedgerDatabase, Place
from sealtrain.ledger.backends import backend_of
from sealtrain.ledger.tree import (
    Growth,
    KeptTree,
    another_meta,
    fitting,
    grow,
    recompute,
    report_tampering,
    subtree,
)

T = TypeVar("T")


class _Statements:
    """As a driver takes them: SQLAlchemy would look each up anew, which takes longer than it."""

    def __init__(self, dialect: Dialect, schema: str | None) -> None:
        def text(statement: sa.ClauseElement) -> str:
            return str(statement.compile(dialect=dialect))

        whole = sa.BigInteger
        meta = sa.table("meta", sa.column("name"), sa.column("value"), schema=schema)
        entry = sa.table("entry", sa.column("i", whole), sa.column("data"), schema=schema)
        node = sa.table(
            "node", sa.column("level"), sa.column("i", whole), sa.column("hash"), schema=schema
        )
        zero, one = sa.literal_column("0", whole), sa.literal_column("1", whole)
        asked = (
            sa.select(entry.c.data)
            .where(entry.c.i >= sa.bindparam("start", type_=whole))
            .order_by(entry.c.i)
            .limit(sa.bindparam("most", type_=whole))
            .offset(zero)
        )
        self.say = text(meta.insert())
        self.said = text(sa.select(meta))
        self.size = text(sa.select(sa.func.coalesce(sa.func.max(entry.c.i) + one, zero)))
        self.entries = text(asked)
        self.lengths = text(asked.with_only_columns(sa.func.length(entry.c.data)))
        self.node = text(
            sa.select(node.c.hash).where(
                node.c.level == sa.bindparam("level", type_=sa.Integer),
                node.c.i == sa.bindparam("place", type_=whole),
            )
        )
        self.all_entries = text(sa.select(entry).order_by(entry.c.i))
        self.all_nodes = text(
            sa.select(node).order_by((node.c.i + one).op("<<")(node.c.level), node.c.level)
        )


_compiled: dict[tuple[str, str, str | None], _Statements] = {}


def _statements_of(dialect: Dialect, schema: str | None) -> _Statements:
    """Compile the statements once for every ledger of a kind of database."""
    kind = (dialect.name, dialect.paramstyle, schema)
    if kind not in _compiled:
        _compiled[kind] = _Statements(dialect, schema)
    return _compiled[kind]


class LedgerStore:
    """Entries by index and hashes by range, durable once ``append`` returns."""

    def __init__(
        self,
        where: Place,
        meta: dict[str, str],
        *,
        any_key: bool = False,
        patience: float = BUSY_SECONDS,
    ) -> None:
        """Open a ledger, or make one that says ``meta``.

        Args:
            where: File, whose folder must exist; or a database on a server.
            meta: What the ledger must say about itself: its origin and key id.
            any_key: It may have been made with another key, which ``take_key`` then names.
            patience: Seconds to wait for the turn of another writer.

        Raises:
            LedgerInconsistent: Another kind of file, another structure, or other ``meta``.
            Unreachable: The database cannot be reached or written.
            ConfigError: The server's settings do not make commits durable.
        """
        self._database: LedgerDatabase = backend_of(where).ledger(where, patience)
        self._sql = _statements_of(self._database.engine.dialect, self._database.schema)
        self.kept = KeptTree(self._read_node)
        """The part of it in memory."""
        self._seen = (0, b"")  # the largest head computed here
        self._reader = _LedgerConnection(self._database.engine, self._require_seen)
        self._turn = _AppendTurn(self._database, self._require_seen)
        try:
            self.made_with = self._prepare(meta, any_key=any_key)
            """Id of the key that it was made with; rotations may have led to another since."""
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections. Nothing is lost without it."""
        self._reader.close()
        self._turn.close()

    def size(self) -> int:
        """Number of entries."""
        return int(self._rows(self._sql.size)[0][0])

    def append(self, entries: Sequence[bytes]) -> int:
        """Write entries, all or none, and return the index of the first.

        Raises:
            Unreachable: They could not be made durable. If the connection to a server broke during
                the commit, they may be written all the same.
            LedgerInconsistent: Entries are gone that were there before.
        """
        pending = PendingEntries(self, self._turn)
        try:
            first = pending.append(entries)
            pending.write()
        except BaseException:
            pending.on_rollback()
            raise
        pending.on_commit()
        return first

    def pending(self, connection: Any) -> PendingEntries:
        """Entries to write together with a transaction of the broker's tables.

        Args:
            connection: The driver's, in that transaction. Entries are part of it where its database
                is the ledger's too; else they are committed by themselves, one sync for all.
        """
        lock = self._database.lock
        return PendingEntries(self, self._turn if lock is None else _TablesTurn(lock, connection))

    def read(self, start: int, limit: int) -> list[bytes]:
        """Up to ``limit`` entries from index ``start`` on."""
        rows = self._rows(self._sql.entries, {"start": start, "most": limit})
        return [bytes(row[0]) for row in rows]

    def page(self, start: int, limit: int, max_bytes: int) -> list[bytes]:
        """As ``read``, and no more than ``max_bytes`` of them, but one in any case."""

        def count(driver: Any) -> int:
            rows = driver.execute(self._sql.lengths, {"start": start, "most": limit})
            return fitting((row[0] for row in rows), max_bytes)

        with self.failures():
            most = self._reader.first(count)
        return self.read(start, most)

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
        with self.failures(), closing(self._database.engine.raw_connection()) as connection:
            driver: Any = connection.driver_connection
            driver.execute(self._database.begin_snapshot)
            with (
                closing(self._database.stream(driver, self._sql.all_entries)) as entries,
                closing(self._database.stream(driver, self._sql.all_nodes)) as nodes,
            ):
                return recompute(entries, nodes)

    def next_index(self, driver: Any) -> int:
        """Index of the next entry, for the holder of the ledger's lock.

        Raises:
            LedgerInconsistent: Entries are gone that were there before.
        """
        first = int(driver.execute(self._sql.size).fetchone()[0])
        if first < self._seen[0]:
            raise _set_back(self._seen[0], first)
        return first

    def insert(self, driver: Any, first: int, entries: Sequence[bytes]) -> Growth:
        """Write entries from an index on, for the holder of the ledger's lock."""
        made = grow(first, entries, self.kept.node)
        self._database.insert(driver, made)
        return made

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Turn errors of the database in the block into ours."""
        try:
            yield
        except (sa.exc.DBAPIError, self._database.engine.dialect.loaded_dbapi.Error) as error:
            cause: Any = error.orig if isinstance(error, sa.exc.DBAPIError) else error
            raise self._database.failure(cause) from error
        except (sa.exc.TimeoutError, OSError) as error:
            raise self._database.failure(error) from error

    def _rows(self, text: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with self.failures():
            return self._reader.first(lambda driver: driver.execute(text, values or {}).fetchall())

    def _read_node(self, level: int, place: int) -> bytes:
        rows = self._rows(self._sql.node, {"level": level, "place": place})
        if not rows:
            raise report_tampering(f"stored hash {(level, place)} is missing")
        return bytes(rows[0][0])

    def _prepare(self, meta: dict[str, str], *, any_key: bool) -> str:
        """Make the ledger if there is none, and check it; returns the id of its first key."""
        database = self._database
        with self.failures(), self._turn.hold() as driver:
            if database.is_empty(driver):
                database.make(driver)
                for name, value in sorted(meta.items()):
                    driver.execute(self._sql.say, {"name": name, "value": value})
            if next(iter(database.faults(driver)), None) is not None:
                raise report_tampering("its tables or its append-only triggers were changed")
            said: dict[str, str] = dict(driver.execute(self._sql.said).fetchall())
            made_with = said.get("key_id", meta.get("key_id", ""))
            expected = meta | {"key_id": made_with} if any_key and "key_id" in said else meta
            for name in sorted(said | expected):
                if expected.get(name) != said.get(name):
                    raise another_meta(database.name, name, said.get(name), expected.get(name))
            return made_with

    def _require_seen(self, driver: Any) -> None:
        """Compare the newest head computed here with the ledger on a new connection."""
        size, root = self._seen

        def node(level: int, place: int) -> bytes:
            row = driver.execute(self._sql.node, {"level": level, "place": place}).fetchone()
            if row is None:
                raise _set_back(size, "fewer")
            return bytes(row[0])

        if size and subtree(0, size, node) != root:
            raise _set_back(size, "another history")


class PendingEntries:
    """Entries of several threads' transactions, in memory until ``write``.

    No reader sees or proves them before. From the first entry until ``on_commit`` or
    ``on_rollback`` no other writer appends.
    """

    def __init__(self, store: LedgerStore, turn: _AppendTurn | _TablesTurn) -> None:
        self._store = store
        self._turn = turn
        self._driver: Any = None
        self._entries: list[bytes] = []
        self._first = 0
        self._made: Growth | None = None

    @property
    def count(self) -> int:
        """Entries that wait."""
        return len(self._entries)

    def append(self, entries: Sequence[bytes]) -> int:
        """Add entries; the first ones take the turn, so that their index is theirs.

        Raises:
            Unreachable: The database does not answer, or another writer has it for too long.
            LedgerInconsistent: Entries are gone that were there before.
        """
        if self._driver is None:
            with self._store.failures():
                self._driver = self._turn.begin()
                self._first = self._store.next_index(self._driver)
        index = self._first + len(self._entries)
        self._entries.extend(entries)
        return index

    def waiting(self) -> tuple[int, tuple[bytes, ...]]:
        """Index of the first entry that waits, and all of them."""
        return self._first, tuple(self._entries)

    def undo(self, count: int) -> None:
        """Forget all but the first ``count``."""
        del self._entries[count:]
        if not self._entries:
            self.on_rollback()

    def write(self) -> None:
        """Write what waits. Entries in a database of their own are on disk then.

        Raises:
            Unreachable: They could not be written; none was.
        """
        if self._driver is None:
            return
        with self._store.failures():
            self._made = self._store.insert(self._driver, self._first, self._entries)
            self._turn.commit(self._driver)

    def on_commit(self) -> None:
        """The transaction committed."""
        if self._made is not None:
            self._store.kept.remember(self._made)
        self.on_rollback()

    def on_rollback(self) -> None:
        """The transaction was undone, or could not be written. What ``write`` put on disk stays."""
        driver, self._driver = self._driver, None
        if driver is not None:
            self._turn.end(driver)


class _TablesTurn:
    """The right to append in a transaction of the broker's tables, whose end is its end too."""

    def __init__(self, lock: str, driver: Any) -> None:
        self._lock = lock
        self._driver = driver

    def begin(self) -> Any:
        self._driver.execute(self._lock)
        return self._driver

    def commit(self, driver: Any) -> None:
        """With the tables."""

    def end(self, driver: Any) -> None:
        """Rolling back to before the lock, or the transaction's end, lets go of it."""


class _LedgerConnection:
    """One connection, made anew when it broke; any thread may use it, one at a time."""

    def __init__(self, engine: Engine, on_new: Callable[[Any], None]) -> None:
        self._engine = engine
        self._on_new = on_new
        self._lock = threading.RLock()
        self._connection: PoolProxiedConnection | None = None
        self._driver: Any = None

    def close(self) -> None:
        """Close it, and let go of all others of its engine."""
        with self._lock:
            if self._connection is not None:
                self._connection.invalidate()
            self._connection = self._driver = None
            self._engine.dispose()

    def first(self, act: Callable[[Any], T]) -> T:
        """Do something first, on a new connection where the last one was broken before."""
        with self._lock:
            if self._driver is not None:
                try:
                    return act(self._driver)
                except self._engine.dialect.loaded_dbapi.Error as error:
                    if not self._engine.dialect.is_disconnect(error, self._driver, None):
                        raise
                    self.close()
            self._connection = self._engine.raw_connection()
            self._driver = self._connection.driver_connection
            try:
                self._on_new(self._driver)
            except BaseException:
                self.close()
                raise
            return act(self._driver)


class _AppendTurn(_LedgerConnection):
    """The right to append, in a transaction of the ledger's own: one at a time, of any threads."""

    def __init__(self, database: LedgerDatabase, on_new: Callable[[Any], None]) -> None:
        super().__init__(database.engine, on_new)
        self._begin = database.begin
        self._patience = database.patience
        self._free = threading.Lock()

    def begin(self) -> Any:
        """Take the lock of all that append, and return the connection that has it."""
        if not self._free.acquire(timeout=self._patience):
            raise TimeoutError
        try:
            return self.first(lambda driver: driver.execute(self._begin).connection)
        except BaseException:
            self._free.release()
            raise

    def commit(self, driver: Any) -> None:
        """Make what was appended durable."""
        driver.execute("COMMIT")

    def end(self, driver: Any) -> None:
        """Undo what was not committed, and let the next writer go on."""
        try:
            with suppress(self._engine.dialect.loaded_dbapi.Error):
                driver.rollback()
        finally:
            self._free.release()

    @contextmanager
    def hold(self) -> Iterator[Any]:
        """A turn that commits at the block's end."""
        driver = self.begin()
        try:
            yield driver
            self.commit(driver)
        finally:
            self.end(driver)


def _set_back(size: int, got: object) -> LedgerInconsistent:
    return LedgerInconsistent(
        "the database lost entries of the ledger that were there before",
        check="ledger size",
        got=got,
        expected=f"the history of {size} entries that this broker has seen",
        hint="the server was replaced by a lagging standby or an old copy: see the operator guide",
    )
