"""Read a stored ledger for an audit: change nothing, and read on past every fault.

``LedgerStore`` refuses a ledger that was touched; an audit has to say where. What is stored besides
the entries is compared with them here: structure and triggers, what the ledger says about itself,
and every hash. The same queries read the file and the schema in PostgreSQL.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from sealtrain.errors import DataInvalid
from sealtrain.ledger.audit import Auditor
from sealtrain.ledger.postgres import Postgres, unreachable
from sealtrain.ledger.sqlite_store import APPLICATION_ID, SCHEMA, VERSION
from sealtrain.signing import merkle

__all__ = ["Reading", "audit_stored", "entries_in", "open_reading"]

_MAX_GAP = 10_000
"""Most missing entries in a row; a file with a wider gap is not a ledger."""
_MAX_PRINTED = 200

Rows = Callable[[str, Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A database that is read and not changed, as of one moment.

    Attributes:
        name: For messages.
        rows: Rows of a query, ``?`` for each parameter.
        part: Surrounds what may fail; ``failed`` is raised there, and reading goes on after it.
        failed: What it raises.
        form: Says what is wrong with a ledger's tables and triggers, in lines.
    """

    name: str
    rows: Rows
    part: Callable[[], Any]
    failed: type[Exception]
    form: Callable[[], Iterable[str]]


@contextmanager
def open_reading(where: Path | Postgres) -> Iterator[Reading]:
    """Open a database so that nothing can change it.

    Raises:
        DataInvalid: There is no such file.
        Unreachable: The server does not answer.
    """
    with _file(where) if isinstance(where, Path) else _server(where) as opened:
        yield opened


