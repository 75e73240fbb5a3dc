"""A broker's empty database, migrated once a process: that takes most of a small world's time.

Where this is imported, all databases of the process share the statements that SQLAlchemy compiled,
which otherwise each database of each small world would compile anew.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from sealtrain.broker.store.schema import bring_on


def with_tables(path: Path) -> Path:
    """Make a file of SQLite in which a broker's store finds its tables.

    Args:
        path: Of the file, which is not there.
    """
    path.write_bytes(_empty())
    return path


@cache
def _empty() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "broker.sqlite")
        bring_on(path)
        return path.read_bytes()


class _Statements(dict[Any, Any]):
    """Compiled statements by what they say, for every database of one kind and version."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_without_database(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_without_database(key), value)


def _without_database(key: Any) -> tuple[Any, ...]:
    dialect, *rest = key
    version = getattr(dialect, "server_version_info", None)
    return type(dialect), version, dialect.paramstyle, *rest


_statements = _Statements()


@sa.event.listens_for(Engine, "engine_connect")
def _share(connection: Connection) -> None:
    connection.execution_options(compiled_cache=_statements)
