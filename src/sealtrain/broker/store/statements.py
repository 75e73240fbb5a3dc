"""Statements of every challenge and release: built once, because building them is expensive.

SQLAlchemy assembles and looks up a statement anew at each use, which takes several times as long as
running it. ``run`` hands the driver the finished text; rows are the driver's tuples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect

from sealtrain.broker.store.tables import datasets, decisions, leases, run_datasets, runs
from sealtrain.consortium.receipts import OwnedId

Settled = dict[tuple[sa.Executable, tuple[Any, ...]], list[Any]]
"""Rows by statement and parameters."""

_key: Final[sa.BindParameter[str]] = sa.bindparam("key", type_=sa.Text)
_at: Final[sa.BindParameter[int]] = sa.bindparam("at", type_=sa.BigInteger)

DECISIONS: Final = (
    sa.select(decisions.c.envelope, decisions.c.ledger_index)
    .order_by(decisions.c.sequence)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
RUN: Final = (
    sa.select(
        runs.c.app_id,
        runs.c.compose_hash,
        runs.c.recipe_hash,
        runs.c.checkpoint_counter,
        runs.c.checkpoint_digest,
        run_datasets.c.owner_id,
        run_datasets.c.dataset_id,
        run_datasets.c.root,
    )
    .join_from(runs, run_datasets, isouter=True)
    .where(runs.c.run_id == _key)
)
"""A run, once for each of its datasets."""
BEGUN: Final = sa.select(runs.c.ledger_index).where(
    runs.c.recipe_hash == _key,
    runs.c.app_id == sa.bindparam("app", type_=sa.Text),
    runs.c.compose_hash == sa.bindparam("compose", type_=sa.Text),
    runs.c.ledger_index > sa.bindparam("after", type_=sa.BigInteger),
)
"""Where the runs of a target began, after a place of the ledger."""
SERIES: Final = (
    sa.select(datasets.c.app_id, datasets.c.compose_hash, datasets.c.envelope)
    .where(datasets.c.series == _key)
    .order_by(datasets.c.ledger_index)
)
"""Manifests of the members of a series, for every deployment."""
BEGIN_RUN: Final = runs.insert()
GIVE_DATA: Final = run_datasets.insert()
LEASE: Final = sa.select(
    leases.c.run_id, leases.c.not_after, leases.c.superseded_at, leases.c.instance_id
).where(leases.c.lease_id == _key)
END_LEASES: Final = (
    leases.update()
    .where(leases.c.run_id == _key, leases.c.superseded_at.is_(None))
    .values(superseded_at=_at)
)
GRANT_LEASE: Final = leases.insert()


def places(named: Sequence[OwnedId]) -> dict[str, str]:
    """Parameters for ``among``: some datasets twice, so that few statements suffice."""
    missing = _room(len(named)) - len(named)
    padded = [*named, *[named[0] if named else OwnedId("", "")] * missing]
    return {
        f"{column}{number}": value
        for number, owned in enumerate(padded)
        for column, value in zip(("owner", "id"), owned, strict=True)
    }


def among(
    owner_id: sa.ColumnElement[str], dataset_id: sa.ColumnElement[str], count: int
) -> sa.ColumnElement[bool]:
    """That two columns hold one of ``count`` datasets, each an id beside its owner's."""
    return sa.or_(
        *(
            sa.and_(
                owner_id == sa.bindparam(f"owner{number}", type_=sa.Text),
                dataset_id == sa.bindparam(f"id{number}", type_=sa.Text),
            )
            for number in range(_room(count))
        )
    )


def _room(count: int) -> int:
    """The next power of two."""
    return 1 << max(0, count - 1).bit_length()


@lru_cache(maxsize=16)
def select_datasets(count: int) -> sa.Select[Any]:
    """Manifests of ``count`` datasets, named by ``places``."""
    return (
        sa.select(
            datasets.c.owner_id,
            datasets.c.dataset_id,
            datasets.c.app_id,
            datasets.c.compose_hash,
            datasets.c.ledger_index,
            datasets.c.digest,
            datasets.c.envelope,
        )
        .where(among(datasets.c.owner_id, datasets.c.dataset_id, count))
        .order_by(datasets.c.ledger_index)
    )


def run_all(
    connection: Connection, statement: sa.Insert, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Insert rows; as ``run``."""
    text, _, order = _compile(statement, _DatabaseKind.of(connection.dialect), tuple(rows[0]))
    driver: Any = connection.connection.driver_connection
    given = rows if order is None else [[row[column] for column in order] for row in rows]
    driver.cursor().executemany(text, given)


def run(connection: Connection, statement: sa.Executable, values: Mapping[str, Any]) -> Any:
    """Run a statement.

    Args:
        connection: In a transaction.
        statement: One of the above, or another that is built once and expands nothing.
        values: Of its parameters; those of an insert name its columns.

    Returns:
        The driver's cursor.

    Raises:
        Error: Of the driver; ``database.failures`` translates it.
    """
    names = tuple(values) if isinstance(statement, sa.Insert) else None
    text, constants, order = _compile(statement, _DatabaseKind.of(connection.dialect), names)
    driver: Any = connection.connection.driver_connection
    given = {**constants, **values}
    return driver.execute(text, given if order is None else [given[column] for column in order])


def read_settled_rows(
    connection: Connection,
    statement: sa.Executable,
    values: Mapping[str, Any],
    settled: Settled | None,
) -> list[Any]:
    """Rows of owners' submissions, read once for all blocks that share a transaction.

    Args:
        connection: In a transaction.
        statement: As for ``run``, on tables that only change in transactions of one block.
        values: Of its parameters.
        settled: Rows already read in this transaction; ``None`` in a block that may change them.

    Raises:
        Error: As ``run``.
    """
    if settled is None:
        return list(run(connection, statement, values).fetchall())
    key = (statement, tuple(values.values()))
    if key not in settled:
        settled[key] = run(connection, statement, values).fetchall()
    return settled[key]


@dataclass(frozen=True, slots=True)
class _DatabaseKind:
    """A kind of database: those of one kind are told the same texts.

    Attributes:
        dialect: That of one of them.
        kind: Its class, by which kinds are compared.
    """

    dialect: Dialect = field(compare=False)
    kind: type[Dialect]

    @classmethod
    def of(cls, dialect: Dialect) -> _DatabaseKind:
        """The kind of a database with this dialect."""
        return cls(dialect, type(dialect))


@lru_cache(maxsize=128)
def _compile(
    statement: Any, kind: _DatabaseKind, names: tuple[str, ...] | None
) -> tuple[str, Mapping[str, Any], tuple[str, ...] | None]:
    """Text for a driver, its constants, and the order of parameters that have no name in it."""
    found = statement.compile(dialect=kind.dialect, column_keys=names)
    order = found.positiontup
    return str(found), dict(found.params), None if order is None else tuple(order)
