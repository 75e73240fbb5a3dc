"""Whoever has the ledger's file tries to change history; whoever kept a checkpoint notices."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.base.canonical import canonical_json
from sealtrain.errors import LedgerInconsistent, SignatureInvalid
from sealtrain.ledger.ledger import Ledger, verify_extension, verify_proof
from sealtrain.signing import merkle
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.errors import ProofInvalid

pytestmark = pytest.mark.claim("C13")

ORIGIN = "sealtrain/ledger/attack"
SIGNER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
THIEF = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32))
ENTRIES = 13


def open_ledger(path: Path, signer: Ed25519Signer = SIGNER, origin: str = ORIGIN) -> Ledger:
    return Ledger.open(path, origin=origin, signer=signer, clock=lambda: 1_772_366_400)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed ledger with some history."""
    path = tmp_path / "ledger.sqlite3"
    with open_ledger(path) as ledger:
        ledger.append_all(("approval", {"n": n}) for n in range(ENTRIES))
    return path


def checkpoint_of(path: Path) -> str:
    with open_ledger(path) as ledger:
        return ledger.checkpoint()


def edit(path: Path, *statements: str) -> None:
    """Edit the file as somebody who has it: triggers are lifted and put back."""
    db = sqlite3.connect(path, isolation_level=None)
    triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        db.execute(statement)
    for _, sql in triggers:
        db.execute(sql)
    db.close()


