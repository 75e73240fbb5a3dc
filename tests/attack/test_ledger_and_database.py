"""The broker dies, or its disk is full, between its two commits; one half is lost or put back.

Ledger and database never disagree on what was decided: what one holds the other comes to hold, or
the broker does not start.
"""

from __future__ import annotations

import errno
import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from broker_site import ProcessSite, newest_log, process_site
from owner_acts import ACTS, CHECKPOINT, Asking, approval, post, run_begun, signed
from postgres_server import Server
from release_world import audited, config_of, release_world, served_world
from variants import variants
from world import NOW

from sealtrain.broker.serve import listening
from sealtrain.broker.store import group_commit as together
from sealtrain.broker.store.audit_reader import read_beside
from sealtrain.broker.store.database import begin_transaction, commit, engine_of
from sealtrain.broker.store.following import LedgerFollower
from sealtrain.broker.store.memory import Store
from sealtrain.broker.store.recording import record
from sealtrain.broker.store.tables import metadata
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.consortium.errors import ApprovalRevoked, ConsortiumMismatch
from sealtrain.errors import (
    LeaseStale,
    LedgerInconsistent,
    Refused,
    RunMismatch,
    SealtrainError,
    Unreachable,
)
from sealtrain.ledger.audit import Auditor
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.postgres import Postgres
from sealtrain.ledger.reading import audit_stored
from sealtrain.release.errors import ChallengeUnknown, DatasetWithdrawn

pytestmark = [pytest.mark.long, pytest.mark.claim("C95"), pytest.mark.claim("C43")]

STATED = (
    "decisions", "datasets", "owner_documents", "document_subjects", "successions", "runs",
    "run_datasets", "reservations", "manifests", "entry_index",
)  # fmt: skip
BETWEEN = """
import os, signal
from pathlib import Path
from sealtrain.ledger.store import LedgerStore
armed, pending = Path({armed!r}), LedgerStore.pending
class Dying:
    def __init__(self, pending):
        self.pending = pending
    def __getattr__(self, name):
        return getattr(self.pending, name)
    def write(self):
        self.pending.write()
        if armed.exists():
            armed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
LedgerStore.pending = lambda self, connection: Dying(pending(self, connection))
"""
GROWING = """
from sealtrain.ledger import sqlite_backend as database
switch = database.switch_to_wal
def growing(connection, **how):
    switch(connection, **how)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
database.switch_to_wal = growing
"""


def held(where: Path | Postgres) -> dict[str, list[tuple[Any, ...]]]:
    """What a database holds of what the ledger states."""
    engine = engine_of(where)
    try:
        with begin_transaction(engine) as connection:
            return {name: rows(connection, name) for name in STATED}
    finally:
        engine.dispose()


def rows(connection: sa.Connection, name: str) -> list[tuple[Any, ...]]:
    table = metadata.tables[name]
    if name != "decisions":
        return sorted(tuple(row) for row in connection.execute(sa.select(table)))
    # In their order; a server numbers a row anew that it had undone.
    ordered = connection.execute(sa.select(table).order_by(table.c.sequence))
    return [tuple(row)[1:] for row in ordered]


