"""Copies of a broker's state while it runs, and putting one back.

A backup is a tar file of exactly three members: ``manifest.json`` with sizes and hashes, then both
databases. No secret is in it: the root secret is kept elsewhere.

1. ``back_up`` holds the database's write lock while it copies, so that both copies are of one
   moment: no release, decision or dataset is in one and not in the other.
2. ``restore`` checks everything: names, sizes and hashes, every hash of the ledger, and that the
   ledger holds what the database says it does. It fills an empty folder, wholly or not at all.
3. ``restore`` ends leases and challenges that must not be used again (``store.restored``).

A broker in PostgreSQL is copied with PostgreSQL's own programs.

Restoring an old backup sets the ledger back: owners and auditors with a newer checkpoint detect it
(spec/ledger.md).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, BinaryIO, Final, Literal

from pydantic import Field

from sealtrain.base.canonical import parse_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.files import open_regular, sync
from sealtrain.base.models import Hex64, StrictModel, Timestamp, load_model
from sealtrain.base.tarheaders import PLAIN, content, headers
from sealtrain.broker.address import DATABASE, LEDGER
from sealtrain.broker.store.database import begin_transaction, engine_of
from sealtrain.broker.store.restore import end_leases
from sealtrain.errors import (
    AlreadyExists,
    ConfigError,
    DataInvalid,
    LedgerInconsistent,
    Unreachable,
)
from sealtrain.ledger.store import LedgerStore

_MANIFEST: Final = "manifest.json"
_FILES: Final = (DATABASE, LEDGER)
_MAX_MANIFEST: Final = 64 << 10
_MAX_FILE: Final = 1 << 40
_BUSY_SECONDS: Final = 20.0
_BLOCK: Final = 1 << 20


class BackupFile(StrictModel):
    """One database of a backup."""

    name: Literal["broker.sqlite", "ledger.sqlite"]
    size: int = Field(ge=0, le=_MAX_FILE)
    sha256: Hex64


class BackupManifest(StrictModel):
    """A backup's manifest: sizes and hashes of its contents."""

    version: Literal[1]
    made_at: Timestamp
    origin: str = Field(max_length=256)
    key_id: str = Field(max_length=128)
    ledger_size: int = Field(ge=0)
    ledger_root: Hex64
    files: tuple[BackupFile, ...] = Field(min_length=2, max_length=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A restored backup.

    Attributes:
        manifest: Of the backup.
        leases_ended: Leases that were live in it.
    """

    manifest: BackupManifest
    leases_ended: int


def back_up(state: Path, out: Path, *, now: int) -> BackupManifest:
    """Write a backup of a broker's state; the broker may be running.

    Args:
        state: Its folder.
        out: File to write; must not exist.
        now: Seconds since the epoch, for the manifest.

    Raises:
        ConfigError: No broker's state lies there.
        AlreadyExists: ``out`` exists.
        LedgerInconsistent: The ledger was changed from outside; a copy of it is worthless.
        Unreachable: Something cannot be read or written; no file is left.
    """
    missing = [name for name in _FILES if not (state / name).is_file()]
    if missing:
        raise ConfigError(
            f"{state} does not hold a broker's state",
            check="broker state",
            got=f"no {', '.join(missing)}",
            hint="give the folder of --state; a broker in PostgreSQL is copied by pg_dump",
        )
    if out.exists():
        raise AlreadyExists(f"{out} exists already", check="backup", hint="write a new file")
    with _errors("the backup"), _folder_beside(out) as folder:
        _copy_both(state, folder)
        meta, size, root = _audit(folder / LEDGER)
        manifest = BackupManifest(
            version=1,
            made_at=to_rfc3339(now),
            origin=meta["origin"],
            key_id=meta["key_id"],
            ledger_size=size,
            ledger_root=root,
            files=tuple(_describe(folder / name) for name in _FILES),
        )
        packed = folder / "packed"
        with _private(packed) as target, tarfile.open(fileobj=target, mode="w") as archive:
            head = manifest.to_bytes()
            _add(archive, _MANIFEST, BytesIO(head), len(head))
            for file in manifest.files:
                with (folder / file.name).open("rb") as source:
                    _add(archive, file.name, source, file.size)
        sync(packed)
        try:
            os.link(packed, out)  # unlike a rename, it never replaces anything
        except FileExistsError:
            raise AlreadyExists(f"{out} exists already", check="backup") from None
        sync(out.parent)
    return manifest


def restore(file: Path, state: Path, *, now: int) -> Restored:
    """Restore a backup.

    Args:
        file: The backup.
        state: Folder to fill; must be empty or absent.
        now: Seconds since the epoch.

    Raises:
        AlreadyExists: ``state`` holds something.
        DataInvalid: ``file`` is not a whole backup.
        LedgerInconsistent: Its ledger is inconsistent in itself or with its database.
        Unreachable: Something cannot be read or written; ``state`` is as before.
    """
    if state.exists() and (not state.is_dir() or any(state.iterdir())):
        raise AlreadyExists(
            f"{state} is not empty", check="broker state", hint="restore into a new folder"
        )
    with _errors("the backup"), _folder_beside(state) as folder:
        manifest = _unpack(file, folder)
        meta = {"origin": manifest.origin, "key_id": manifest.key_id}
        _, size, root = _audit(folder / LEDGER, meta)
        if (size, root) != (manifest.ledger_size, manifest.ledger_root):
            raise LedgerInconsistent(
                "the backup's ledger does not match its manifest",
                check="ledger root",
                got=f"{root} at size {size}",
                expected=f"{manifest.ledger_root} at size {manifest.ledger_size}",
            )
        leases = _end_leases(folder, now, meta)
        for name in _FILES:
            sync(folder / name)
        sync(folder)
        folder.replace(state)
        sync(state.parent)
    return Restored(manifest=manifest, leases_ended=leases)


def _copy_both(state: Path, folder: Path) -> None:
    with closing(_open(state / DATABASE)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        try:
            for name in _FILES:
                target = folder / name
                _private(target).close()
                with closing(_open(state / name)) as source, closing(_open(target)) as copy:
                    source.backup(copy)
                    copy.execute("PRAGMA journal_mode = DELETE")  # one file each
        finally:
            lock.execute("ROLLBACK")


def _audit(path: Path, meta: dict[str, str] | None = None) -> tuple[dict[str, str], int, str]:
    """A ledger file's metadata, size and root, every hash recomputed."""
    if meta is None:
        with closing(_open(path)) as db:
            meta = dict(db.execute("SELECT name, value FROM meta"))
    store = LedgerStore(path, meta)
    try:
        size = store.recompute()
        root = store.subtree(0, size).hex()
    finally:
        store.close()
    with closing(_open(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    return meta, size, root


def _end_leases(folder: Path, now: int, meta: dict[str, str]) -> int:
    """Check the database against its ledger, then end leases and challenges."""
    with closing(_open(folder / DATABASE)) as db:
        if db.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
            raise DataInvalid("the backup's database is damaged", check="database")
    ledger, engine = LedgerStore(folder / LEDGER, meta), engine_of(folder / DATABASE)
    try:
        with begin_transaction(engine) as connection:
            done = end_leases(connection, ledger, meta["origin"], now)
    finally:
        engine.dispose()
        ledger.close()
    for name in _FILES:
        with closing(_open(folder / name)) as db:
            db.execute("PRAGMA journal_mode = DELETE")
    return done


def _unpack(file: Path, folder: Path) -> BackupManifest:
    try:
        with os.fdopen(open_regular(file), "rb") as source:
            listed = headers(source, file.name)
            manifest = load_model(
                BackupManifest,
                parse_json(_member(source, listed, _MANIFEST, _MAX_MANIFEST).read()),
                DataInvalid,
                "backup manifest",
            )
            if tuple(file.name for file in manifest.files) != _FILES:
                raise DataInvalid("the backup does not name both databases", check="backup")
            for entry in manifest.files:
                _extract(
                    _member(source, listed, entry.name, entry.size), folder / entry.name, entry
                )
            if next(listed, None) is not None:
                raise DataInvalid("the backup holds unexpected members", check="backup")
    except (tarfile.TarError, EOFError) as error:
        raise DataInvalid("the file is not a backup", check="backup") from error
    return manifest


def _member(
    source: BinaryIO, listed: Iterator[tarfile.TarInfo], name: str, max_bytes: int
) -> BinaryIO:
    found = next(listed, None)
    if (
        found is None
        or found.type not in PLAIN
        or found.issparse()
        or found.name != name
        or not 0 <= found.size <= max_bytes
    ):
        raise DataInvalid(f"the backup's member {name} is missing or out of place", check="backup")
    return content(source, found)


def _extract(data: IO[bytes], target: Path, expected: BackupFile) -> None:
    digest, size = hashlib.sha256(), 0
    with _private(target) as out:
        while block := data.read(_BLOCK):
            digest.update(block)
            size += len(block)
            out.write(block)
    if (size, digest.hexdigest()) != (expected.size, expected.sha256):
        raise DataInvalid(
            f"{expected.name} of the backup is damaged",
            check="backup hash",
            got=f"{digest.hexdigest()}, {size} bytes",
            expected=f"{expected.sha256}, {expected.size} bytes",
        )


def _describe(path: Path) -> BackupFile:
    digest = hashlib.sha256()
    with path.open("rb") as data:
        while block := data.read(_BLOCK):
            digest.update(block)
    return BackupFile.model_validate(
        {"name": path.name, "size": path.stat().st_size, "sha256": digest.hexdigest()}
    )


def _add(archive: tarfile.TarFile, name: str, data: IO[bytes], size: int) -> None:
    head = tarfile.TarInfo(name)
    head.size, head.mode = size, 0o600
    archive.addfile(head, data)


def _private(path: Path) -> IO[bytes]:
    """A new file that only its owner reads."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)


@contextmanager
def _folder_beside(path: Path) -> Iterator[Path]:
    """A private folder on the same file system, gone afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield folder
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


@contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        if name in ("SQLITE_CORRUPT", "SQLITE_NOTADB") or "no such" in str(error):
            raise DataInvalid(f"{what} is not a broker's database", check="backup") from error
        raise Unreachable(
            f"{what} cannot be read or written",
            check="database file",
            got=name,
            hint="check the disk and the permissions",
        ) from error
    except OSError as error:
        raise Unreachable(
            f"{what} cannot be read or written",
            check="file",
            got=error.strerror or type(error).__name__,
            hint="check the disk and the permissions",
        ) from error