FORGED = canonical_json({"kind": "approval", "at": "2026-03-01T12:00:00Z", "body": {"n": 99}}).hex()


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE entry SET data = x'FORGED' WHERE i = 5"],
        ["UPDATE entry SET data = (SELECT data FROM entry WHERE i = 4) WHERE i = 5"],
        ["DELETE FROM entry WHERE i = 5"],
        ["DELETE FROM entry WHERE i = 0"],
        ["DELETE FROM entry WHERE i = 12"],
        ["INSERT INTO entry (i, data) VALUES (13, x'FORGED')"],
        ["INSERT INTO entry (i, data) VALUES (-1, x'FORGED')"],
        ["UPDATE node SET hash = zeroblob(32) WHERE level = 0 AND i = 5"],
        ["UPDATE node SET hash = zeroblob(32) WHERE level = 3 AND i = 0"],
        ["DELETE FROM node WHERE level = 2 AND i = 1"],
        ["INSERT INTO node (level, i, hash) VALUES (0, 99, zeroblob(32))"],
        ["INSERT INTO node (level, i, hash) VALUES (9, 0, zeroblob(32))"],
        ["DELETE FROM node"],
        ["DELETE FROM entry"],
    ],
    ids=lambda statements: statements[0][:58],
)
def test_an_edited_file_does_not_open(path: Path, statements: list[str]) -> None:
    edit(path, *(statement.replace("FORGED", FORGED) for statement in statements))
    with pytest.raises(LedgerInconsistent, check=carries(check="stored ledger")):
        open_ledger(path)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER entry_no_update",
        "DROP TRIGGER node_new",
        "CREATE TRIGGER quiet AFTER INSERT ON entry BEGIN DELETE FROM entry WHERE i = new.i; END",
        "CREATE TABLE spare (x)",
        "PRAGMA user_version = 2",
        "PRAGMA application_id = 1",
    ],
)
def test_a_file_with_another_schema_does_not_open(path: Path, statement: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(statement)
    db.close()
    with pytest.raises(LedgerInconsistent, check=carries(check="stored ledger")):
        open_ledger(path)


def test_a_damaged_page_does_not_open(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = bytes(data).index(b'"n":7')
    data[at + 4] ^= 1
    path.write_bytes(data)
    with pytest.raises(LedgerInconsistent):
        open_ledger(path)


def rewritten(path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Path:
    """The same origin and key, another history: what a dishonest operator can make."""
    with open_ledger(path) as honest:
        entries = change(honest.entries())
    other = path.with_name("rewritten.sqlite3")
    with open_ledger(other) as forged:
        forged.append_all((entry["kind"], entry["body"]) for entry in entries)
    return other


HISTORIES: dict[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]] = {
    "an entry changed": lambda old: [*old[:5], {"kind": "approval", "body": {"n": 99}}, *old[6:]],
    "an entry dropped": lambda old: [*old[:5], *old[6:]],
    "cut off": lambda old: old[:-1],
    "emptied": lambda _: [],
    "two swapped": lambda old: [*old[:5], old[6], old[5], *old[7:]],
    "one put in front": lambda old: [{"kind": "approval", "body": {}}, *old],
    "forked and longer": lambda old: [*old[:5], *[{"kind": "release", "body": {}}] * 20],
}


@pytest.mark.parametrize("change", HISTORIES.values(), ids=HISTORIES)
def test_a_consistent_rewrite_is_noticed_by_whoever_kept_a_checkpoint(
    path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
) -> None:
    kept = checkpoint_of(path)
    with open_ledger(rewritten(path, change)) as forged:
        with pytest.raises(LedgerInconsistent, check=carries(check="ledger checkpoint")):
            forged.audit([kept])
        proof = forged.consistency(ENTRIES) if forged.size >= ENTRIES else ()
        with pytest.raises(LedgerInconsistent):
            verify_extension(kept, forged.checkpoint(), proof, SIGNER.public, origin=ORIGIN)


def test_a_shorter_ledger_is_called_shorter(path: Path) -> None:
    kept = checkpoint_of(path)
    with open_ledger(rewritten(path, lambda old: old[:-3])) as forged:
        newer = forged.checkpoint()
    with pytest.raises(LedgerInconsistent, check=carries(check="ledger size", got="10")) as caught:
        verify_extension(kept, newer, [], SIGNER.public, origin=ORIGIN)
    assert (caught.value.got, caught.value.expected) == ("10", "at least 13")


def test_an_honest_ledger_passes_with_every_checkpoint_it_ever_signed(path: Path) -> None:
    kept = [checkpoint_of(path)]
    with open_ledger(path) as ledger:
        for _ in range(5):
            ledger.append("release", {})
            kept.append(ledger.checkpoint())
        assert ledger.audit(kept).size == ENTRIES + 5


@pytest.mark.negative(60)
def test_a_restored_backup_is_noticed(path: Path) -> None:
    backup = path.with_name("backup")
    shutil.copy(path, backup)
    with open_ledger(path) as ledger:
        ledger.append("revocation", {"owner": "ada"})
        kept = ledger.checkpoint()
    shutil.copy(backup, path)
    with open_ledger(path) as restored:
        with pytest.raises(
            LedgerInconsistent, check=carries(check="ledger checkpoint", got="only 13 entries")
        ):
            restored.audit([kept])
        restored.append("release", {})  # same size as before, another history
        with pytest.raises(LedgerInconsistent):
            restored.audit([kept])
        with pytest.raises(LedgerInconsistent):
            verify_extension(kept, restored.checkpoint(), [], SIGNER.public, origin=ORIGIN)


def test_a_proof_cannot_be_bent_to_another_entry_place_or_log(path: Path) -> None:
    with open_ledger(path) as ledger:
        good = ledger.proof(5)
        other = ledger.proof(6)
    bent = [
        good.model_copy(update={"entry": other.entry}),
        good.model_copy(update={"index": 6}),
        good.model_copy(update={"index": 6, "entry": other.entry}),
        good.model_copy(update={"path": other.path}),
        good.model_copy(update={"path": good.path[1:]}),
        good.model_copy(update={"size": 12}),
        good.model_copy(update={"entry": {**good.entry, "body": {"n": 5, "more": 1}}}),
        good.model_copy(update={"entry": {**good.entry, "body": {"n": 2**60}}}),
    ]
    for proof in bent:
        with pytest.raises(ProofInvalid):
            verify_proof(proof, SIGNER.public, origin=ORIGIN)
    assert verify_proof(good, SIGNER.public, origin=ORIGIN)["body"] == {"n": 5}


def test_a_shorter_tree_over_inner_nodes_is_not_the_log(path: Path) -> None:
    """Second preimage: pairs of leaf hashes offered as the entries of a tree half as long."""
    with open_ledger(path) as ledger:
        ledger.append_all(("approval", {}) for _ in range(3))
        root = bytes.fromhex(ledger.root())
        path_of_first = [bytes.fromhex(folder) for folder in ledger.proof(0).path]
        leaf = merkle.leaf_hash(canonical_json(ledger.entry(0)))
    pair = leaf + path_of_first[0]
    with pytest.raises(ProofInvalid, check=carries(check="merkle proof")):
        merkle.verify_inclusion(merkle.leaf_hash(pair), 0, 8, path_of_first[1:], root)
    node = merkle.node_hash(leaf, path_of_first[0])  # without the prefixes it would have passed
    assert merkle.verify_inclusion(node, 0, 8, path_of_first[1:], root) == root


def test_another_key_or_origin_signs_nothing_for_this_log(path: Path, tmp_path: Path) -> None:
    strangers = {"key": (THIEF, ORIGIN), "origin": (SIGNER, "sealtrain/ledger/elsewhere")}
    for name, (signer, origin) in strangers.items():
        with open_ledger(tmp_path / name, signer, origin) as other:
            other.append_all(("approval", {"n": n}) for n in range(ENTRIES))
            proof, newer = other.proof(5), other.checkpoint()
        with pytest.raises(SignatureInvalid):
            verify_proof(proof, SIGNER.public, origin=ORIGIN)
        with pytest.raises(SignatureInvalid):
            verify_extension(checkpoint_of(path), newer, [], SIGNER.public, origin=ORIGIN)


WRITER = """
import sys
from pathlib import Path
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sealtrain.ledger.ledger import Ledger
from sealtrain.signing.ed25519 import Ed25519Signer

signer = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
ledger = Ledger.open(Path(sys.argv[1]), origin=sys.argv[2], signer=signer, clock=lambda: 1)
for number in range(int(sys.argv[4])):
    index = ledger.append("crash", {"writer": sys.argv[3], "number": number})
    print(index, number, ledger.root(index + 1), flush=True)
"""


def start_writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), ORIGIN, name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def acknowledged(output: str) -> list[tuple[int, int, str]]:
    """Whole lines only: a killed writer may leave half a line."""
    lines = output[: output.rfind("\n") + 1].splitlines()
    return [(int(i), int(n), root) for i, n, root in (line.split() for line in lines)]


@pytest.mark.parametrize("after", [1, 25, 90])
def test_every_acknowledged_entry_survives_a_kill(tmp_path: Path, after: int) -> None:
    path = tmp_path / "ledger.sqlite3"
    writer = start_writer(path, "w", 100_000)
    assert writer.stdout is not None
    head = "".join(writer.stdout.readline() for _ in range(after))
    writer.send_signal(signal.SIGKILL)
    output = head + writer.stdout.read()
    writer.stdout.close()
    assert writer.wait() == -signal.SIGKILL
    seen = acknowledged(output)
    assert len(seen) >= after
    with open_ledger(path) as ledger:  # opening recomputes everything
        assert ledger.size in {len(seen), len(seen) + 1}  # the one in flight is whole or absent
        for index, number, root in seen[:: max(1, len(seen) // 50)] + seen[-1:]:
            assert ledger.entry(index)["body"] == {"writer": "w", "number": number}
            assert ledger.root(index + 1) == root
        assert ledger.append("after", {}) >= len(seen)


def test_several_processes_at_one_file_lose_and_mix_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    writers = [start_writer(path, name, 40) for name in ("a", "b", "c")]
    deadline = time.monotonic() + 60
    seen = []
    for writer in writers:
        output, _ = writer.communicate(timeout=deadline - time.monotonic())
        assert writer.returncode == 0
        seen += acknowledged(output)
    assert sorted(index for index, _, _ in seen) == list(range(120))
    with open_ledger(path) as ledger:
        assert ledger.size == 120
        for index, number, root in seen[::10]:
            assert ledger.entry(index)["body"]["number"] == number
            assert ledger.root(index + 1) == root
