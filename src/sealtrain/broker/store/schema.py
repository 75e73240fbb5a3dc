"""Detects the version of a database's tables and migrates it to the current version.

A database is empty, of this version, of an earlier version (the operator makes a backup, then runs
``migrate``; it never runs by itself), or of an unknown version, which is refused.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from sealtrain.broker.store.database import begin_transaction, engine_of
from sealtrain.errors import ConfigError, DataInvalid
from sealtrain.ledger.backend import Place
from sealtrain.ledger.backends import backend_of

_FOLDER: Final = Path(__file__).with_name("migrations")


def migrations(connection: Connection | None = None) -> Config:
    """Alembic's settings, for one connection."""
    config = Config(stdout=sys.stdout)  # of now: by default it is what it was at the import
    # Alembic reads percent signs in it; a folder's name may have some.
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _head() -> str:
    head = ScriptDirectory.from_config(migrations()).get_current_head()
    assert head is not None  # noqa: S101  # there is at least the first migration
    return head


HEAD: Final = _head()
"""The version of the tables that this code works with."""


def version_of(connection: Connection) -> str | None:
    """The version a database says it has; ``None`` for one without tables.

    Raises:
        ConfigError: It has tables of another program.
    """
    found = MigrationContext.configure(connection).get_current_revision()
    if found is None and (tables := sa.inspect(connection).get_table_names()):
        raise ConfigError(
            "the database is not a broker's",
            check="schema version",
            got=f"tables {', '.join(sorted(tables))[:200]}, no version",
            expected="an empty database, or one that a broker made",
            hint="give the broker a database of its own",
        )
    return found


def check(connection: Connection) -> None:
    """Return if the database has the current tables; create them in an empty database.

    Raises:
        ConfigError: They are of another version.
    """
    found = version_of(connection)
    if found is None:
        migrate(connection)
    elif found != HEAD:
        raise ConfigError(
            "another version of sealtrain wrote the broker's database",
            check="schema version",
            got=found,
            expected=HEAD,
            hint="make a backup, then run: sealtrain broker migrate"
            if _is_known(found)
            else "run the version of sealtrain that wrote it",
        )


def migrate(connection: Connection) -> tuple[str | None, str]:
    """Bring the tables to the current version, inside the caller's transaction.

    Returns:
        The version before, ``None`` for an empty database, and the current version.

    Raises:
        ConfigError: The database was written by a version this code does not know.
    """
    found = version_of(connection)
    if found is not None and not _is_known(found):
        raise ConfigError(
            "a newer version of sealtrain wrote the broker's database",
            check="schema version",
            got=found,
            expected=f"at most {HEAD}",
            hint="run the version of sealtrain that wrote it",
        )
    command.upgrade(migrations(connection), "head")
    return found, HEAD


def bring_on(where: Place) -> tuple[str | None, str]:
    """Bring a database to the current version. Returns and raises as ``migrate``.

    Raises:
        DataInvalid: A step left rows with broken references; nothing was changed.
        Unreachable: It cannot be read or written.
    """
    engine = engine_of(where, migrating=True)
    try:
        with begin_transaction(engine) as connection:
            done = migrate(connection)
            if (query := backend_of(where).broken) is not None:
                broken = connection.exec_driver_sql(query).fetchall()
                if broken:
                    raise DataInvalid(
                        "the database would not fit together after the migration",
                        check="foreign keys",
                        got=f"{len(broken)} rows",
                        hint="restore the database from a backup, or report this; it is unchanged",
                    )
    finally:
        engine.dispose()
    return done


def _is_known(version: str) -> bool:
    scripts = ScriptDirectory.from_config(migrations())
    return version in {script.revision for script in scripts.walk_revisions()}
