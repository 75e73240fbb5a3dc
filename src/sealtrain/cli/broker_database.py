"""``broker migrate`` and ``check_restored``: a broker's databases, while no broker serves them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.base.clock import system_clock
from sealtrain.base.extras import require_extras
from sealtrain.broker.address import database_of, places
from sealtrain.cli.output import Json, emit, say
from sealtrain.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from sealtrain.ledger.backend import Place

Database = Annotated[
    str | None,
    typer.Option(
        help="PostgreSQL instead of files: postgresql+psycopg://USER@HOST/DATABASE, or file:PATH "
        "of a private file with the address and its password."
    ),
]
State = Annotated[
    Path | None, typer.Option(help="Folder of the broker's state, where there is no --database.")
]


def tables_at(state: Path | None, database: str | None) -> Place:
    """Where the tables of a broker are that served before.

    Raises:
        UsageError: Neither or both are given, or the address names no database.
        ConfigError: The folder holds no broker's state.
    """
    if (state is None) == (database is None):
        raise UsageError("give either --state or --database", check="database")
    require_extras("the broker", "broker")
    where, _ = places(state or Path(), database)
    if isinstance(where, Path) and not where.is_file():
        raise ConfigError(
            f"{state} does not hold a broker's state",
            check="broker state",
            got=f"no {where.name}",
            hint="give the folder of --state; a broker makes it when it starts",
        )
    return where


def migrate(
    state: State = None,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Bring a broker's tables to this version. Stop its brokers and make a backup first."""
    where = tables_at(state, database)
    from sealtrain.broker.store.schema import bring_on

    before, after = bring_on(where)
    emit(
        as_json,
        {"before": before, "after": after},
        [f"version  {before or 'empty'} → {after}" if before != after else f"version  {after}"],
    )


def check_restored(
    database: Annotated[
        str, typer.Option(help="The database that pg_restore filled, as of broker serve.")
    ],
    as_json: Json = False,
) -> None:
    """Check a restored PostgreSQL database, so that a broker starts on it. Leases in it end."""
    require_extras("the broker", "broker")
    from sealtrain.broker.store.restore import settle

    where = database_of(database)
    done = settle(where, now=system_clock())
    say("compare the root with the newest tree head that an owner kept: sealtrain log audit")
    emit(
        as_json,
        {
            "database": where.name,
            "origin": done.origin,
            "ledger_size": done.size,
            "ledger_root": done.root,
            "leases_ended": done.leases_ended,
        },
        [
            f"database  {where.name}",
            f"ledger    {done.size} entries, root {done.root}",
            f"ended     {done.leases_ended} leases",
        ],
    )
