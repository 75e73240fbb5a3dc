"""Where a ledger lives: one SQLite file with the entries and the roots of full subtrees.

- WAL with ``synchronous=FULL``: a commit that returned survives a crash and a power cut.
- Triggers refuse to update, delete, replace or skip anything. They stop mistakes, not a person who
  edits the file; for that there are ``recompute`` and tree heads kept elsewhere.
- ``BEGIN IMMEDIATE`` before the size is read: writers in several processes queue up.
- One connection to read and one to append, each behind a lock: any thread may call, and nothing is
  read that is not on disk. What was used last is kept in memory (``KeptTree``).

Errors of SQLite become ours: a damaged file is ``LedgerInconsistent``, a file that is locked for
too long, full or not writable is ``Unreachable``.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sealtrain.base.files import sync
from sealtrain.errors import Unreachable
from sealtrain.ledger.tree import (
    Growth,
    KeptTree,
    another_meta,
    grow,
    recomputed,
    subtree,
    tampered,
    within,
)

APPLICATION_ID = 0x5354_4C47  # "STLG", so that file(1) and we know the format
VERSION = 1
BUSY_SECONDS = 30.0
_CORRUPT = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH")

_FROM = "SELECT data FROM entry WHERE i >= ? ORDER BY i LIMIT ?"
_ENTRIES = "SELECT i, data FROM entry ORDER BY i"
_NODES = "SELECT level, i, hash FROM node ORDER BY (i + 1) << level, level"

SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE TABLE entry (i INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT",
    "CREATE TABLE node (level INTEGER NOT NULL, i INTEGER NOT NULL, hash BLOB NOT NULL, "
    "PRIMARY KEY (level, i)) STRICT, WITHOUT ROWID",
    *(
        f"CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'append only'); END"
        for table in ("meta", "entry", "node")
        for action in ("UPDATE", "DELETE")
    ),
    # INSERT OR REPLACE deletes without firing a delete trigger, hence these.
    "CREATE TRIGGER entry_next BEFORE INSERT ON entry "
    "WHEN NEW.i <> (SELECT coalesce(max(i) + 1, 0) FROM entry) "
    "BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER node_new BEFORE INSERT ON node "
    "WHEN EXISTS (SELECT 1 FROM node WHERE level = NEW.level AND i = NEW.i) "
    "BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER meta_new BEFORE INSERT ON meta "
    "WHEN EXISTS (SELECT 1 FROM meta WHERE name = NEW.name) "
    "BEGIN SELECT RAISE(ABORT, 'append only'); END",
)


class LedgerStore:
    """Entries by index and hashes by range, durable once ``append`` returns."""

    def __init__(
        self,
        path: Path,
        meta: dict[str, str],
        *,
        any_key: bool = False,
        patience: float = BUSY_SECONDS,
    ) -> None:
        """Open a file, or make one that says ``meta``.

        Args:
            path: The database. Its folder must exist.
            meta: What the file must say about itself: the ledger's origin and key id.
            any_key: The file may have been made with another key, which ``made_with`` then names.
            patience: Seconds to wait for the turn of another thread or process.

        Raises:
            LedgerInconsistent: Another kind of file, another schema, or other ``meta``.
            Unreachable: The file cannot be opened.
        """
        self._path = path
        self.kept = KeptTree(self._stored)
        self._lock = threading.RLock()
        self._turn = threading.Lock()  # not of a thread: pending entries are those of several
        self._patience = patience
        with self._errors():
            _create_private(path)
            self._db = _connected(path, patience)
            try:
                self._writer = _connected(path, patience)
            except BaseException:
                self._db.close()
                raise
            try:
                self.made_with = self._prepare(meta, any_key=any_key)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the file. Nothing is lost without it."""
        with self._lock:
            self._db.close()
            self._writer.close()

    def size(self) -> int:
        """Number of entries."""
        with self._reading() as db:
            return _size(db)

    def append(self, entries: Sequence[bytes]) -> int:
        """Write entries, all or none, and return the index of the first.

        Raises:
            Unreachable: They could not be made durable; none was written.
        """
        with self._writing() as db:
            first = _size(db)
            made = self._insert(first, entries)
        self.kept.remember(made)
        return first

    def pending(self, connection: Any) -> _SqlitePending:
        """Entries to write together, by a connection of the file's own: one sync for all."""
        return _SqlitePending(self)

    def read(self, start: int, limit: int) -> list[bytes]:
        """Up to ``limit`` entries from index ``start`` on."""
        with self._reading() as db:
            return [bytes(row[0]) for row in db.execute(_FROM, (start, limit))]

    def page(self, start: int, limit: int, max_bytes: int) -> list[bytes]:
        """As ``read``, and no more than ``max_bytes`` of them, but one in any case."""
        with self._reading() as db:
            rows = db.execute(_FROM, (start, limit))  # read one by one, as they are taken
            return list(within((bytes(row[0]) for row in rows), max_bytes))

    def subtree(self, start: int, end: int) -> bytes:
        """Root over the entries ``start … end-1``, a range as a Merkle tree divides it."""
        return subtree(start, end, self.kept.node)

    def recompute(self) -> int:
        """Recompute every hash from the entries and return their number.

        Raises:
            LedgerInconsistent: An entry or hash is missing, extra or changed.
        """
        with self._snapshot() as db:
            return recomputed(db.execute(_ENTRIES), db.execute(_NODES))

    def _prepare(self, meta: dict[str, str], *, any_key: bool) -> str:
        """Make the file if it is new, and check it; returns the id of the key it was made with."""
        with self._writing() as db:
            if not db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
                db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                db.execute(f"PRAGMA user_version={VERSION}")
                for statement in SCHEMA:
                    db.execute(statement)
                db.executemany("INSERT INTO meta (name, value) VALUES (?, ?)", sorted(meta.items()))
            found = {
                "application_id": db.execute("PRAGMA application_id").fetchone()[0],
                "user_version": db.execute("PRAGMA user_version").fetchone()[0],
            }
            if found != {"application_id": APPLICATION_ID, "user_version": VERSION}:
                raise tampered("it is not a ledger of this version")
            schema = {row[0] for row in db.execute("SELECT sql FROM sqlite_schema WHERE sql > ''")}
            if schema != set(SCHEMA):
                raise tampered("its schema or its append-only triggers were changed")
            said: dict[str, str] = dict(db.execute("SELECT name, value FROM meta ORDER BY name"))
            made_with = said.get("key_id", meta.get("key_id", ""))
            expected = meta | {"key_id": made_with} if any_key else meta
            for name, value in said.items():
                if expected.get(name) != value:
                    raise another_meta(self._path.name, name, value, expected.get(name))
            return made_with

    def _stored(self, level: int, position: int) -> bytes:
        with self._reading() as db:
            row = db.execute(
                "SELECT hash FROM node WHERE level = ? AND i = ?", (level, position)
            ).fetchone()
        if row is None:
            raise tampered(f"stored hash {(level, position)} is missing")
        return bytes(row[0])

    def _insert(self, first: int, entries: Sequence[bytes]) -> Growth:
        """Write entries from an index on, in the writer's transaction."""
        made = grow(first, entries, self.kept.node)
        self._writer.executemany(
            "INSERT INTO entry (i, data) VALUES (?, ?)", enumerate(entries, first)
        )
        self._writer.executemany(
            "INSERT INTO node (level, i, hash) VALUES (?, ?, ?)",
            ((*place, value) for place, value in made.nodes.items()),
        )
        return made

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._errors():
            yield self._db

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """Several reads of one state, whatever other processes append meanwhile."""
        with self._reading() as db:
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.execute("ROLLBACK")

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._errors():
            db = self._begin()
            try:
                yield db
                db.execute("COMMIT")
            finally:
                self._end()

    def _begin(self) -> sqlite3.Connection:
        """Lock the file for appending, against all threads and processes; ``_end`` unlocks it."""
        if not self._turn.acquire(timeout=self._patience):
            raise TimeoutError
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._turn.release()
            raise
        return self._writer

    def _end(self) -> None:
        """Undo what was not committed."""
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        finally:
            self._turn.release()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            if name.startswith(_CORRUPT):
                raise tampered(f"SQLite reports {name}") from error
            raise Unreachable(
                f"the ledger {self._path.name} cannot be read or written",
                check="ledger file",
                got=name,
                hint="check the disk, the permissions and that no other program locks the file",
            ) from error


