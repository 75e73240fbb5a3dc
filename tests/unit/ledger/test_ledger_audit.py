"""An audit finds what was done to a ledger's files, and what a broker should not have done."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from release_world import ReleaseWorld, release_world
from typer.testing import CliRunner
from world import NOW, OWNERS, identity

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.broker.store.audit_reader import read_beside
from sealtrain.broker.store.recording import record
from sealtrain.cli import app
from sealtrain.client.grant import renew
from sealtrain.consortium.approvals import Decision, sign_decision
from sealtrain.consortium.members import Consortium
from sealtrain.errors import DataInvalid, Refused
from sealtrain.ledger.audit import Auditor, AuditReport
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.reading import audit_stored
from sealtrain.ledger.store import LedgerStore
from sealtrain.ledger.witness import cosign_tree_head, memory
from sealtrain.release.messages import CosignedCheckpoint, ledger_origin
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.identity import broker_id
from sealtrain.signing.needs import Needs
from sealtrain.signing.note import SignedNote

pytestmark = pytest.mark.claim("C13")

A, B, C = OWNERS


@dataclass(frozen=True, kw_only=True)
class History:
    """State of a broker that did its work, and what its owners kept."""

    state: Path
    older: Path
    """The same a while before."""
    kept: str
    """The newest checkpoint."""
    consortium: Consortium
    signer: Ed25519Signer
    target: dict[str, str]
    needs: Needs
    at: int

    @property
    def origin(self) -> str:
        return ledger_origin(self.consortium.consortium_id)

    @property
    def meta(self) -> dict[str, str]:
        return {"origin": self.origin, "key_id": self.signer.key_id}

    def audit(self, state: Path, *kept: str) -> AuditReport:
        beside = read_beside(state / "broker.sqlite")
        auditor = Auditor(
            self.consortium,
            self.signer.public,
            origin=self.origin,
            checkpoints=[*kept, *beside.checkpoints],
        )
        audit_stored(state / "ledger.sqlite", auditor, {"origin": self.origin})
        assert beside.problem is None
        return auditor.finish(beside.references)

    def entries(self) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.state / "ledger.sqlite")) as db:
            rows = db.execute("SELECT data FROM entry ORDER BY i")
            return [parse_json(row[0]) for row in rows]

    def index(self, kind: str, number: int = 0) -> int:
        return [i for i, entry in enumerate(self.entries()) if entry["kind"] == kind][number]


def private(recipe: dict[str, Any]) -> None:
    budgets = {A: 5.0}
    recipe["privacy"] = {"dp": "sgd", "target_epsilon": 2.0, "delta": 1e-5, "budgets": budgets}
    recipe["trainer"]["max_steps"] = 300
    recipe["release_policy"]["metrics"] = ["accuracy"]


def cosign(world: ReleaseWorld, *owners: str) -> None:
    for owner in owners:
        note = SignedNote.from_text(world.ledger.checkpoint())
        line = cosign_tree_head(note.to_text(), owner, identity(owner).signer, at=NOW)
        text = note.with_signature(line).to_text()
        world.broker.registry.witnessing.submit(CosignedCheckpoint(version=1, cosigned=text))


def copied(source: Path, target: Path) -> Path:
    """Both files, whole, while a broker may have them open."""
    target.mkdir()
    for name in ("ledger.sqlite", "broker.sqlite"):
        with (
            closing(sqlite3.connect(source / name)) as old,
            closing(sqlite3.connect(target / name)) as new,
        ):
            old.backup(new)
    return target


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    folder = tmp_path_factory.mktemp("audited")
    with release_world(folder) as world:
        state = next(folder.glob("state-*"))
        world.locked = world.lock(private)
        for owner in OWNERS:
            world.sealed[owner] = world.seal(owner)
            world.register(world.sealed[owner])
        for owner in (A, B):
            world.approve(owner)
        grant = world.obtain()
        cosign(world, A, B)
        renew(world.wire, world.attest(), world.collect(world.guest()), grant, checkpoint=None)
        world.clock.advance(120)
        cosign(world, C)
        older = copied(state, folder / "older")
        world.obtain()
        with pytest.raises(Refused):  # the budget of A is spent
            world.obtain()
        body = {"run_id": grant.run_id, "manifest_digest": "d" * 64, "outputs": None}
        with world.store.transaction() as transaction:
            record(transaction, world.ledger, "manifest", body, now=world.clock())
        world.revoke(B)
        yield History(
            state=copied(state, folder / "state"),
            older=older,
            kept=world.ledger.checkpoint(),
            consortium=world.consortium,
            signer=world.keyring.signer,
            target=world.target.to_dict(),
            needs=world.needs,
            at=world.clock(),
        )


@pytest.fixture
def state(history: History, tmp_path: Path) -> Path:
    return Path(shutil.copytree(history.state, tmp_path / "state"))


def doctor(path: Path, *statements: str) -> None:
    """Edit a file as somebody who has it: triggers are lifted and put back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        lifted = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in lifted:
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)
        for _, sql in lifted:
            db.execute(sql)


