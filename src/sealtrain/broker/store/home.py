"""Which database on which server a broker's memory belongs to.

A copy of a database remembers leases that were replaced since and challenges that were used since.
So the database notes where it was made, and a broker does not start on one that finds itself
elsewhere: ``sealtrain broker restored`` checks it first and ends those (``store.restored``). A
standby that takes over is the same database. A file needs no note: ``store.backup`` puts it back.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.broker.store.tables import home
from sealtrain.errors import ConfigError

__all__ = ["move_in"]

_IDENTITY = sa.text(
    "SELECT system_identifier || '/' || (SELECT oid FROM pg_database "
    "WHERE datname = current_database()) FROM pg_control_system()"
)


def move_in(connection: Connection, *, anew: bool = False) -> None:
    """Note where the database is, the first time or ``anew``; else compare.

    Raises:
        ConfigError: It was copied from another place.
    """
    if connection.dialect.name != "postgresql":
        return
    here = str(connection.execute(_IDENTITY).scalar_one())
    if anew:
        connection.execute(home.delete())
    noted = connection.execute(sa.select(home.c.identity)).scalar_one_or_none()
    if noted is None:
        connection.execute(home.insert().values(identity=here))
    elif noted != here:
        raise ConfigError(
            "the database was restored or copied from another place",
            check="database",
            got=here,
            expected=noted,
            hint="when nothing serves the original any more: sealtrain broker restored",
        )