def stated(ledger: Ledger, folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What the ledger alone comes to: a database made from nothing else."""
    path = folder / "fresh.sqlite"
    store = Store(path)
    try:
        store.join(ledger, now=NOW)
    finally:
        store.close()
    found = held(path)
    path.unlink()
    return found


@contextmanager
def failing_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next commit that has entries fails, as on a full disk, after the ledger's own."""
    reached: list[int] = []
    failed: list[int] = []
    advance = LedgerFollower.advance

    def noted(self: LedgerFollower, connection: Any, before: int, entries: Any) -> None:
        advance(self, connection, before, entries)
        reached.append(before + len(entries))

    def full(connection: Any) -> None:
        if reached and not failed:
            failed.append(1)
            raise OSError(errno.ENOSPC, "No space left on device")
        commit(connection)

    with monkeypatch.context() as patched:
        patched.setattr(LedgerFollower, "advance", noted)
        patched.setattr(together, "commit", full)
        yield
    assert failed, "nothing of it reached the ledger"


def ends_in(kind: str, made: Asking) -> None:
    """What must hold once the ledger has an entry of a kind."""
    refusal: dict[str, type[SealtrainError]] = {
        "revocation": ApprovalRevoked,
        "withdrawal": DatasetWithdrawn,
        "succession": ConsortiumMismatch,
    }
    if kind in refusal:
        with pytest.raises(refusal[kind]):
            made.obtain()
        with pytest.raises(refusal[kind]):
            made.renew()
    else:
        made.obtain()


@pytest.mark.parametrize(
    "kind",
    variants([*ACTS, "manifest"], each_time=["release", "dataset", "revocation", "manifest"]),
)
def test_a_full_disk_between_the_two_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with served_world(tmp_path) as (world, url):
        made = run_begun(world, url)

        def manifest(_: Asking) -> None:
            assert made.grant is not None
            body = {"run_id": made.grant.run_id, "manifest_digest": "ab" * 32, "outputs": None}
            with world.store.transaction() as transaction:
                if transaction.manifest("ab" * 32) is None:
                    record(transaction, world.ledger, "manifest", body, now=NOW)

        act = ACTS.get(kind, manifest)
        before = world.kinds().count(kind)
        with failing_once(monkeypatch), pytest.raises(SealtrainError) as caught:
            act(made)
        assert caught.value.exit_code == 4
        assert world.kinds().count(kind) == before + 1
        [database] = tmp_path.glob("state-*/broker.sqlite")
        lost = held(database)
        ends_in(kind, made)
        assert held(database) == stated(world.ledger, tmp_path)
        assert held(database) != lost
        if kind not in ("release", "renewal"):
            act(made)  # asked again, it was recorded once
            assert world.kinds().count(kind) == before + 1
        assert audited(world).holds


def test_a_lease_whose_answer_never_left_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_world(tmp_path) as (world, url):
        made = run_begun(world, url)
        with failing_once(monkeypatch), pytest.raises(BrokerUnreachable):
            made.obtain(run_id="ab" * 16)
        entry: Any = world.ledger.entries()[-1]
        assert (entry["kind"], entry["body"]["run_id"]) == ("release", "ab" * 16)
        with pytest.raises(RunMismatch):
            made.obtain(run_id="ab" * 16)
        made.grant = made.obtain(run_id="ab" * 16, resume=True)
        made.renew()
        with world.store.reading() as transaction:
            lease = transaction.lease(entry["body"]["lease_id"])
        assert lease is not None
        assert lease.superseded


def test_reading_shows_no_less_than_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_world(tmp_path) as (world, url):
        made = run_begun(world, url)
        with failing_once(monkeypatch), pytest.raises(BrokerUnreachable):
            ACTS["revocation"](made)
        answer = world.broker.registry.tally(world.target)
        assert answer.tally["revoked_by"] == ["hospital-b"]


def test_one_database_has_both_or_neither(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = postgres.database()
    with (
        release_world(tmp_path, database=where) as world,
        listening(world.broker, config_of(tmp_path, limits=world.broker.caps)) as url,
    ):
        made = run_begun(world, url)
        for kind in ("approval", "revocation"):
            size, before = world.ledger.size, held(where)
            with failing_once(monkeypatch), pytest.raises(BrokerUnreachable):
                ACTS[kind](made)
            assert (world.ledger.size, held(where)) == (size, before)
            ACTS[kind](made)
            assert held(where) == stated(world.ledger, tmp_path)


# --- Real processes -------------------------------------------------------------------------------


def of_process(site: ProcessSite, url: str) -> Asking:
    return Asking(site.world, site.attested, url)


IN_THEIR_ORDER = ("approval", "dataset", "owner-policy", "release", "renewal", "withdrawal",
                  "revocation", "succession")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds",
    [
        ("release", "revocation"),
        pytest.param(("release", "renewal", "revocation"), marks=pytest.mark.nightly),
        pytest.param(IN_THEIR_ORDER, marks=pytest.mark.nightly),
    ],
    ids=len,
)
def test_killed_between_the_two_commits_of_every_kind(
    tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    """One broker after the other, each killed by SIGKILL when the ledger has the entry alone."""
    armed = tmp_path / "armed"
    prelude = BETWEEN.format(armed=str(armed))
    with process_site(tmp_path) as site:
        grant, revoked = None, False
        for kind in kinds:
            process, url = site.start(prelude=prelude)
            made = of_process(site, url)
            made.grant = grant
            try:
                if kind == "renewal":
                    made.grant = grant = made.obtain()
                armed.touch()
                with pytest.raises(BrokerUnreachable):
                    ACTS[kind](made)
                assert process.wait(within=20) == -signal.SIGKILL
            finally:
                process.kill()
            assert not armed.exists()
            kinds = ledger_kinds(site)
            assert kinds[-1] == kind
            process, url = site.start()
            try:
                made.url = url
                revoked = revoked or kind in ("withdrawal", "revocation", "succession")
                if revoked:
                    with pytest.raises(Refused):
                        made.obtain()
                else:
                    made.obtain()
            finally:
                assert process.end() == 0
            agree(site, tmp_path)


def ledger_kinds(site: ProcessSite) -> list[str]:
    with closing(sqlite3.connect(site.state / "ledger.sqlite")) as db:
        rows = db.execute("SELECT json_extract(CAST(data AS TEXT), '$.kind') FROM entry ORDER BY i")
        return [row[0] for row in rows]


def agree(site: ProcessSite, folder: Path) -> None:
    """Database and ledger of a stopped broker hold the same, and an audit finds nothing."""
    world = site.world
    with Ledger.open(
        site.state / "ledger.sqlite", origin=world.ledger.origin, signer=world.keyring.signer
    ) as ledger:
        assert held(site.state / "broker.sqlite") == stated(ledger, folder)
    auditor = Auditor(world.consortium, world.keyring.signer.public, origin=world.ledger.origin)
    audit_stored(site.state / "ledger.sqlite", auditor, {"origin": world.ledger.origin})
    report = auditor.finish(read_beside(site.state / "broker.sqlite").references)
    assert report.findings == ()


@pytest.mark.slow
def test_a_disk_that_is_full_for_the_database_alone(tmp_path: Path) -> None:
    """The database's journal meets a limit that the ledger's does not."""
    with process_site(tmp_path) as site:
        process, url = site.start(prelude=GROWING)
        try:
            made = of_process(site, url)
            for _ in range(8):
                made.obtain()
            with closing(sqlite3.connect(site.state / "ledger.sqlite")) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            journal, size = site.state / "broker.sqlite-wal", len(ledger_kinds(site))
            assert journal.stat().st_size > 256 << 10
            _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            for pages in range(40):  # until there is room for the nonce and not for the decision
                limit = journal.stat().st_size + pages * 4200
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, hard))
                with pytest.raises(BrokerUnreachable):
                    ACTS["revocation"](made)
                if ledger_kinds(site)[size:]:
                    break
            assert ledger_kinds(site)[size:] == ["revocation"]
            assert limit > 2 * (site.state / "ledger.sqlite-wal").stat().st_size
            with pytest.raises(BrokerUnreachable):  # as long as it cannot be recorded
                made.obtain()
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
            with pytest.raises(ApprovalRevoked):
                made.obtain()
            ACTS["revocation"](made)
            assert ledger_kinds(site).count("revocation") == 1
        finally:
            assert process.end() == 0
        agree(site, tmp_path)