def rewrite(
    history: History, state: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
) -> None:
    """Another history whose hashes all fit together."""
    path = state / "ledger.sqlite"
    path.unlink()
    with closing(LedgerStore(path, history.meta)) as store:
        store.append([canonical_json(value) for value in change(history.entries())])


def test_an_honest_history_holds(history: History) -> None:
    report = history.audit(history.state, history.kept)
    assert report.findings == ()
    assert report.kinds == {
        "approval": 4,
        "dataset": 6,
        "manifest": 1,
        "refusal": 1,
        "release": 2,
        "renewal": 1,
        "revocation": 1,
    }
    assert (report.checkpoints, report.cosignatures) == (3, 3)
    assert report.witnessed == {A: 11, B: 11, C: 12}
    assert report.unknown == {}
    assert f"\n{report.size}\n" in history.kept
    assert history.audit(history.older).holds


FORGED = canonical_json({"kind": "refusal", "at": to_rfc3339(NOW), "body": {"action": "x"}}).hex()


@pytest.mark.parametrize(
    ("statement", "index", "check"),
    [
        ("UPDATE entry SET data = x'FORGED' WHERE i = 5", 5, "stored hash"),
        ("UPDATE entry SET data = x'' WHERE i = 5", 5, "stored hash"),
        ("UPDATE entry SET data = x'ff00' WHERE i = 0", 0, "stored hash"),
        ("UPDATE entry SET data = (SELECT data FROM entry WHERE i = 4) WHERE i = 5", 5, "stored"),
        ("DELETE FROM entry WHERE i = 5", 5, "entry missing"),
        ("DELETE FROM entry WHERE i = 0", 0, "entry missing"),
        ("DELETE FROM entry WHERE i = 15", 15, "entry missing"),
        ("DELETE FROM entry WHERE i > 9", 10, "entry missing"),
        ("DELETE FROM entry", 0, "entry missing"),
        ("INSERT INTO entry (i, data) VALUES (16, x'FORGED')", 16, "stored hash"),
        ("INSERT INTO entry (i, data) VALUES (20, x'FORGED')", 16, "entry missing"),
        ("INSERT INTO entry (i, data) VALUES (-1, x'FORGED')", None, "file"),
        ("INSERT INTO entry (i, data) VALUES (99999999, x'FORGED')", None, "file"),
        ("UPDATE node SET hash = zeroblob(32) WHERE level = 0 AND i = 5", 5, "stored hash"),
        ("UPDATE node SET hash = zeroblob(32) WHERE level = 3 AND i = 0", None, "stored hash"),
        ("UPDATE node SET hash = x'' WHERE level = 1 AND i = 2", None, "stored hash"),
        ("DELETE FROM node WHERE level = 2 AND i = 1", None, "stored hash"),
        ("DELETE FROM node WHERE level = 0 AND i = 5", 5, "stored hash"),
        ("DELETE FROM node", 0, "stored hash"),
        ("INSERT INTO node (level, i, hash) VALUES (0, 99, zeroblob(32))", None, "stored hash"),
        ("INSERT INTO node (level, i, hash) VALUES (-1, 0, zeroblob(32))", None, "stored hash"),
        ("INSERT INTO node (level, i, hash) VALUES (9, 0, zeroblob(32))", None, "stored hash"),
        ("UPDATE meta SET value = 'sealtrain/ledger/other' WHERE name = 'origin'", None, "file"),
        ("DELETE FROM meta", None, "file"),
        ("DROP TABLE meta", None, "file"),
        ("DROP TABLE node", None, "file"),
        ("DROP TABLE entry", None, "file"),
        ("CREATE TABLE spare (x)", None, "file"),
        ("PRAGMA user_version = 2", None, "file"),
        ("PRAGMA application_id = 1", None, "file"),
    ],
)
def test_a_doctored_ledger_file_is_found(
    history: History, state: Path, statement: str, index: int | None, check: str
) -> None:
    path = state / "ledger.sqlite"
    if statement.startswith("DROP TABLE"):  # takes its triggers along
        with closing(sqlite3.connect(path)) as db:
            db.execute(statement)
    else:
        doctor(path, statement.replace("FORGED", FORGED))
    report = history.audit(state)
    first = report.findings[0]
    assert first.check.startswith(check), report.findings
    assert first.index == index, report.findings


