"""Backup and restore: one moment, whole or not at all, nothing that ended goes on."""

from __future__ import annotations

import hashlib
import io
import os
import sqlite3
import tarfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from release_world import ReleaseWorld, release_world
from world import NOW

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.broker.store.backup import back_up, restore
from sealtrain.broker.store.memory import Store
from sealtrain.errors import (
    AlreadyExists,
    ConfigError,
    DataInvalid,
    LedgerInconsistent,
    SealtrainError,
    Unreachable,
)
from sealtrain.ledger.ledger import Ledger, verify_extension
from sealtrain.signing.errors import ProofInvalid


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleaseWorld]:
    with release_world(tmp_path_factory.mktemp("backup")) as made:
        made.obtain()
        yield made


def state_of(world: ReleaseWorld) -> Path:
    [state] = world.folder.glob("state-*")
    return state


def members(file: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(file) as archive:
        return [(item.name, archive.extractfile(item).read()) for item in archive]  # type: ignore[union-attr]


def pack(file: Path, parts: list[tuple[str, bytes]]) -> None:
    with tarfile.open(file, "w") as archive:
        for name, data in parts:
            head = tarfile.TarInfo(name)
            head.size = len(data)
            archive.addfile(head, io.BytesIO(data))


@pytest.mark.claim("C43")
def test_what_is_backed_up_comes_back(world: ReleaseWorld, tmp_path: Path) -> None:
    made = back_up(state_of(world), tmp_path / "b.tar", now=NOW)
    assert made.ledger_size == world.ledger.size
    assert made.ledger_root == world.ledger.root()
    assert [name for name, _ in members(tmp_path / "b.tar")] == [
        "manifest.json",
        "broker.sqlite",
        "ledger.sqlite",
    ]
    assert (tmp_path / "b.tar").stat().st_mode & 0o077 == 0
    done = restore(tmp_path / "b.tar", tmp_path / "new", now=NOW)
    assert done.manifest == made
    assert done.leases_ended == 1
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "broker.sqlite",
        "ledger.sqlite",
    ]
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    for path in (tmp_path / "new").iterdir():
        assert path.stat().st_mode & 0o077 == 0
    with Ledger.open(
        tmp_path / "new" / "ledger.sqlite", origin=world.ledger.origin, signer=world.keyring.signer
    ) as ledger:
        assert ledger.entries() == world.ledger.entries()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "new"]


def test_no_secret_is_in_it(world: ReleaseWorld, tmp_path: Path) -> None:
    back_up(state_of(world), tmp_path / "b.tar", now=NOW)
    data = (tmp_path / "b.tar").read_bytes()
    for secret in (bytes(range(32)), *(dataset.key.reveal() for dataset in world.sealed.values())):
        assert secret not in data
        assert secret.hex().encode() not in data


def test_what_ended_since_does_not_go_on(world: ReleaseWorld, tmp_path: Path) -> None:
    grant = world.obtain()
    back_up(state_of(world), tmp_path / "b.tar", now=NOW)
    restore(tmp_path / "b.tar", tmp_path / "new", now=NOW + 1)
    store = Store(tmp_path / "new" / "broker.sqlite")
    try:
        with world.store.reading() as before, store.reading() as transaction:
            # Challenges of the generation before serve nowhere: one may have been used since.
            memories = [logged.challenges.memory().generation for logged in (before, transaction)]
            assert memories[0] != memories[1]
            lease = transaction.lease(grant.lease_id)
            assert lease is not None
            assert lease.superseded
            assert transaction.counts(NOW + 1)[1] == 0
    finally:
        store.close()