# --- One half lost, or put back -------------------------------------------------------------------


def files(state: Path, name: str) -> list[Path]:
    return sorted(state.glob(f"{name}*"))


def copied(state: Path, name: str, folder: Path) -> None:
    """One half of a stopped broker, as a careless operator copies it."""
    folder.mkdir(exist_ok=True)
    for path in files(state, name):
        (folder / path.name).write_bytes(path.read_bytes())


def put_back(folder: Path, name: str, state: Path) -> None:
    lost(state, name)
    for path in files(folder, name):
        (state / path.name).write_bytes(path.read_bytes())


def lost(state: Path, name: str) -> None:
    for path in files(state, name):
        path.unlink()


@contextmanager
def served(site: ProcessSite) -> Iterator[Asking]:
    process, url = site.start()
    try:
        yield of_process(site, url)
    finally:
        assert process.end() == 0


@pytest.mark.slow
def test_a_broker_whose_database_was_deleted_knows_what_the_ledger_holds(tmp_path: Path) -> None:
    with process_site(tmp_path) as site:
        with served(site) as made:
            made.grant = made.obtain()
            made.renew()
            for kind in ("approval", "owner-policy"):
                ACTS[kind](made)
            with BrokerClient(made.url) as client:
                stale = client.challenge(site.world.consortium.consortium_id, "release")
            path, body = f"{made.url}/v1/approvals", approval(site.world)
            headers = signed(path, body, at=NOW - 1)
            assert post(path, body, headers) == (200, None)
        before = held(site.state / "broker.sqlite")
        lost(site.state, "broker.sqlite")
        with served(site) as again:
            again.grant = made.grant
            assert held(site.state / "broker.sqlite") == before
            run_id = made.grant.run_id
            # What the ledger does not hold is lost on the safe side.
            with pytest.raises(LeaseStale):
                again.renew((8, "cf" * 32))
            assert post(path, body, headers) == (403, "request-stale")
            assert post(path, body, signed(path, body, at=NOW)) == (200, None)
            with pytest.raises(ChallengeUnknown):
                obtain_with(again, stale)
            # A run id serves once, and no run goes back behind its anchor.
            with pytest.raises(RunMismatch):
                again.obtain(run_id=run_id)
            resumed = again.obtain(run_id=run_id, resume=True)
            assert resumed.latest_checkpoint is not None
            assert (
                resumed.latest_checkpoint.counter,
                resumed.latest_checkpoint.digest,
            ) == CHECKPOINT
            ACTS["revocation"](again)
        lost(site.state, "broker.sqlite")
        with served(site) as last, pytest.raises(ApprovalRevoked):
            last.obtain()
        lost(site.state, "broker.sqlite")
        with served(site) as last:
            ACTS["withdrawal"](last)
            with pytest.raises(ApprovalRevoked):
                last.obtain()
        agree(site, tmp_path)