def test_two_entries_that_were_swapped_are_both_named(history: History, state: Path) -> None:
    doctor(
        state / "ledger.sqlite",
        "UPDATE entry SET i = 99 WHERE i = 3",
        "UPDATE entry SET i = 3 WHERE i = 8",
        "UPDATE entry SET i = 8 WHERE i = 99",
    )
    report = history.audit(state)
    assert [finding.index for finding in report.findings if finding.check == "stored hash"] == [
        3,
        8,
    ]
    assert not report.holds


@pytest.mark.parametrize("statement", ["DROP TRIGGER entry_no_update", "DROP TRIGGER node_new"])
def test_a_lifted_trigger_is_found(history: History, state: Path, statement: str) -> None:
    with closing(sqlite3.connect(state / "ledger.sqlite")) as db:
        db.execute(statement)
    (found,) = history.audit(state).findings
    assert found.check == "file"
    assert "append only" in found.problem


def test_a_damaged_or_foreign_file_is_found_and_a_missing_one_said(
    history: History, state: Path
) -> None:
    path = state / "ledger.sqlite"
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 4] = b"\xa5" * 4096
    path.write_bytes(data)
    assert not history.audit(state).holds
    path.write_bytes(b"something else" * 1000)
    assert not history.audit(state).holds
    path.unlink()
    with pytest.raises(DataInvalid, check=carries(code="data-invalid")):
        history.audit(state)


Entries = list[dict[str, Any]]
REWRITES: dict[str, Callable[[Entries], Entries]] = {
    "the revocation dropped": lambda old: old[:-1],
    "an early entry dropped": lambda old: [*old[:2], *old[3:]],
    "two swapped": lambda old: [*old[:4], old[5], old[4], *old[6:]],
    "one put in front": lambda old: [{**old[-3], "kind": "note"}, *old],
    "a time changed": lambda old: [{**old[0], "at": "2026-03-01T11:00:00Z"}, *old[1:]],
    "emptied": lambda _old: [],
}


@pytest.mark.parametrize("change", REWRITES.values(), ids=REWRITES)
def test_a_ledger_that_was_rewritten_consistently_is_found(
    history: History, state: Path, change: Callable[[Entries], Entries]
) -> None:
    rewrite(history, state, change)
    assert not history.audit(state).holds
    report = history.audit(state, history.kept)
    assert "checkpoint" in {finding.check for finding in report.findings}


