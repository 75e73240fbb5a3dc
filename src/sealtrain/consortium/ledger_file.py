"""Read a ledger's file for an audit: without changing it, past everything that is wrong with it.

``LedgerStore`` refuses a file that was touched; an audit has to say where. What the file stores
besides the entries is compared with them here: schema and triggers, what it says about itself, and
every hash.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from sealtrain.consortium.audit import Auditor
from sealtrain.consortium.ledger_store import APPLICATION_ID, SCHEMA, VERSION
from sealtrain.errors import DataInvalid
from sealtrain.records import merkle

__all__ = ["audit_file", "entries_in", "read_only"]

_MAX_GAP = 10_000
"""Missing entries in a row that are counted; a wider gap is not a ledger any more."""
_MAX_PRINTED = 200


def read_only(path: Path) -> sqlite3.Connection:
    """Open an SQLite file so that nothing can change it.

    Raises:
        DataInvalid: There is no such file.
    """
    if not path.is_file():
        raise DataInvalid(f"cannot read {path}: no such file", hint="check the path")
    # An URI, because only that takes the mode; "?" and "#" in a path would end it.
    name = str(path.resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return sqlite3.connect(f"file:{name}?mode=ro", uri=True, timeout=20.0)


def entries_in(path: Path) -> int:
    """About how many entries a ledger's file has, for a progress bar; 0 when it cannot be read.

    Raises:
        DataInvalid: There is no such file.
    """
    with closing(read_only(path)) as db:
        try:
            return int(db.execute("SELECT count(*) FROM entry").fetchone()[0])
        except sqlite3.Error:
            return 0


def audit_file(
    path: Path,
    auditor: Auditor,
    meta: dict[str, str],
    progress: Callable[[int], None] = lambda _done: None,
) -> None:
    """Give every entry of a ledger's file to an audit, with what is wrong with the file itself.

    Args:
        path: The file.
        auditor: Takes entries and findings.
        meta: What the file must say about itself: origin and key id.
        progress: Told of entries as they are read.

    Raises:
        DataInvalid: There is no such file.
    """
    with closing(read_only(path)) as db:
        steps: tuple[Callable[[], None], ...] = (
            lambda: _form(db, auditor, meta),
            lambda: _entries(db, auditor, progress),
            lambda: _hashes(db, auditor),
        )
        for step in steps:
            try:
                step()
            except sqlite3.Error as error:
                name = getattr(error, "sqlite_errorname", type(error).__name__)
                auditor.found("file", f"SQLite cannot read all of the file: {name}")


def _form(db: sqlite3.Connection, auditor: Auditor, meta: dict[str, str]) -> None:
    for name, expected in (("application_id", APPLICATION_ID), ("user_version", VERSION)):
        got = db.execute(f"PRAGMA {name}").fetchone()[0]
        if got != expected:
            auditor.found("file", f"its {name} is {got}, not {expected}")
    rows = db.execute("SELECT name, sql FROM sqlite_schema WHERE sql > ''").fetchall()
    for name, sql in rows:
        if sql not in SCHEMA:
            auditor.found("file", f"its schema has another {name}")
    for sql in sorted(set(SCHEMA) - {sql for _, sql in rows}):
        auditor.found("file", f"its schema lacks: {sql[:_MAX_PRINTED]}")
    said = dict(db.execute("SELECT name, value FROM meta"))
    if said != meta:
        auditor.found("file", f"it says of itself {said!s:.300}, not {meta}")


def _entries(db: sqlite3.Connection, auditor: Auditor, progress: Callable[[int], None]) -> None:
    rows = db.execute(
        "SELECT entry.i, data, hash FROM entry LEFT JOIN node ON level = 0 AND node.i = entry.i "
        "ORDER BY entry.i"
    )
    for index, data, stored in rows:
        if not isinstance(index, int) or not auditor.size <= index < auditor.size + _MAX_GAP:
            auditor.found("file", f"it has an entry at {index!s:.40}, which is no place")
            continue
        while auditor.size < index:
            auditor.lost(_leaf(db, auditor.size))
        raw = data if isinstance(data, bytes) else str(data).encode()
        if not isinstance(data, bytes):
            auditor.found("file", "the entry is not stored as bytes", index)
        if stored != merkle.leaf_hash(raw):
            problem = "no hash of it is stored" if stored is None else "it has another hash"
            auditor.found("stored hash", f"{problem}: the entry was changed or added", index)
        auditor.entry(raw)
        progress(1)
    # Entries that were cut off may have left their hashes.
    while (leaf := _leaf(db, auditor.size)) is not None:
        auditor.lost(leaf)


def _hashes(db: sqlite3.Connection, auditor: Auditor) -> None:
    """Inner hashes against the two below each: a changed one is named itself, not its whole way."""
    size = auditor.size
    level = 1
    while size >> level:
        rows = db.execute(
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
                auditor.found("stored hash", f"hash {(level, position)} does not follow")
        if count != size >> level:
            auditor.found("stored hash", f"{(size >> level) - count} hashes of level {level} lack")
        level += 1
    extra = db.execute(
        "SELECT count(*) FROM node WHERE level < 0 OR level >= ? OR i < 0 OR i >= (? >> level)",
        (level, size),
    ).fetchone()[0]
    if extra:
        auditor.found("stored hash", f"{extra} hashes are of no entry here")


def _follows(own: Any, left: Any, right: Any) -> bool:
    return (
        isinstance(left, bytes)
        and isinstance(right, bytes)
        and bool(own == merkle.node_hash(left, right))
    )


def _leaf(db: sqlite3.Connection, index: int) -> bytes | None:
    row = db.execute("SELECT hash FROM node WHERE level = 0 AND i = ?", (index,)).fetchone()
    if row is None or not isinstance(row[0], bytes) or len(row[0]) != merkle.HASH_BYTES:
        return None
    return bytes(row[0])
