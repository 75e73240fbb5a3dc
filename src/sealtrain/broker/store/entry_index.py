"""By what entries of a ledger are found: what their bodies name, and their kind.

Every entry that the database reflects has its rows (``store.following``), refusals too. The rows
are in no ledger and prove nothing: a reader who must be sure asks for a proof of the entry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from sealtrain.broker.store.statements import run, run_all
from sealtrain.broker.store.tables import entry_index

SUBJECTS: Final = ("run_id", "submission_id", "compose_hash")
"""Fields of a body by which its entry is found."""
EVERY: Final = "*"
"""Subject of all entries."""
_HEX: Final = re.compile(r"[0-9a-f]{32}|[0-9a-f]{64}")
# Entries may be recorded anew, after a migration: what is there stays.
_ADD: Final[Mapping[str, sa.Insert]] = {
    "sqlite": sqlite.insert(entry_index).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(entry_index).on_conflict_do_nothing(),
}
_NAMED: Final = (
    sa.select(entry_index.c.ledger_index)
    .where(
        entry_index.c.subject == sa.bindparam("subject", type_=sa.Text),
        entry_index.c.ledger_index >= sa.bindparam("start", type_=sa.BigInteger),
    )
    .order_by(entry_index.c.ledger_index)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_OF_KIND: Final = _NAMED.where(entry_index.c.kind == sa.bindparam("kind", type_=sa.Text))


def subject_of(field: str, value: str) -> str:
    """How the index names a field's value."""
    return f"{field}:{value}"


def add_to_index(connection: Connection, first: int, entries: Sequence[bytes]) -> None:
    """Add entries.

    Args:
        connection: In a transaction.
        first: Index of the first of them.
        entries: As they are stored; the ledger wrote or verified them.
    """
    rows = [
        {"subject": subject, "ledger_index": index, "kind": kind}
        for index, data in enumerate(entries, start=first)
        for subject, kind in _rows(data)
    ]
    run_all(connection, _ADD[connection.dialect.name], rows)


def _rows(data: bytes) -> Iterator[tuple[str, str]]:
    entry = json.loads(data)
    kind, body = entry["kind"], entry["body"]
    yield EVERY, kind
    named: dict[str, None] = {}
    for field in SUBJECTS:
        values = [body.get(field)]
        if field == "run_id" and isinstance(body.get("parties"), list):
            values += body["parties"]
        for value in values:
            if isinstance(value, str) and _HEX.fullmatch(value):
                named[subject_of(field, value)] = None
    for subject in named:
        yield subject, kind


class EntryIndex:
    """Reads of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def find(self, subject: str, *, kind: str | None, start: int, limit: int) -> list[int]:
        """Indices of entries, in their order.

        Args:
            subject: What they name; ``EVERY`` for any.
            kind: Of the entries; ``None`` for any.
            start: Least index.
            limit: At most so many.
        """
        values: dict[str, Any] = {"subject": subject, "start": start, "limit": limit}
        if kind is None:
            rows = run(self._connection, _NAMED, values)
        else:
            rows = run(self._connection, _OF_KIND, {**values, "kind": kind})
        return [int(index) for (index,) in rows.fetchall()]

    def first(self, subject: str, kind: str) -> int | None:
        """Index of the first entry of a kind that names something."""
        found = self.find(subject, kind=kind, start=0, limit=1)
        return found[0] if found else None
