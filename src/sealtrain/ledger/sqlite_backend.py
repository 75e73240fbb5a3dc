"""The backend in files: tables and ledger in one SQLite file each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import ConfigError, DataInvalid, SealtrainError, Unreachable
from sealtrain.ledger.backend import TURN_SECONDS, Backend, Reading
from sealtrain.ledger.sqlite_store import (
    APPLICATION_ID,
    SCHEMA,
    VERSION,
    LedgerStore,
    switch_to_wal,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

_DAMAGED: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


def _ledger(path: Path, meta: dict[str, str], patience: float) -> LedgerStore:
    return LedgerStore(path, meta, any_key=True, patience=patience)


def _meta(path: Path) -> dict[str, str]:
    with _reading(path) as db:
        try:
            return dict(db.rows("SELECT name, value FROM meta", ()))
        except db.failed as error:
            raise ConfigError(
                f"the file {db.name} holds no ledger",
                check="ledger file",
                hint="give the file that a broker wrote",
            ) from error


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
    import sqlalchemy as sa

    engine = sa.create_engine(
        f"sqlite+pysqlite:///{path}", pool_size=8, max_overflow=64, hide_parameters=True
    )

    def configure(connection: Any, _record: Any) -> None:
        # The driver's own BEGIN comes too late and without the lock; ``begin`` sends ours.
        connection.isolation_level = None
        for pragma in (
            f"busy_timeout = {int(TURN_SECONDS * 1000)}",
            "synchronous = FULL",
            # SQLite changes a table by replacing it, so foreign keys are checked at the end.
            f"foreign_keys = {'OFF' if migrating else 'ON'}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        switch_to_wal(connection, patience=TURN_SECONDS)

    sa.event.listen(engine, "connect", configure)
    return engine


def _failure(path: Path, error: Exception, late: bool) -> SealtrainError | None:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if name in _DAMAGED:
        return DataInvalid(
            f"the broker's database {path.name} is damaged",
            check="database file",
            got=name,
            hint="put a backup into a new folder: sealtrain broker restore",
        )
    if not (late or isinstance(error, sqlite3.OperationalError)):
        return None
    return Unreachable(
        "the broker's database cannot be read or written",
        check="database file",
        got=name,
        hint="check the disk, the permissions and that no other program locks the file",
    )


BACKEND: Final = Backend(
    place=Path,
    schemes=(),
    parse=Path,
    ledger=_ledger,
    meta=_meta,
    reading=_reading,
    engine=_engine,
    writing="BEGIN IMMEDIATE",
    only_reads="BEGIN",
    failure=_failure,
    broken="PRAGMA foreign_key_check",
    identity=None,
)