def test_only_a_kept_checkpoint_shows_that_an_older_copy_was_put_back(history: History) -> None:
    assert history.audit(history.older).holds
    (found,) = history.audit(history.older, history.kept).findings
    assert (found.check, found.index) == ("checkpoint", None)
    assert "entries are gone" in found.problem


def test_a_ledger_set_back_without_its_database_is_found(history: History, state: Path) -> None:
    shutil.copy(history.older / "ledger.sqlite", state / "ledger.sqlite")
    report = history.audit(state)
    assert [finding.check for finding in report.findings] == ["database"] * len(report.findings)
    # The revocation, the manifest and the second reservation are known and not there.
    assert len(report.findings) == 3


@pytest.mark.parametrize(
    ("statement", "check"),
    [
        ("DELETE FROM decisions WHERE sequence = (SELECT max(sequence) FROM decisions)", "data"),
        ("UPDATE decisions SET ledger_index = 2 WHERE sequence = 1", "database"),
        ("UPDATE decisions SET digest = 'ab' WHERE sequence = 1", "database"),
        ("UPDATE datasets SET digest = 'ab'", "database"),
        ("UPDATE manifests SET ledger_index = 3", "database"),
        ("UPDATE reservations SET ledger_index = 3 WHERE ledger_index = 12", "database"),
        ("UPDATE cosigned SET note = 'nothing'", "checkpoint"),
        ("UPDATE cosigned SET note = (SELECT note FROM cosigned WHERE size = 11)", "cosignature"),
        ("UPDATE cosignatures SET line = substr(line, 1, 40) || char(10)", "checkpoint"),
        ("UPDATE cosignatures SET size = 12 WHERE size = 11", "cosignature"),
    ],
)
def test_a_doctored_database_is_found(
    history: History, state: Path, statement: str, check: str
) -> None:
    doctor(state / "broker.sqlite", statement)
    report = history.audit(state, history.kept)
    assert any(finding.check.startswith(check) for finding in report.findings)


@pytest.mark.parametrize("thief", [True, False])
def test_a_replaced_checkpoint_is_found(history: History, state: Path, thief: bool) -> None:
    """By whoever has the log's key, and by whoever has not."""
    signer = history.signer if thief else identity("stranger").signer
    other = state / "other.sqlite"
    with Ledger.open(other, origin=history.origin, signer=signer, clock=lambda: NOW) as forged:
        forged.append_all(("refusal", {"n": n}) for n in range(11))
        note = forged.checkpoint()
    with closing(sqlite3.connect(state / "broker.sqlite")) as db:
        db.execute("UPDATE cosigned SET note = ? WHERE size = 11", (note,))
        db.execute("DELETE FROM cosignatures WHERE size = 11")
        db.commit()
    (found,) = history.audit(state).findings
    assert found.check == "checkpoint"
    assert ("one of the entries 0 to 10" if thief else "does not verify") in found.problem


# What a dishonest broker appends, every hash in order.


def grant(history: History, kind: str = "release", number: int = 0) -> dict[str, Any]:
    body = dict(history.entries()[history.index(kind, number)]["body"])
    return body | {"run_id": "ab" * 16, "lease_id": "cd" * 32, "receipt_digest": "ef" * 32}


def decision(history: History, owner: str, **changed: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "consortium_id": history.consortium.consortium_id,
        "brokers": [broker_id(history.signer.public)],
        "target": _target(history),
        "needs": history.needs,
        "signed_at": history.at,
        "not_after": history.at + 86400,
    }
    envelope = sign_decision(Decision.approve(**(fields | changed)), identity(owner).signer)
    return {
        "owner": owner,
        "decision": "approve",
        **history.target,
        "digest": envelope.digest,
        "envelope": envelope.to_dict(),
    }


def _target(history: History) -> Any:
    from sealtrain.signing.target import Target

    return Target(**history.target)


