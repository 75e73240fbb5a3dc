"""The ledger: durable, append-only, provable, shared by threads and processes."""

from __future__ import annotations

import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.base.canonical import canonical_json
from sealtrain.errors import DataInvalid, LedgerInconsistent, LimitExceeded, Unreachable
from sealtrain.ledger import ledger as ledger_module
from sealtrain.ledger.ledger import (
    MAX_ENTRY_BYTES,
    Ledger,
    LedgerProof,
    verify_extension,
    verify_proof,
)
from sealtrain.ledger.postgres import Postgres
from sealtrain.signing import merkle
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.errors import ProofInvalid
from sealtrain.signing.tree_head import verify_tree_head

ORIGIN = "sealtrain/ledger/test"
SIGNER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
NOW = 1_772_366_400


def open_ledger(where: Path | Postgres, **changes: Any) -> Ledger:
    settings = {"origin": ORIGIN, "signer": SIGNER, "clock": lambda: NOW, **changes}
    return Ledger.open(where, **settings)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite3"


@pytest.fixture
def ledger(database: Path | Postgres) -> Iterator[Ledger]:
    """In a file, then in a database of a real server."""
    with open_ledger(database) as opened:
        yield opened


@pytest.fixture
def filed(path: Path) -> Iterator[Ledger]:
    with open_ledger(path) as opened:
        yield opened


def test_entries_come_back_in_their_order_with_their_time(ledger: Ledger) -> None:
    assert ledger.append("approval", {"owner": "ada"}) == 0
    assert ledger.append("release", {"run_id": "00"}) == 1
    assert ledger.size == 2
    assert ledger.entry(0) == {
        "kind": "approval",
        "at": "2026-03-01T12:00:00Z",
        "body": {"owner": "ada"},
    }
    assert [entry["kind"] for entry in ledger.entries()] == ["approval", "release"]


def test_pages_are_bounded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.append_all(("a", {"n": n}) for n in range(7))
    assert [entry["body"]["n"] for entry in ledger.entries(2, 3)] == [2, 3, 4]
    assert ledger.entries(7) == ledger.entries(0, 0) == ledger.entries(0, -1) == []
    monkeypatch.setattr(ledger_module, "MAX_PAGE", 5)
    assert len(ledger.entries(0, 1000)) == 5


@pytest.mark.parametrize("index", [-1, 2, 2**40])
def test_an_entry_that_is_not_there_is_refused(ledger: Ledger, index: int) -> None:
    ledger.append_all([("a", {}), ("b", {})])
    for call in (ledger.entry, ledger.proof):
        with pytest.raises(DataInvalid, check=carries(check="index", expected="below 2")):
            call(index)


def test_roots_of_all_sizes_are_those_of_the_plain_tree(ledger: Ledger) -> None:
    ledger.append_all(("a", {"n": n}) for n in range(33))
    leaves = [merkle.leaf_hash(canonical_json(entry)) for entry in ledger.entries()]
    for size in range(34):
        assert ledger.root(size) == merkle.root_of(leaves[:size]).hex()
    assert ledger.root() == ledger.root(33)
    for size in (-1, 34):
        with pytest.raises(DataInvalid):
            ledger.root(size)


def test_one_by_one_and_at_once_make_the_same_tree(ledger: Ledger, tmp_path: Path) -> None:
    bodies = [{"n": n} for n in range(13)]
    for body in bodies:
        ledger.append("a", body)
    with open_ledger(tmp_path / "other") as other:
        assert other.append_all(("a", body) for body in bodies) == range(13)
        assert other.root() == ledger.root()


def test_every_entry_is_provable_at_every_moment(ledger: Ledger) -> None:
    for number in range(12):
        ledger.append("a", {"n": number})
        for index in range(number + 1):
            proof = LedgerProof.from_dict(ledger.proof(index).to_dict())
            assert verify_proof(proof, SIGNER.public, origin=ORIGIN) == ledger.entry(index)


