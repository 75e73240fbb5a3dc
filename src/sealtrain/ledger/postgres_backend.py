"""The backend on a server: tables and ledger in one PostgreSQL database.

Its driver comes with the ``postgres`` extra and is imported where a database is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import SealtrainError
from sealtrain.ledger.backend import TURN_SECONDS, Backend, Reading
from sealtrain.ledger.postgres import SCHEMES, Postgres, is_unreachable, unreachable
from sealtrain.ledger.tree import StoredTree

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

_LOCK: Final = 0x5354_4252  # "STBR"


def _ledger(where: Postgres, meta: dict[str, str], _patience: float) -> StoredTree:
    from sealtrain.ledger.postgres_store import PostgresLedger

    return PostgresLedger(where, meta, any_key=True)


def _meta(where: Postgres) -> dict[str, str]:
    from sealtrain.ledger.postgres_store import meta_of

    return meta_of(where)


@contextmanager
def _reading(where: Postgres) -> Iterator[Reading]:
    import psycopg

    from sealtrain.ledger.postgres_schema import STRUCTURE, structure

    def rows(query: str, parameters: Sequence[Any]) -> Iterable[Any]:
        # Streamed: a ledger may be longer than memory.
        with connection.cursor(f"audit_{next(numbers)}") as cursor:
            cursor.execute(query.replace("?", "%s").encode(), parameters)
            yield from cursor

    def form() -> Iterable[str]:
        found = structure(connection)
        yield from (f"its schema has an unexpected part: {line}" for line in found - STRUCTURE)
        yield from (f"its schema has no: {line}" for line in STRUCTURE - found)

    numbers = count()
    try:
        connection = where.connect()
    except psycopg.Error as error:
        raise unreachable(where.name, error) from error
    with closing(connection):
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET search_path = sealtrain_ledger, public")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield Reading(where.name, rows, connection.transaction, psycopg.Error, form)


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
    meta=_meta,
    reading=_reading,
    engine=_engine,
    # The connection is in autocommit: the driver would send its BEGIN as a separate round trip.
    writing=f"BEGIN; SELECT pg_advisory_xact_lock({_LOCK})",
    only_reads="BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    failure=_failure,
    broken=None,
    identity="SELECT system_identifier || '/' || (SELECT oid FROM pg_database "
    "WHERE datname = current_database()) FROM pg_control_system()",
)
