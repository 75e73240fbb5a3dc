"""A broker's empty database, migrated once a process: that takes most of a small world's time."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from sealtrain.broker.store.schema import bring_on

__all__ = ["with_tables"]


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
