"""The backend in files: tables and ledger in one SQLite file each.

- WAL with ``synchronous=FULL``: a commit that returned survives a crash and a power cut.
- ``BEGIN IMMEDIATE`` before anything is read: writers in several processes queue up.

A ledger's file that is damaged is ``LedgerInconsistent``; one that is locked for too long, full or
not writable is ``Unreachable``.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.files import sync
from sealtrain.errors import DataInvalid, SealtrainError, Unreachable
from sealtrain.ledger.backend import TURN_SECONDS, Backend, LedgerDatabase, Reading
from sealtrain.ledger.tree import Growth, report_tampering

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

APPLICATION_ID = 0x5354_4C47  # "STLG", so that file(1) and we know the format
VERSION = 1
_DAMAGED: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_CHANGED: Final = (*_DAMAGED, "SQLITE_CONSTRAINT", "SQLITE_MISMATCH")
_POLL_S: Final = 0.01

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


def _ledger(path: Path, patience: float) -> LedgerDatabase:
    def failure(error: Exception) -> SealtrainError:
        name = _name_of(error)
        if name.startswith(_CHANGED):
            return report_tampering(f"SQLite reports {name}")
        return _unreachable(f"ledger {path.name}", "ledger file", name)

    try:
        _create_private(path)
    except OSError as error:
        raise failure(error) from error
    return LedgerDatabase(
        name=path.name,
        engine=_connections(path, patience=patience),
        schema=None,
        is_empty=lambda db: not db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone(),
        make=_make,
        faults=_form,
        insert=_insert,
        stream=sqlite3.Connection.execute,
        begin="BEGIN IMMEDIATE",
        lock=None,
        begin_snapshot="BEGIN",
        failure=failure,
        patience=patience,
    )


def _create_private(path: Path) -> None:
    """Make the file 0600 before SQLite does: entries name runs and refusals."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        return
    os.close(descriptor)
    sync(path.parent)


def _make(db: sqlite3.Connection) -> None:
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={VERSION}")
    for statement in SCHEMA:
        db.execute(statement)


def _insert(db: sqlite3.Connection, made: Growth) -> None:
    entries = enumerate(made.entries, made.first)
    db.executemany("INSERT INTO entry (i, data) VALUES (?, ?)", entries)
    roots = ((*place, root) for place, root in made.nodes.items())
    db.executemany("INSERT INTO node (level, i, hash) VALUES (?, ?, ?)", roots)


@contextmanager
def _reading(path: Path) -> Iterator[Reading]:
    if not path.is_file():
        raise DataInvalid(f"cannot read {path}: no such file", hint="check the path")
    # An URI, because only that takes the mode; "?" and "#" in a path would end it.
    name = str(path.resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    with closing(sqlite3.connect(f"file:{name}?mode=ro", uri=True, timeout=20.0)) as db:
        yield Reading(path.name, db.execute, nullcontext, sqlite3.Error, lambda: _form(db))


def _form(db: sqlite3.Connection) -> Iterator[str]:
    for name, expected in (("application_id", APPLICATION_ID), ("user_version", VERSION)):
        got = db.execute(f"PRAGMA {name}").fetchone()[0]
        if got != expected:
            yield f"its {name} is {got}, not {expected}"
    rows = db.execute("SELECT name, sql FROM sqlite_schema WHERE sql > ''").fetchall()
    for name, sql in rows:
        if sql not in SCHEMA:
            yield f"its schema has another {name}"
    for sql in sorted(set(SCHEMA) - {sql for _, sql in rows}):
        yield f"its schema has no: {sql}"


def _engine(path: Path, migrating: bool) -> Engine:
    # SQLite changes a table by replacing it, so foreign keys are checked at the end.
    return _connections(path, patience=TURN_SECONDS, foreign_keys=not migrating)


def _connections(path: Path, *, patience: float, foreign_keys: bool = True) -> Engine:
    import sqlalchemy as sa

    engine = sa.create_engine(
        sa.URL.create("sqlite+pysqlite", database=str(path)),  # a path may hold "?" and "%"
        paramstyle="named",
        pool_size=8,
        max_overflow=64,
        hide_parameters=True,
    )

    def configure(connection: Any, _record: Any) -> None:
        # The driver's own BEGIN comes too late and without the lock; ours is sent as a statement.
        connection.isolation_level = None
        for pragma in (
            f"busy_timeout = {int(patience * 1000)}",
            "synchronous = FULL",
            "trusted_schema = OFF",
            f"foreign_keys = {'ON' if foreign_keys else 'OFF'}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        switch_to_wal(connection, patience=patience)

    sa.event.listen(engine, "connect", configure)
    return engine


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


def _failure(path: Path, error: Exception, late: bool) -> SealtrainError | None:
    name = _name_of(error)
    if name in _DAMAGED:
        return DataInvalid(
            f"the broker's database {path.name} is damaged",
            check="database file",
            got=name,
            hint="put a backup into a new folder: sealtrain broker restore",
        )
    if not (late or isinstance(error, sqlite3.OperationalError)):
        return None
    return _unreachable("broker's database", "database file", name)


def _name_of(error: Exception) -> str:
    return getattr(error, "sqlite_errorname", type(error).__name__)


def _unreachable(what: str, check: str, name: str) -> Unreachable:
    return Unreachable(
        f"the {what} cannot be read or written",
        check=check,
        got=name,
        hint="check the disk, the permissions and that no other program locks the file",
    )


BACKEND: Final = Backend(
    place=Path,
    schemes=(),
    parse=Path,
    ledger=_ledger,
    reading=_reading,
    engine=_engine,
    writing="BEGIN IMMEDIATE",
    only_reads="BEGIN",
    failure=_failure,
    broken="PRAGMA foreign_key_check",
    identity=None,
)