def obtain_with(made: Asking, challenge: Any) -> None:
    """A release under a challenge that was made before."""
    with BrokerClient(made.url) as client:
        client.challenge = lambda *_asked: challenge  # type: ignore[method-assign]
        made.world.obtain(wire=client, attested=made.attested)


@pytest.mark.nightly
@pytest.mark.slow
def test_an_old_copy_of_one_half_beside_the_other(tmp_path: Path) -> None:
    older, newer = tmp_path / "older", tmp_path / "newer"
    with process_site(tmp_path) as site:
        with served(site) as made:
            made.grant = made.obtain()
        for name in ("broker.sqlite", "ledger.sqlite"):
            copied(site.state, name, older)
        with served(site) as made:
            made.obtain(run_id=made_run(older, site), resume=True)
            ACTS["approval"](made)
            ACTS["revocation"](made)
        for name in ("broker.sqlite", "ledger.sqlite"):
            copied(site.state, name, newer)
        # An old database beside the newest ledger: what it lacks is recorded.
        put_back(older, "broker.sqlite", site.state)
        with served(site) as made, pytest.raises(ApprovalRevoked):
            made.obtain()
        agree(site, tmp_path)
        with closing(sqlite3.connect(site.state / "broker.sqlite")) as db:
            live = db.execute("SELECT count(*) FROM leases WHERE superseded_at IS NULL").fetchone()
        assert live == (0,), "a lease that was replaced since is live"
        # An old ledger, or none, beside the newest database: the broker does not start.
        for wrong in (older, tmp_path / "nowhere"):
            put_back(newer, "broker.sqlite", site.state)
            put_back(wrong, "ledger.sqlite", site.state)
            with pytest.raises(Unreachable):
                site.start()
            assert "LedgerInconsistent" in newest_log(tmp_path)
        put_back(newer, "ledger.sqlite", site.state)
        with served(site) as made, pytest.raises(ApprovalRevoked):
            made.obtain()