def body_of(history: History, kind: str, number: int = 0) -> dict[str, Any]:
    return dict(history.entries()[history.index(kind, number)]["body"])


DISHONEST: dict[str, tuple[str, Callable[[History], dict[str, Any]], str]] = {
    "a release after a revocation": ("release", grant, "had revoked"),
    "a release of another recipe": (
        "release",
        lambda h: grant(h) | {"recipe_hash": "12" * 32},
        "with 0 of 2 approvals",
    ),
    "a renewal after a revocation": (
        "renewal",
        lambda h: body_of(h, "renewal") | {"receipt_digest": "ef" * 32},
        "had revoked",
    ),
    "a renewal of nobody's lease": ("renewal", lambda h: grant(h, "renewal"), "does not hold"),
    "a receipt twice": ("release", lambda h: body_of(h, "release"), "was recorded before"),
    "another root": (
        "release",
        lambda h: grant(h) | {"datasets": [{**grant(h)["datasets"][0], "root": "34" * 32}]},
        "was not registered",
    ),
    "a budget passed": ("release", grant, "passes the budget"),
    "a field more": ("release", lambda h: grant(h) | {"key": "leaked"}, "key"),
    "a field less": ("release", lambda h: {"run_id": "ab" * 16}, "app_id"),
    "a negative reservation": (
        "release",
        lambda h: grant(h) | {"privacy": [{**grant(h)["privacy"][0], "epsilon": -5.0}]},
        "epsilon",
    ),
    "a run with another recipe": (
        "release",
        lambda h: grant(h) | {"run_id": body_of(h, "release")["run_id"], "compose_hash": "56" * 32},
        "began with another recipe",
    ),
    "a manifest of no run": (
        "manifest",
        lambda _h: {"run_id": "ab" * 16, "manifest_digest": "12" * 32, "outputs": []},
        "no keys were released",
    ),
    "a manifest twice": ("manifest", lambda h: body_of(h, "manifest"), "was recorded before"),
    "a decision of a stranger": (
        "approval",
        lambda h: decision(h, "stranger"),
        "no owner of this consortium signed",
    ),
    "a decision twice": ("approval", lambda h: body_of(h, "approval"), "was recorded before"),
    "a decision under another's name": (
        "approval",
        lambda h: decision(h, C) | {"owner": A},
        "owner: not what was signed",
    ),
    "an approval that is called a revocation": (
        "revocation",
        lambda h: decision(h, C),
        "is signed as approve",
    ),
    "a decision for another recipe than the body says": (
        "approval",
        lambda h: decision(h, C) | {"recipe_hash": "12" * 32},
        "recipe_hash: not what was signed",
    ),
    "an altered decision": (
        "approval",
        lambda h: decision(h, C) | {"envelope": {**decision(h, C)["envelope"], "payload": "e30="}},
        "signature does not verify",
    ),
    "a decision without its envelope": ("approval", lambda _h: {"owner": A}, "envelope"),
    "an approval from the future": (
        "approval",
        lambda h: decision(h, C, signed_at=h.at + 4000),
        "dated in the future",
    ),
    "a decision for another consortium": (
        "approval",
        lambda h: decision(h, C, consortium_id="12" * 32),
        "about another consortium",
    ),
    "a dataset twice": ("dataset", lambda h: body_of(h, "dataset"), "was recorded before"),
    "a dataset with another root": (
        "dataset",
        lambda h: body_of(h, "dataset") | {"root": "12" * 32},
        "root: not what was signed",
    ),
    "a refusal without a reason": ("refusal", lambda _h: {"action": "release"}, "code"),
    "a refusal of an unknown action": (
        "refusal",
        lambda _h: {"action": "x", "code": "approvals-missing"},
        "action",
    ),
}