@pytest.mark.claim("C43")
def test_a_copy_in_the_middle_of_work_is_of_one_moment(world: ReleaseWorld, tmp_path: Path) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                world.approve("hospital-c")
        except BaseException as error:
            failures.append(error)

    busy = threading.Thread(target=work)
    busy.start()
    try:
        for number in range(5):
            back_up(state_of(world), tmp_path / f"{number}.tar", now=NOW)
    finally:
        stop.set()
        busy.join()
    assert failures == []
    for number in range(5):
        restore(tmp_path / f"{number}.tar", tmp_path / f"{number}", now=NOW)
        with (
            closing(sqlite3.connect(tmp_path / f"{number}" / "broker.sqlite")) as db,
            closing(sqlite3.connect(tmp_path / f"{number}" / "ledger.sqlite")) as ledger,
        ):
            recorded = {row[0] for row in db.execute("SELECT ledger_index FROM decisions")}
            entries = [parse_json(row[0]) for row in ledger.execute("SELECT data FROM entry")]
            logged = {i for i, entry in enumerate(entries) if entry["kind"] == "approval"}
        assert recorded == logged


def test_a_broker_set_back_is_noticed_by_who_kept_a_newer_checkpoint(
    world: ReleaseWorld, tmp_path: Path
) -> None:
    back_up(state_of(world), tmp_path / "b.tar", now=NOW)
    world.approve("hospital-c")
    kept = world.ledger.checkpoint()
    restore(tmp_path / "b.tar", tmp_path / "new", now=NOW)
    with Ledger.open(
        tmp_path / "new" / "ledger.sqlite", origin=world.ledger.origin, signer=world.keyring.signer
    ) as ledger:
        with pytest.raises(LedgerInconsistent):
            ledger.audit([kept])
        # It grows past the kept checkpoint with other entries: a fork.
        for number in range(3):
            ledger.append("refusal", {"number": number})
        size = int(kept.splitlines()[1])
        with pytest.raises((LedgerInconsistent, ProofInvalid)):
            verify_extension(
                kept,
                ledger.checkpoint(),
                ledger.consistency(size),
                world.keyring.signer.public,
                origin=ledger.origin,
            )


def _changed(index: int, change: Callable[[bytes], bytes]) -> Callable[..., None]:
    def apply(parts: list[tuple[str, bytes]]) -> None:
        name, data = parts[index]
        parts[index] = (name, change(data))

    return apply


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    "change",
    [
        _changed(1, _flip),
        _changed(2, _flip),
        _changed(1, lambda data: data[:-1]),
        _changed(2, lambda data: data + b"x"),
        _changed(0, lambda data: data.replace(b'"version":1', b'"version":2')),
        _changed(0, lambda _data: b"{}"),
        lambda parts: parts.pop(),
        lambda parts: parts.pop(0),
        lambda parts: parts.reverse(),
        lambda parts: parts.append(("../escape", b"x")),
        lambda parts: parts.append(parts[1]),
        lambda parts: parts.__setitem__(1, ("../../broker.sqlite", parts[1][1])),
    ],
)
def test_a_damaged_or_forged_backup_leaves_nothing(
    world: ReleaseWorld, tmp_path: Path, change: Callable[..., None]
) -> None:
    back_up(state_of(world), tmp_path / "b.tar", now=NOW)
    parts = members(tmp_path / "b.tar")
    change(parts)
    pack(tmp_path / "forged.tar", parts)
    with pytest.raises(DataInvalid):
        restore(tmp_path / "forged.tar", tmp_path / "new", now=NOW)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "forged.tar"]


@pytest.mark.parametrize("data", [b"", b"not a tar", bytes(1024), b"\x1f\x8b\x08" + bytes(600)])
def test_what_is_no_backup_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "b.tar").write_bytes(data)
    with pytest.raises(DataInvalid):
        restore(tmp_path / "b.tar", tmp_path / "new", now=NOW)
    with pytest.raises(DataInvalid):
        restore(tmp_path / "none.tar", tmp_path / "new", now=NOW)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_of_a_backup_asks_for_no_memory(
    world: ReleaseWorld, tmp_path: Path, kind: bytes
) -> None:
    """The file holds, as a hole, all that its header says."""
    back_up(state_of(world), tmp_path / "b.tar", now=NOW)
    head = tarfile.TarInfo("a")
    head.type, head.size = kind, 1 << 30
    with (tmp_path / "forged.tar").open("wb") as file:
        file.write(head.tobuf(tarfile.GNU_FORMAT))
        file.seek(head.size, os.SEEK_CUR)
        file.write((tmp_path / "b.tar").read_bytes())
    tracemalloc.start()
    try:
        with pytest.raises(DataInvalid):
            restore(tmp_path / "forged.tar", tmp_path / "new", now=NOW)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "new").exists()


