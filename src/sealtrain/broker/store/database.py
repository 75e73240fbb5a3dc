"""Connections to a broker's database: its address, its transactions and their failures.

A transaction that writes begins with one lock, so its reads are still true when it commits,
whatever other threads or processes do: SQLite's write lock, in PostgreSQL an advisory lock. A
transaction that only reads takes no lock and sees everything that was committed when it began.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from sealtrain.base.sqlite import switch_to_wal
from sealtrain.errors import SealtrainError, Unreachable
from sealtrain.ledger.postgres import Postgres, is_unreachable, unreachable

__all__ = ["begin", "begun", "commit", "engine_of", "failures"]

_BUSY_MILLISECONDS: Final = 20_000
_LOCK: Final = 0x5354_4252  # "STBR"
_READING: Final = "only_reads"


def engine_of(where: Path | Postgres, *, migrating: bool = False) -> Engine:
    """Connections to a database.

    Args:
        where: SQLite file, whose folder must exist; or a PostgreSQL database.
        migrating: Do not enforce foreign keys: SQLite changes a table by replacing it.
    """
    if isinstance(where, Postgres):
        return _postgres(where)
    engine = sa.create_engine(
        f"sqlite+pysqlite:///{where}", pool_size=8, max_overflow=64, hide_parameters=True
    )

    def configure(connection: Any, _record: Any) -> None:
        # The driver's own BEGIN comes too late and without the lock; ``begin`` sends ours.
        connection.isolation_level = None
        for pragma in (
            f"busy_timeout = {_BUSY_MILLISECONDS}",
            "synchronous = FULL",
            f"foreign_keys = {'OFF' if migrating else 'ON'}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        switch_to_wal(connection, patience=_BUSY_MILLISECONDS / 1000)

    sa.event.listen(engine, "connect", configure)
    _begin_by(engine, writing="BEGIN IMMEDIATE", reading="BEGIN")
    return engine


@contextmanager
def begun(engine: Engine) -> Iterator[Connection]:
    """A transaction: everything inside happens, or nothing if the block raises.

    Raises:
        Unreachable: The database cannot be read or written. Nothing happened; unless the
            connection to a server broke during the commit, which may have happened.
    """
    # Closing it undoes uncommitted changes.
    with failures(engine), begin(engine) as connection:
        yield connection
        commit(connection)


@contextmanager
def failures(engine: Engine) -> Iterator[None]:
    """Turn database errors in the block into ours.

    Raises:
        Unreachable: The database cannot be read or written.
    """
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError, engine.dialect.loaded_dbapi.Error) as error:
        failure = _failure(engine, error)
        if failure is None:
            raise
        raise failure from error


def commit(connection: Connection) -> None:
    """Commit the transaction that ``begin`` began.

    Raises:
        DBAPIError: The database did not commit.
        Unreachable: The database had already undone the transaction.
    """
    # SQLite may end a transaction by itself, when the disk is full; the driver then says nothing.
    if getattr(connection.connection.driver_connection, "in_transaction", True) is False:
        raise Unreachable(
            "the broker's database undid a transaction before it was committed",
            check="database file",
        )
    connection.commit()


def begin(engine: Engine, *, reading: bool = False) -> Connection:
    """A connection in a transaction. One that broke since its last use is made anew, once.

    Args:
        engine: Of the database.
        reading: Take no lock; nothing may be written.
    """
    for last in (False, True):
        connection = engine.connect().execution_options(**{_READING: reading})
        try:
            connection.begin()
        except sa.exc.DBAPIError as error:
            connection.close()
            if last or not error.connection_invalidated:
                raise
        except BaseException:
            connection.close()
            raise
        else:
            break
    return connection


def _postgres(where: Postgres) -> Engine:
    # All wait for one lock: more connections would only wait in the server.
    engine = sa.create_engine(
        "postgresql+psycopg://",
        hide_parameters=True,  # of statements, in messages
        creator=where.connect,
        pool_size=4,
        max_overflow=4,
        pool_timeout=_BUSY_MILLISECONDS / 1000,
        execution_options={"place": where.name},
    )
    # The connection is in autocommit: the driver would send its BEGIN as a separate round trip.
    _begin_by(
        engine,
        writing=f"BEGIN; SELECT pg_advisory_xact_lock({_LOCK})",
        reading="BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    )
    return engine


def _begin_by(engine: Engine, *, writing: str, reading: str) -> None:
    def first(connection: Connection) -> None:
        only_reads = connection.get_execution_options().get(_READING, False)
        connection.exec_driver_sql(reading if only_reads else writing)

    sa.event.listen(engine, "begin", first)


def _failure(engine: Engine, error: Exception) -> SealtrainError | None:
    """Our error for a database that does not answer; ``None`` for a bug of ours."""
    name = engine.get_execution_options().get("place")
    cause: Any = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    if name is not None:
        late = isinstance(error, sa.exc.TimeoutError)
        return unreachable(name, cause) if late or is_unreachable(cause) else None
    late = isinstance(error, sa.exc.TimeoutError)
    if not (late or isinstance(cause, engine.dialect.loaded_dbapi.OperationalError)):
        return None
    return Unreachable(
        "the broker's database cannot be read or written",
        check="database file",
        got=getattr(cause, "sqlite_errorname", type(error).__name__),
        hint="check the disk, the permissions and that no other program locks the file",
    )