def made_run(folder: Path, site: ProcessSite) -> str:
    with closing(sqlite3.connect(folder / "broker.sqlite")) as db:
        return str(db.execute("SELECT run_id FROM runs").fetchone()[0])


@pytest.mark.slow
def test_a_ledger_that_went_another_way_since_is_refused(tmp_path: Path) -> None:
    """The old ledger is put back and grows again: as many entries, another history."""
    older = tmp_path / "older"
    with process_site(tmp_path) as site:
        for name in ("broker.sqlite", "ledger.sqlite"):
            copied(site.state, name, older)
        with served(site) as made:
            ACTS["revocation"](made)
        copied(site.state, "broker.sqlite", tmp_path / "revoked")
        put_back(older, "broker.sqlite", site.state)
        put_back(older, "ledger.sqlite", site.state)
        with served(site) as made:
            made.obtain()
        put_back(tmp_path / "revoked", "broker.sqlite", site.state)
        with pytest.raises(Unreachable):
            site.start()
        assert "LedgerInconsistent" in newest_log(tmp_path)


def test_halves_of_a_server_that_do_not_belong_together(postgres: Server, tmp_path: Path) -> None:
    where = postgres.database()
    [name] = [f"broker_{1}"]
    with release_world(tmp_path, database=where) as world:
        world.obtain()
        world.revoke("hospital-b")
        before, size = held(where), world.ledger.size
        signer, origin = world.keyring.signer, world.ledger.origin
    # The tables are lost, the ledger is not.
    with postgres.sql(name) as admin:
        admin.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    with Ledger.open(where, origin=origin, signer=signer) as ledger:
        store = Store(where)
        try:
            assert store.join(ledger, now=NOW) == size
            assert store.join(ledger, now=NOW) == 0
        finally:
            store.close()
    assert held(where) == before
    # The ledger is lost, the tables are not.
    with postgres.sql(name) as admin:
        admin.execute("DROP SCHEMA sealtrain_ledger CASCADE")
    with Ledger.open(where, origin=origin, signer=signer) as ledger:
        store = Store(where)
        try:
            with pytest.raises(LedgerInconsistent):
                store.join(ledger, now=NOW)
        finally:
            store.close()


def test_an_audit_finds_what_the_database_lacks_of_the_ledger(tmp_path: Path) -> None:
    """The other direction of what it always compared: ledger in database."""
    with served_world(tmp_path) as (world, url):
        made = run_begun(world, url)
        for kind in ("approval", "revocation", "owner-policy", "withdrawal", "succession"):
            ACTS[kind](made)
        signer, origin = world.keyring.signer, world.ledger.origin
        [state] = tmp_path.glob("state-*")

        def findings() -> set[str]:
            auditor = Auditor(world.consortium, signer.public, origin=origin)
            audit_stored(state / "ledger.sqlite", auditor, {"origin": origin})
            report = auditor.finish(read_beside(state / "broker.sqlite").references)
            assert {finding.check for finding in report.findings} <= {"database"}
            return {
                finding.problem.rpartition(" lost ")[2].split()[0] for finding in report.findings
            }

        assert findings() == set()
        with closing(sqlite3.connect(state / "broker.sqlite")) as db:
            db.executescript(
                "DELETE FROM decisions; DELETE FROM datasets; DELETE FROM document_subjects;"
                "DELETE FROM owner_documents; DELETE FROM successions; DELETE FROM leases;"
                "DELETE FROM run_datasets; DELETE FROM runs;"
            )
            db.commit()
        assert findings() == {"this", "run"}