@contextmanager
def _file(path: Path) -> Iterator[Reading]:
    if not path.is_file():
        raise DataInvalid(f"cannot read {path}: no such file", hint="check the path")
    # An URI, because only that takes the mode; "?" and "#" in a path would end it.
    name = str(path.resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    with closing(sqlite3.connect(f"file:{name}?mode=ro", uri=True, timeout=20.0)) as db:
        yield Reading(path.name, db.execute, nullcontext, sqlite3.Error, lambda: _file_form(db))


@contextmanager
def _server(where: Postgres) -> Iterator[Reading]:
    import psycopg

    from sealtrain.ledger.postgres_schema import STRUCTURE, structure

    def rows(query: str, parameters: Sequence[Any]) -> Iterable[Any]:
        # Streamed: a ledger may be longer than memory.
        with connection.cursor(f"audit_{next(numbers)}") as cursor:
            cursor.execute(query.replace("?", "%s").encode(), parameters)
            yield from cursor

    def form() -> Iterable[str]:
        found = structure(connection)
        yield from (f"its schema has an unexpected part: {line}" for line in found - STRUCTURE)
        yield from (f"its schema has no: {line}" for line in STRUCTURE - found)

    numbers = count()
    try:
        connection = where.connect()
    except psycopg.Error as error:
        raise unreachable(where.name, error) from error
    with closing(connection):
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET search_path = sealtrain_ledger, public")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield Reading(where.name, rows, connection.transaction, psycopg.Error, form)


def entries_in(where: Path | Postgres) -> int:
    """About how many entries a ledger has, for a progress bar; 0 when it cannot be read.

    Raises:
        DataInvalid: There is no such file.
        Unreachable: The server does not answer.
    """
    with open_reading(where) as db:
        try:
            [[found]] = db.rows("SELECT count(*) FROM entry", ())
        except db.failed:
            return 0
        return int(found)


def audit_stored(
    where: Path | Postgres,
    auditor: Auditor,
    meta: dict[str, str],
    progress: Callable[[int], None] = lambda _done: None,
) -> None:
    """Give every entry of a ledger to an audit, with what is wrong with how it is stored.

    Args:
        where: The file, or the database.
        auditor: Takes entries and findings.
        meta: What the ledger must say about itself beside the key it was made with: its origin.
        progress: Called with the number of entries read.

    Raises:
        DataInvalid: There is no such file.
        Unreachable: The server does not answer.
    """
    with open_reading(where) as db:
        steps: tuple[Callable[[], None], ...] = (
            lambda: _form(db, auditor, meta),
            lambda: _entries(db.rows, auditor, progress),
            lambda: _hashes(db.rows, auditor),
        )
        for step in steps:
            try:
                with db.part():
                    step()
            except db.failed as error:
                name = getattr(error, "sqlite_errorname", type(error).__name__)
                auditor.add_finding("file", f"not all of {db.name} can be read: {name}")


def _form(db: Reading, auditor: Auditor, meta: dict[str, str]) -> None:
    for problem in db.form():
        auditor.add_finding("file", problem[:_MAX_PRINTED])
    said = dict(db.rows("SELECT name, value FROM meta", ()))
    auditor.made_with(said.pop("key_id", None))
    if said != meta:
        auditor.add_finding("file", f"it says of itself {said!s:.300}, not {meta}")


def _file_form(db: sqlite3.Connection) -> Iterator[str]:
    for name, expected in (("application_id", APPLICATION_ID), ("user_version", VERSION)):
        got = db.execute(f"PRAGMA {name}").fetchone()[0]
        if got != expected:
            yield f"its {name} is {got}, not {expected}"
    rows = db.execute("SELECT name, sql FROM sqlite_schema WHERE sql > ''").fetchall()
    for name, sql in rows:
        if sql not in SCHEMA:
            yield f"its schema has another {name}"
    for sql in sorted(set(SCHEMA) - {sql for _, sql in rows}):
        yield f"its schema has no: {sql}"


def _entries(db: Rows, auditor: Auditor, progress: Callable[[int], None]) -> None:
    rows = db(
        "SELECT entry.i, data, hash FROM entry LEFT JOIN node ON level = 0 AND node.i = entry.i "
        "ORDER BY entry.i",
        (),
    )
    for index, data, stored in rows:
        if not isinstance(index, int) or not auditor.size <= index < auditor.size + _MAX_GAP:
            auditor.add_finding("file", f"it has an entry at {index!s:.40}, which is no place")
            continue
        while auditor.size < index:
            auditor.lost(_leaf(db, auditor.size))
        raw = data if isinstance(data, bytes) else str(data).encode()
        if not isinstance(data, bytes):
            auditor.add_finding("file", "the entry is not stored as bytes", index)
        if stored != merkle.leaf_hash(raw):
            problem = "no hash of it is stored" if stored is None else "it has another hash"
            auditor.add_finding("stored hash", f"{problem}: the entry was changed or added", index)
        auditor.entry(raw)
        progress(1)
    # Entries that were cut off may have left their hashes.
    while (leaf := _leaf(db, auditor.size)) is not None:
        auditor.lost(leaf)


def _hashes(db: Rows, auditor: Auditor) -> None:
    """Inner hashes against the two below each: a changed one is named itself, not its whole way."""
    size = auditor.size
    level = 1
    while size >> level:
        rows = db(
            "SELECT own.i, own.hash, a.hash, b.hash FROM node AS own "
            "LEFT JOIN node AS a ON a.level = own.level - 1 AND a.i = 2 * own.i "
            "LEFT JOIN node AS b ON b.level = own.level - 1 AND b.i = 2 * own.i + 1 "
            "WHERE own.level = ? AND own.i < ? ORDER BY own.i",
            (level, size >> level),
        )
        count = 0
        for position, own, left, right in rows:
            count += 1
            if not _follows(own, left, right):
                auditor.add_finding("stored hash", f"hash {(level, position)} does not follow")
        missing = (size >> level) - count
        if missing:
            auditor.add_finding("stored hash", f"{missing} hashes of level {level} are missing")
        level += 1
    [[extra]] = db(
        "SELECT count(*) FROM node WHERE level < 0 OR level >= ? OR i < 0 OR i >= (? >> level)",
        (level, size),
    )
    if extra:
        auditor.add_finding("stored hash", f"{extra} hashes belong to no entry")


def _follows(own: Any, left: Any, right: Any) -> bool:
    return (
        isinstance(left, bytes)
        and isinstance(right, bytes)
        and bool(own == merkle.node_hash(left, right))
    )


def _leaf(db: Rows, index: int) -> bytes | None:
    row = next(iter(db("SELECT hash FROM node WHERE level = 0 AND i = ?", (index,))), None)
    if row is None or not isinstance(row[0], bytes) or len(row[0]) != merkle.HASH_BYTES:
        return None
    return bytes(row[0])
