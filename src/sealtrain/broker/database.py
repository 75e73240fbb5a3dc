"""Connections to a broker's database: where it is, how a transaction begins and how it fails.

Every transaction begins with one lock, so what it read is still true when it commits, whatever
other threads or processes do: SQLite's write lock, in PostgreSQL an advisory lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from sealtrain.consortium.postgres import Postgres, is_unreachable, unreachable
from sealtrain.errors import KeyFileInvalid, SealtrainError, Unreachable, UsageError
from sealtrain.keys.keyfile import read_secret_file

__all__ = ["DATABASE", "LEDGER", "begun", "database_of", "engine_of", "places"]

DATABASE: Final = "broker.sqlite"
LEDGER: Final = "ledger.sqlite"
_BUSY_MILLISECONDS: Final = 20_000
_LOCK: Final = 0x5354_4252  # "STBR"
_MAX_ADDRESS: Final = 4096


def database_of(address: str) -> Postgres:
    """The database that an option names.

    Args:
        address: ``postgresql+psycopg://…`` without a password, or ``file:PATH`` of a file of mode
            0600 that holds the address, with its password.

    Raises:
        UsageError: It is no such address, or tells its password to everybody.
        KeyFileInvalid: The file cannot be read, or others may read it too.
        ExtraMissing: The ``postgres`` extra is not installed.
    """
    scheme, separator, rest = address.partition(":")
    if separator and scheme == "file":
        data = read_secret_file(Path(rest.removeprefix("//")), max_bytes=_MAX_ADDRESS)
        try:
            return Postgres.parse(data.decode("utf-8"))
        except UnicodeDecodeError:
            raise KeyFileInvalid(
                f"{rest} holds no address of a database", check="database"
            ) from None
    found = Postgres.parse(address)
    if found.has_password:
        raise UsageError(
            "a password on a command line is read by every user of the machine",
            check="database",
            expected="file:PATH of a file with mode 0600 that holds the address",
        )
    return found


def places(state: Path, address: str | None) -> tuple[Path | Postgres, Path | Postgres]:
    """Where a broker's tables and where its ledger lie.

    Args:
        state: Folder of its state.
        address: As of ``database_of``, with its errors; ``None`` for files in the folder.
    """
    if address is None:
        return state / DATABASE, state / LEDGER
    found = database_of(address)
    return found, found


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
            "journal_mode = WAL",
            "synchronous = FULL",
            f"foreign_keys = {'OFF' if migrating else 'ON'}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    sa.event.listen(engine, "connect", configure)
    sa.event.listen(engine, "begin", lambda one: one.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


@contextmanager
def begun(engine: Engine) -> Iterator[Connection]:
    """A transaction: everything inside happens, or nothing if the block raises.

    Raises:
        Unreachable: The database cannot be read or written. Nothing happened; unless the
            connection to a server broke during the commit, which may have happened.
    """
    try:
        with _first(engine) as connection:  # closing it undoes what is not committed
            yield connection
            connection.commit()
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
        failure = _failure(engine, error)
        if failure is None:
            raise
        raise failure from error


def _first(engine: Engine) -> Connection:
    """A connection that has the lock. One that broke since its last use is made anew, once."""
    for last in (False, True):
        connection = engine.connect()
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
    def connect() -> Any:
        connection = where.connect()
        connection.autocommit = False
        return connection

    # All wait for one lock: more connections would only wait in the server.
    engine = sa.create_engine(
        "postgresql+psycopg://",
        hide_parameters=True,  # of statements, in messages
        creator=connect,
        pool_size=4,
        max_overflow=4,
        pool_timeout=_BUSY_MILLISECONDS / 1000,
        execution_options={"place": where.name},
    )
    lock = f"SELECT pg_advisory_xact_lock({_LOCK})"
    sa.event.listen(engine, "begin", lambda one: one.exec_driver_sql(lock))
    return engine


def _failure(engine: Engine, error: Exception) -> SealtrainError | None:
    """Our error for a database that does not answer; ``None`` for a mistake of ours."""
    name = engine.get_execution_options().get("place")
    cause: Any = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    if name is not None:
        late = isinstance(error, sa.exc.TimeoutError)
        return unreachable(name, cause) if late or is_unreachable(cause) else None
    if not isinstance(error, sa.exc.OperationalError | sa.exc.TimeoutError):
        return None
    return Unreachable(
        "the broker's database cannot be read or written",
        check="database file",
        got=getattr(cause, "sqlite_errorname", type(error).__name__),
        hint="check the disk, the permissions and that no other program locks the file",
    )