def test_a_rewritten_ledger_is_neither_copied_nor_put_back(
    world: ReleaseWorld, tmp_path: Path
) -> None:
    back_up(state_of(world), tmp_path / "b.tar", now=NOW)
    restore(tmp_path / "b.tar", tmp_path / "doctored", now=NOW)
    with closing(sqlite3.connect(tmp_path / "doctored" / "ledger.sqlite")) as db:
        [trigger] = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'entry_no_update'")
        db.execute("DROP TRIGGER entry_no_update")
        [[data]] = db.execute("SELECT data FROM entry WHERE i = 4")
        rewritten = data.replace(b"hospital-b", b"hospital-z")
        assert rewritten != data
        db.execute("UPDATE entry SET data = ? WHERE i = 4", (rewritten,))
        db.execute(trigger[0])
        db.commit()
    with pytest.raises(LedgerInconsistent):
        back_up(tmp_path / "doctored", tmp_path / "again.tar", now=NOW)
    assert not (tmp_path / "again.tar").exists()
    parts = members(tmp_path / "b.tar")
    manifest = parse_json(parts[0][1])
    data = (tmp_path / "doctored" / "ledger.sqlite").read_bytes()
    manifest["files"][1] |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    pack(
        tmp_path / "forged.tar",
        [("manifest.json", canonical_json(manifest)), parts[1], ("ledger.sqlite", data)],
    )
    with pytest.raises(LedgerInconsistent):
        restore(tmp_path / "forged.tar", tmp_path / "state", now=NOW)
    assert not (tmp_path / "state").exists()


def test_two_databases_of_different_moments_are_refused(
    world: ReleaseWorld, tmp_path: Path
) -> None:
    back_up(state_of(world), tmp_path / "old.tar", now=NOW)
    world.approve("hospital-c")
    back_up(state_of(world), tmp_path / "new.tar", now=NOW)
    old, new = members(tmp_path / "old.tar"), members(tmp_path / "new.tar")
    manifest = parse_json(old[0][1])
    manifest["files"][0] = parse_json(new[0][1])["files"][0]
    pack(tmp_path / "mixed.tar", [("manifest.json", canonical_json(manifest)), new[1], old[2]])
    with pytest.raises(LedgerInconsistent):
        restore(tmp_path / "mixed.tar", tmp_path / "state", now=NOW)
    assert not (tmp_path / "state").exists()


def test_nothing_is_overwritten(world: ReleaseWorld, tmp_path: Path) -> None:
    back_up(state_of(world), tmp_path / "b.tar", now=NOW)
    before = (tmp_path / "b.tar").read_bytes()
    with pytest.raises(AlreadyExists):
        back_up(state_of(world), tmp_path / "b.tar", now=NOW)
    assert (tmp_path / "b.tar").read_bytes() == before
    with pytest.raises(AlreadyExists):
        restore(tmp_path / "b.tar", state_of(world), now=NOW)
    with pytest.raises(AlreadyExists):
        restore(tmp_path / "b.tar", tmp_path / "b.tar", now=NOW)
    (tmp_path / "empty").mkdir()
    restore(tmp_path / "b.tar", tmp_path / "empty", now=NOW)
    with pytest.raises(ConfigError):
        back_up(tmp_path / "elsewhere", tmp_path / "c.tar", now=NOW)


def test_a_full_disk_leaves_no_file(
    world: ReleaseWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unreachable) as caught:
        back_up(state_of(world), tmp_path / "b.tar", now=NOW)
    assert isinstance(caught.value, SealtrainError)
    assert list(tmp_path.iterdir()) == []
