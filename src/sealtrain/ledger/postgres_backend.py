"""The backend on a server: tables and ledger in one PostgreSQL database.

The ledger has a schema of its own, which no migration touches. One advisory lock is for every
transaction that appends, whatever process begins it.

Its driver comes with the ``postgres`` extra and is imported where a database is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import SealtrainError
from sealtrain.ledger.backend import TURN_SECONDS, Backend, LedgerDatabase, Reading
from sealtrain.ledger.postgres import SCHEMES, Postgres, is_unreachable, unreachable
from sealtrain.ledger.tree import report_tampering

if TYPE_CHECKING:
    from psycopg import Connection
    from sqlalchemy.engine import Engine

_LOCK: Final = 0x5354_4252  # "STBR"
# The number of "STLG", as in the head of a ledger's SQLite file.
_LEDGER_LOCK: Final = "SELECT pg_advisory_xact_lock(1398033479)"
_BATCH: Final = 1000
_numbers: Final = count()
_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


def _ledger(where: Postgres, patience: float) -> LedgerDatabase:
    import psycopg

    from sealtrain.ledger.postgres_schema import MAKE, faults_of, insert, structure

    def failure(error: Exception) -> SealtrainError:
        if not isinstance(error, psycopg.Error) or is_unreachable(error):
            return unreachable(where.name, error)
        return report_tampering(f"PostgreSQL reports {type(error).__name__}")

    return LedgerDatabase(
        name=where.name,
        engine=_engine(where, False),
        schema="sealtrain_ledger",
        is_empty=lambda connection: not structure(connection),
        make=lambda connection: connection.execute(MAKE),
        faults=faults_of,
        insert=insert,
        stream=_stream,
        begin=f"BEGIN; {_LEDGER_LOCK}",
        lock=_LEDGER_LOCK,
        begin_snapshot=f"{_SNAPSHOT}; SET LOCAL statement_timeout = 0",  # of a long ledger
        failure=failure,
        patience=patience,
    )


def _stream(
    connection: Connection, query: str, parameters: Sequence[Any] | None = None
) -> Iterator[Any]:
    """Rows that stay with the server until they are read: a ledger may be longer than memory."""
    with connection.cursor(f"rows_{next(_numbers)}") as cursor:
        cursor.itersize = _BATCH
        cursor.execute(query.encode(), parameters)
        yield from cursor


@contextmanager
def _reading(where: Postgres) -> Iterator[Reading]:
    import psycopg

    from sealtrain.ledger.postgres_schema import faults_of

    def rows(query: str, parameters: Sequence[Any]) -> Iterable[Any]:
        return _stream(connection, query.replace("?", "%s"), parameters)

    try:
        connection = where.connect()
    except psycopg.Error as error:
        raise unreachable(where.name, error) from error
    with closing(connection):
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET search_path = sealtrain_ledger, public")
        connection.execute(_SNAPSHOT)
        yield Reading(
            where.name, rows, connection.transaction, psycopg.Error, lambda: faults_of(connection)
        )


def _engine(where: Postgres, _migrating: bool) -> Engine:
    import sqlalchemy as sa

    # All wait for one lock: more connections would only wait in the server.
    return sa.create_engine(
        "postgresql+psycopg://",
        hide_parameters=True,  # of statements, in messages
        creator=where.connect,
        pool_size=4,
        max_overflow=4,
        pool_timeout=TURN_SECONDS,
    )


def _failure(where: Postgres, error: Any, late: bool) -> SealtrainError | None:
    return unreachable(where.name, error) if late or is_unreachable(error) else None


BACKEND: Final = Backend(
    place=Postgres,
    schemes=SCHEMES,
    parse=Postgres.parse,
    ledger=_ledger,
    reading=_reading,
    engine=_engine,
    # The connection is in autocommit: the driver would send its BEGIN as a separate round trip.
    writing=f"BEGIN; SELECT pg_advisory_xact_lock({_LOCK})",
    only_reads=_SNAPSHOT,
    failure=_failure,
    broken=None,
    identity="SELECT system_identifier || '/' || (SELECT oid FROM pg_database "
    "WHERE datname = current_database()) FROM pg_control_system()",
)
