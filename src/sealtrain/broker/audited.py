"""What the database beside a ledger holds for an audit, read without changing it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sealtrain.consortium.audit import References
from sealtrain.consortium.ledger_file import read_only

__all__ = ["Beside", "read_beside"]

# Plain SQL and no table object: an auditor needs no broker installed.
_REFERENCES = {
    "decisions": "SELECT ledger_index, digest FROM decisions",
    "datasets": "SELECT ledger_index, digest FROM datasets",
    "manifests": "SELECT ledger_index, digest FROM manifests",
    "withdrawals": "SELECT ledger_index, digest FROM withdrawals",
    "successions": "SELECT ledger_index, digest FROM successions",
    "reservations": "SELECT ledger_index, run_id FROM reservations",
}
_NOTES = "SELECT size, note FROM cosigned ORDER BY size"
_LINES = "SELECT line FROM cosignatures WHERE size = ? ORDER BY owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a broker's database says of its ledger.

    Attributes:
        references: Which entries it names.
        checkpoints: Cosigned checkpoints that it keeps.
        problem: Why some of it could not be read, ``None`` when all was.
    """

    references: References
    checkpoints: tuple[str, ...]
    problem: str | None


def read_beside(path: Path) -> Beside:
    """Read a broker's database.

    Args:
        path: ``broker.sqlite`` in the broker's state folder.

    Raises:
        DataInvalid: There is no such file.
    """
    found: dict[str, dict[int, str]] = {table: {} for table in _REFERENCES}
    notes: list[str] = []
    problem = None
    with closing(read_only(path)) as db:
        try:
            for table, query in _REFERENCES.items():
                found[table] = {int(index): str(value) for index, value in db.execute(query)}
            if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'cosigned'").fetchone():
                for size, note in db.execute(_NOTES).fetchall():
                    lines = [str(row[0]) for row in db.execute(_LINES, (size,))]
                    notes.append(str(note) + "".join(lines))
        except (sqlite3.Error, ValueError) as error:
            problem = f"SQLite cannot read all of {path.name}: {type(error).__name__}"
    return Beside(references=References(**found), checkpoints=tuple(notes), problem=problem)