def test_what_was_just_written_is_proven_from_memory_and_what_others_wrote_from_disk(
    database: Path | Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_ledger(database) as first, open_ledger(database) as second:
        assert second.append("b", {"n": 0}) == 0
        assert first.append("a", {"n": 1}) == 1
        assert first.proof(0).entry["kind"] == "b"
        assert second.append("b", {"n": 2}) == 2
        assert first.proof(2).size == 3
        index = first.append("a", {"n": 3})
        with monkeypatch.context() as patched:
            patched.setattr(type(first.stored), "read", None)
            patched.setattr(type(first.stored), "size", None)
            proof = first.proof(index)
        assert verify_proof(proof, SIGNER.public, origin=ORIGIN)["body"] == {"n": 3}


def test_what_lately_was_used_takes_bounded_memory(ledger: Ledger) -> None:
    ledger.append_all(("a", {"n": number}) for number in range(1000))
    kept = ledger.stored.kept
    assert [index for index in range(1000) if kept.entry(index)] == list(range(744, 1000))
    assert kept.size == 1000
    assert ledger.entry(0)["body"] == {"n": 0}


def test_every_earlier_checkpoint_extends_to_the_present_one(ledger: Ledger) -> None:
    kept = [ledger.checkpoint()]
    for number in range(12):
        ledger.append("a", {"n": number})
        kept.append(ledger.checkpoint())
    for size, older in enumerate(kept):
        path = ledger.consistency(size) if size else ()
        head = verify_extension(older, kept[-1], path, SIGNER.public, origin=ORIGIN)
        assert (head.size, head.root) == (12, ledger.root())
    with pytest.raises(ProofInvalid):
        ledger.consistency(0)
    with pytest.raises(ProofInvalid):
        ledger.consistency(5, 4)
    with pytest.raises(DataInvalid):
        ledger.consistency(5, 13)


def test_an_empty_ledger_has_a_checkpoint_too(ledger: Ledger) -> None:
    head = verify_tree_head(ledger.checkpoint(), SIGNER.public, origin=ORIGIN)
    assert (head.size, head.root) == (0, merkle.EMPTY_ROOT.hex())


def test_a_ledger_opened_again_is_the_same(database: Path | Postgres) -> None:
    with open_ledger(database) as first:
        first.append_all(("a", {"n": n}) for n in range(5))
        root = first.root()
    with open_ledger(database) as second:
        assert (second.size, second.root()) == (5, root)
        assert second.append("b", {}) == 5


def test_a_path_with_characters_of_addresses_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory#b%20c&d" / "ledger.sqlite"
    path.parent.mkdir()
    with open_ledger(path) as first:
        first.append("a", {})
    with open_ledger(path) as again:
        assert again.size == 1
    assert sorted(file.name for file in path.parent.iterdir()) == ["ledger.sqlite"]


def test_what_cannot_be_written_leaves_the_ledger_as_it_was(ledger: Ledger) -> None:
    ledger.append("a", {})
    refused: list[tuple[str, Any, type[Exception]]] = [
        ("Loud", {}, DataInvalid),
        ("", {}, DataInvalid),
        ("a", [], DataInvalid),
        ("a", {"x": float("nan")}, DataInvalid),
        ("a", {"x": 2**60}, DataInvalid),
        ("a", {"x": "y" * MAX_ENTRY_BYTES}, LimitExceeded),
    ]
    for kind, body, error in refused:
        with pytest.raises(error):
            ledger.append_all([("good", {}), (kind, body)])
    assert ledger.size == 1
    with pytest.raises(LimitExceeded):
        ledger.append_all(("a", {}) for _ in range(ledger_module.MAX_BATCH + 1))
    assert ledger.audit().size == 1


def test_nothing_appended_at_once_is_nothing(ledger: Ledger) -> None:
    assert list(ledger.append_all([])) == []
    assert ledger.size == 0


def test_the_file_is_private_and_durable_by_settings(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.dbapi2.connect

    def noted(*where: Any, **how: Any) -> sqlite3.Connection:
        opened.append(connect(*where, **how))
        return opened[-1]

    monkeypatch.setattr(sqlite3.dbapi2, "connect", noted)
    with open_ledger(path) as filed:
        filed.append("a", {})
        db = opened[-1]
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert db.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert len(modes) > 1
    assert not any(mode & 0o077 for mode in modes.values()), modes


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET data = x'7b7d' WHERE i = 0",
        "DELETE FROM entry WHERE i = 2",
        "INSERT OR REPLACE INTO entry (i, data) VALUES (0, x'7b7d')",
        "INSERT INTO entry (i, data) VALUES (9, x'7b7d')",
        "INSERT OR IGNORE INTO entry (i, data) VALUES (1, x'7b7d')",
        "UPDATE node SET hash = zeroblob(32) WHERE level = 0",
        "DELETE FROM node WHERE level = 0",
        "INSERT OR REPLACE INTO node (level, i, hash) VALUES (0, 0, zeroblob(32))",
        "UPDATE meta SET value = 'x'",
        "DELETE FROM meta",
        "INSERT OR REPLACE INTO meta (name, value) VALUES ('origin', 'x')",
    ],
)
def test_the_file_itself_refuses_to_change_what_is_in_it(
    filed: Ledger, path: Path, statement: str
) -> None:
    filed.append_all(("a", {"n": n}) for n in range(3))
    root = filed.root()
    with (
        sqlite3.connect(path) as db,
        pytest.raises(
            sqlite3.IntegrityError, check=carries(sqlite_errorname="SQLITE_CONSTRAINT_TRIGGER")
        ),
    ):
        db.execute(statement)
    db.close()
    assert (filed.audit().size, filed.root()) == (3, root)