class _SqlitePending:
    """Entries of several threads, in memory until ``write``."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._entries: list[bytes] = []
        self._db: sqlite3.Connection | None = None
        self._first = 0
        self._made: Growth | None = None

    @property
    def count(self) -> int:
        return len(self._entries)

    def append(self, entries: Sequence[bytes]) -> int:
        """Add entries; the first ones take the turn, so that their index is theirs.

        Raises:
            Unreachable: Another writer has the file for too long.
        """
        if self._db is None:
            with self._store._errors():
                self._db = self._store._begin()
                self._first = _size(self._db)
        index = self._first + len(self._entries)
        self._entries.extend(entries)
        return index

    def waiting(self) -> tuple[int, tuple[bytes, ...]]:
        return self._first, tuple(self._entries)

    def undo(self, count: int) -> None:
        del self._entries[count:]
        if not self._entries:
            self.dropped()

    def write(self) -> None:
        """Write and commit.

        Raises:
            Unreachable: They could not be made durable; none was written.
        """
        if self._db is None:
            return
        with self._store._errors():
            self._made = self._store._insert(self._first, self._entries)
            self._db.execute("COMMIT")

    def written(self) -> None:
        if self._made is not None:
            self._store.kept.remember(self._made)
        self.dropped()

    def dropped(self) -> None:
        if self._db is not None:
            self._db = None
            self._store._end()


def _connected(path: Path, patience: float) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
    try:
        switch_to_wal(db, patience=patience)
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA trusted_schema=OFF")
    except BaseException:
        db.close()
        raise
    return db


def _create_private(path: Path) -> None:
    """Make the file 0600 before SQLite does: entries name runs and refusals."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        return
    os.close(descriptor)
    sync(path.parent)


def _size(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(i) + 1, 0) FROM entry").fetchone()[0])


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