@pytest.mark.parametrize("case", DISHONEST.values(), ids=DISHONEST)
def test_what_a_broker_should_not_have_written_is_named(
    history: History, state: Path, case: tuple[str, Callable[[History], dict[str, Any]], str]
) -> None:
    kind, body, problem = case
    entry = {"kind": kind, "at": to_rfc3339(history.at), "body": body(history)}
    with closing(LedgerStore(state / "ledger.sqlite", history.meta)) as store:
        index = store.append([canonical_json(entry)])
    found = [
        finding for finding in history.audit(state, history.kept).findings if finding.check == kind
    ]
    assert [entry.index for entry in found] == [index] * len(found)
    assert any(problem in finding.problem for finding in found), found


@pytest.mark.claim("C266")
@pytest.mark.parametrize(("late", "named"), [(59, False), (60, True)])
def test_a_lease_that_was_renewed_after_its_end_is_named(
    history: History, state: Path, late: int, named: bool
) -> None:
    body = body_of(history, "renewal") | {"receipt_digest": "ef" * 32}
    ended = from_rfc3339(body["not_after"])
    body["not_after"] = to_rfc3339(ended + 3600)
    entry = {"kind": "renewal", "at": to_rfc3339(ended + late), "body": body}
    with closing(LedgerStore(state / "ledger.sqlite", history.meta)) as store:
        index = store.append([canonical_json(entry)])
    found = history.audit(state, history.kept).findings
    assert (
        any(finding.index == index and "had ended" in finding.problem for finding in found) == named
    )


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b'{"at":"2026-03-01T12:00:00Z","body":{},"kind":"refusal","more":1}',
        b'{"at":"yesterday","body":{},"kind":"refusal"}',
        b'{"at":"2026-03-01T12:00:00Z","body":[],"kind":"refusal"}',
        b'{ "at":"2026-03-01T12:00:00Z","body":{},"kind":"refusal"}',
        b'{"at":"2026-03-01T12:00:00Z","body":{},"kind":"Refusal"}',
        b"\xff",
    ],
)
def test_an_entry_without_its_form_is_named(history: History, state: Path, data: bytes) -> None:
    with closing(LedgerStore(state / "ledger.sqlite", history.meta)) as store:
        index = store.append([data])
    (found,) = history.audit(state, history.kept).findings
    assert (found.check, found.index) == ("entry form", index)


def test_a_kind_that_an_audit_does_not_know_is_counted_and_shown(
    history: History, state: Path
) -> None:
    entry = {"kind": "visit", "at": to_rfc3339(history.at), "body": {}}
    with closing(LedgerStore(state / "ledger.sqlite", history.meta)) as store:
        store.append([canonical_json(entry)])
    report = history.audit(state, history.kept)
    assert report.holds
    assert report.unknown == {"visit": 1}


def test_the_command_names_what_it_found_and_leaves_with_three(
    history: History, state: Path, tmp_path: Path
) -> None:
    (tmp_path / "consortium.json").write_bytes(history.consortium.to_bytes())
    (tmp_path / "kept").write_text(history.kept)
    with memory(tmp_path / "memory.json") as kept:
        kept.advance(history.kept, (), history.signer.public, origin=history.origin, now=NOW)
    words = [
        *("log", "audit", "--database", str(state / "ledger.sqlite")),
        *("--consortium", str(tmp_path / "consortium.json")),
        *("--memory", str(tmp_path / "memory.json")),
    ]
    good = CliRunner().invoke(app, [*words, "--from", str(tmp_path / "kept"), "--quorum", "2"])
    assert good.exit_code == 0, good.output
    doctor(state / "ledger.sqlite", "UPDATE entry SET data = x'00' WHERE i = 5")
    bad = CliRunner().invoke(app, words)
    assert bad.exit_code == 3
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert told["findings"][0]["index"] == 5
    assert not told["holds"]
    shutil.copy(history.older / "ledger.sqlite", state / "ledger.sqlite")
    shutil.copy(history.older / "broker.sqlite", state / "broker.sqlite")
    back = CliRunner().invoke(app, words)
    assert back.exit_code == 3