def test_another_origin_or_key_cannot_continue_a_ledger(database: Path | Postgres) -> None:
    open_ledger(database).close()
    with pytest.raises(
        LedgerInconsistent, check=carries(check="ledger origin", got="sealtrain/ledger/test")
    ):
        open_ledger(database, origin="sealtrain/ledger/other")
    other = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32))
    with pytest.raises(LedgerInconsistent, check=carries(check="ledger key_id")):
        open_ledger(database, signer=other)
    open_ledger(database).close()


def test_a_file_that_is_no_ledger_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"something else, longer than a header of sqlite" * 9)
    before = path.read_bytes()
    with pytest.raises(LedgerInconsistent):
        open_ledger(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_refused(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE other (x)")
    db.commit()
    db.close()
    with pytest.raises(LedgerInconsistent, check=carries(check="stored ledger")):
        open_ledger(path)


def test_a_folder_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        open_ledger(tmp_path / "nowhere" / "ledger")


def test_a_locked_file_is_unreachable_and_works_again_after(path: Path) -> None:
    with open_ledger(path, patience=0.05) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unreachable, check=carries(check="ledger file", got="SQLITE_BUSY")):
            ledger.append("a", {})
        other.execute("ROLLBACK")
        other.close()
        assert ledger.append("a", {}) == 0


def test_many_threads_append_through_one_ledger(ledger: Ledger) -> None:
    written: list[int] = []

    def write(writer: int) -> None:
        for number in range(20):
            index = ledger.append("a", {"writer": writer, "number": number})
            assert ledger.proof(index).index == index
            written.append(index)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(written) == list(range(100))
    assert ledger.audit().size == 100


def test_two_ledgers_in_one_place_take_turns(database: Path | Postgres) -> None:
    with open_ledger(database) as first, open_ledger(database) as second:
        for number in range(10):
            assert first.append("a", {"n": number}) == 2 * number
            assert second.append("b", {"n": number}) == 2 * number + 1
        assert first.root() == second.root()
        assert first.audit().size == second.audit().size == 20
