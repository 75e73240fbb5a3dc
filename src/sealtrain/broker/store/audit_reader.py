"""Reads the database beside a ledger for an audit, without changing it."""

from __future__ import annotations

from dataclasses import dataclass

from sealtrain.ledger.backend import Place
from sealtrain.ledger.reading import open_reading
from sealtrain.ledger.references import TABLES, References

# Plain SQL and no table object: an auditor needs no broker installed.
_RUNS = "SELECT run_id, ledger_index FROM runs"
_NOTES = "SELECT size, note FROM cosigned ORDER BY size"
_LINES = "SELECT owner, line FROM cosignatures WHERE size = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStatements:
    """A broker's database's statements about its ledger.

    Attributes:
        references: The entries it names.
        checkpoints: Cosigned checkpoints that it keeps.
        problem: Why part of it could not be read; ``None`` when all of it was.
    """

    references: References
    checkpoints: tuple[str, ...]
    problem: str | None


def read_beside(where: Place) -> LedgerStatements:
    """Read a broker's database.

    Args:
        where: ``broker.sqlite`` in the broker's state folder, or the database on a server.

    Raises:
        DataInvalid: There is no such file.
        Unreachable: The server does not answer.
    """
    found: dict[str, dict[int, str]] = {name: {} for name in TABLES}
    notes: list[str] = []
    runs: dict[str, int | None] = {}
    problem = None
    with open_reading(where) as db:
        try:
            with db.part():
                for name, table in TABLES.items():
                    query = f"SELECT ledger_index, {table.column} FROM {name}"  # noqa: S608  # ours
                    found[name] = {int(index): str(value) for index, value in db.rows(query, ())}
                runs = {
                    str(run_id): None if index is None else int(index)
                    for run_id, index in db.rows(_RUNS, ())
                }
                for size, note in list(db.rows(_NOTES, ())):
                    lines = sorted((str(row[0]), str(row[1])) for row in db.rows(_LINES, (size,)))
                    notes.append(str(note) + "".join(line for _, line in lines))
        except (db.failed, ValueError) as error:
            problem = f"not all of {db.name} can be read: {type(error).__name__}"
    return LedgerStatements(
        references=References(tables=found, runs=runs), checkpoints=tuple(notes), problem=problem
    )
