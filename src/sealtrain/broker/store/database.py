"""Connections to a broker's database: its transactions and their failures.

A transaction that writes begins with one lock, so its reads are still true when it commits,
whatever other threads or processes do: SQLite's write lock, in PostgreSQL an advisory lock. A
transaction that only reads takes no lock and sees everything that was committed when it began.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from sealtrain.errors import SealtrainError, Unreachable
from sealtrain.ledger.backend import Place
from sealtrain.ledger.backends import backend_of

_READING: Final = "only_reads"
_PLACE: Final = "place"


def engine_of(where: Place, *, migrating: bool = False) -> Engine:
    """Connections to a database.

    Args:
        where: File, whose folder must exist; or a database on a server.
        migrating: Foreign keys may break until the migration's end.
    """
    backend = backend_of(where)
    engine: Engine = backend.engine(where, migrating)

    def first(connection: Connection) -> None:
        only_reads = connection.get_execution_options().get(_READING, False)
        connection.exec_driver_sql(backend.only_reads if only_reads else backend.writing)

    sa.event.listen(engine, "begin", first)
    engine.update_execution_options(**{_PLACE: where})
    return engine


def place_of(engine: Engine) -> Place:
    """Where the database of an engine is that ``engine_of`` made."""
    place: Place = engine.get_execution_options()[_PLACE]
    return place


@contextmanager
def begin_transaction(engine: Engine) -> Iterator[Connection]:
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


def _failure(engine: Engine, error: Exception) -> SealtrainError | None:
    """Our error for a database that does not answer; ``None`` for a bug of ours."""
    where = place_of(engine)
    cause: Any = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    late = isinstance(error, sa.exc.TimeoutError)
    return backend_of(where).failure(where, cause, late)
