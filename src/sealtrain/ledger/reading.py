"""Read a stored ledger for an audit: change nothing, and read on past every fault.

``LedgerStore`` refuses a ledger that was touched; an audit has to say where. What is stored besides
the entries is compared with them here: structure and triggers, what the ledger says about itself,
and every hash. The same queries read every backend.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sealtrain.errors import ConfigError
from sealtrain.ledger.audit import Auditor
from sealtrain.ledger.backend import Place, Reading, Rows
from sealtrain.ledger.backends import backend_of
from sealtrain.signing import merkle

_MAX_GAP = 10_000
"""Most missing entries in a row; a file with a wider gap is not a ledger."""
_MAX_PRINTED = 200


def open_reading(where: Place) -> AbstractContextManager[Reading]:
    """Open a database so that nothing can change it.

    Raises:
        DataInvalid: There is no such file.
        Unreachable: The server does not answer.
    """
    return backend_of(where).reading(where)


def meta_of(where: Place) -> dict[str, str]:
    """What a ledger says about itself: its origin, and the id of the key it was made with.

    Raises:
        ConfigError: There is no ledger.
        DataInvalid: There is no such file.
        Unreachable: The server does not answer.
    """
    with open_reading(where) as db:
        try:
            with db.part():
                return dict(db.rows("SELECT name, value FROM meta", ()))
        except db.failed as error:
            raise ConfigError(
                f"{db.name} holds no ledger",
                check="database",
                hint="give the database that was restored",
            ) from error


def entries_in(where: Place) -> int:
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
    where: Place,
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
    auditor.take_key(said.pop("key_id", None))
    if said != meta:
        auditor.add_finding("file", f"it says of itself {said!s:.300}, not {meta}")


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
            auditor.take_missing(_leaf(db, auditor.size))
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
        auditor.take_missing(leaf)


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
