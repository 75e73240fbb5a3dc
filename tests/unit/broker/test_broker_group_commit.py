"""Blocks that commit together: each all or nothing, nobody told before the disk knows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from polling import wait_until
from sqlalchemy.engine import Connection, Engine

from sealtrain.base.clock import to_rfc3339
from sealtrain.broker.store import group_commit, statements
from sealtrain.broker.store.database import commit
from sealtrain.broker.store.group_commit import AfterBlock, CommitLimits, GroupState, after_block
from sealtrain.broker.store.memory import Store
from sealtrain.broker.store.recording import record
from sealtrain.broker.store.transaction import Transaction
from sealtrain.errors import LimitExceeded, Unreachable
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.postgres import Postgres
from sealtrain.signing.ed25519 import Ed25519Signer

NOW = 1_790_000_000
TARGET = {"app_id": "a" * 40, "compose_hash": "b" * 64, "recipe_hash": "c" * 64}
SIGNER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))

pytestmark = [pytest.mark.long, pytest.mark.claim("C43")]


@dataclass
class Site:
    """A broker's memory and ledger; blocks of it that come while another holds the turn."""

    store: Store
    ledger: Ledger
    threads: ThreadPoolExecutor

    def run(self, name: str, *, alone: bool = False) -> int:
        """One block: a run, and its entry."""
        with self.store.transaction(alone=alone) as transaction:
            return self.add(transaction, name)

    def add(self, transaction: Transaction, name: str) -> int:
        body = {
            **TARGET,
            "run_id": name,
            "datasets": [{"owner_id": "o", "dataset_id": "d", "root": "r"}],
            "elsewhere": [],
            "submission_id": None,
            "lease_id": f"lease of {name}",
            "not_after": to_rfc3339(NOW + 60),
        }
        return record(transaction, self.ledger, "release", body, now=NOW, instance_id="i")

    def failing(self, name: str, error: Exception | type[Exception] = ZeroDivisionError) -> int:
        with self.store.transaction(alone=False) as transaction:
            self.add(transaction, name)
            raise error

    def queued(self, *blocks: Callable[[], int]) -> list[Future[int]]:
        """Run blocks that queue up, in this order, behind the first one."""
        inside, go = threading.Event(), threading.Event()

        def first() -> int:
            with self.store.transaction(alone=False) as transaction:
                inside.set()
                assert go.wait(20)
                return self.add(transaction, "first")

        told = [self.threads.submit(first)]
        assert inside.wait(20)
        for place, block in enumerate(blocks, start=1):
            told.append(self.threads.submit(block))
            wait_until(lambda: self.store.group_commit.waiting >= place, 20)  # noqa: B023
        go.set()
        for answer in told:
            answer.exception(20)
        return told

    def runs(self, *names: str) -> list[bool]:
        with self.store.transaction() as transaction:
            return [transaction.run(name) is not None for name in names]

    def entries(self) -> list[str]:
        return [str(entry["body"]["run_id"]) for entry in self.ledger.entries()]


@contextmanager
def site_with(database: Path | Postgres, folder: Path, **limits: float) -> Iterator[Site]:
    # The age is that of a test that is slow.
    store = Store(database, limits=replace(CommitLimits(oldest_seconds=20.0), **limits))
    log = folder / "ledger.sqlite" if isinstance(database, Path) else database
    with (
        Ledger.open(log, origin="sealtrain/ledger/test", signer=SIGNER) as ledger,
        ThreadPoolExecutor(8) as threads,
    ):
        store.join(ledger, now=NOW)
        yield Site(store, ledger, threads)
    store.close()


@pytest.fixture
def site(database: Path | Postgres, tmp_path: Path) -> Iterator[Site]:
    with site_with(database, tmp_path) as made:
        yield made


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every commit."""
    made: list[int] = []

    def counted(connection: Connection) -> None:
        commit(connection)
        made.append(len(made))

    monkeypatch.setattr(group_commit, "commit", counted)
    return made


def test_who_waits_for_a_turn_shares_one_commit(site: Site, commits: list[int]) -> None:
    names = ["second", "third", "fourth"]
    told = site.queued(*(lambda name=name: site.run(name) for name in names))
    assert len(commits) == 1
    assert sorted(future.result() for future in told) == [0, 1, 2, 3]
    placed = {future.result(): name for future, name in zip(told, ["first", *names], strict=True)}
    assert site.entries() == [placed[index] for index in range(4)]
    assert all(site.runs("first", *names))
    assert site.ledger.audit().size == 4


def test_one_that_raises_is_undone_and_the_others_stand(site: Site, commits: list[int]) -> None:
    first, bad, good = site.queued(lambda: site.failing("bad"), lambda: site.run("good"))
    assert isinstance(bad.exception(), ZeroDivisionError)
    assert len(commits) == 1
    assert sorted([first.result(), good.result()]) == [0, 1]
    assert sorted(site.entries()) == ["first", "good"]
    assert site.runs("first", "bad", "good") == [True, False, True]
    assert site.run("later") == 2


def test_a_group_whose_first_blocks_raise_goes_on(site: Site) -> None:
    with pytest.raises(ZeroDivisionError):
        site.failing("bad")
    assert site.entries() == []
    assert site.run("good") == 0
    assert site.ledger.append("refusal", {"run_id": "direct"}) == 1


def test_the_last_one_that_raises_commits_for_those_before(site: Site) -> None:
    first, bad = site.queued(lambda: site.failing("bad", LimitExceeded("too much")))
    assert first.result() == 0
    assert isinstance(bad.exception(), LimitExceeded)
    assert site.entries() == ["first"]


def test_nobody_is_told_what_the_disk_does_not_know(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit hangs: both wait, and nothing can be read."""
    reached, go = threading.Event(), threading.Event()

    def slow(connection: Connection) -> None:
        reached.set()
        assert go.wait(20)
        commit(connection)

    with monkeypatch.context() as patched:
        patched.setattr(group_commit, "commit", slow)
        told: list[Future[int]] = []
        asking = threading.Thread(target=lambda: told.extend(site.queued(lambda: site.run("b"))))
        asking.start()
        assert reached.wait(20)
        assert told == []
        go.set()
        asking.join(20)
    assert [future.result() for future in told] == [0, 1]


@pytest.mark.parametrize("where", ["commit", "write"])
def test_a_commit_that_fails_fails_all_of_the_group(
    site: Site, database: Path | Postgres, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*_: object) -> None:
        raise Unreachable("no space left on device")

    with monkeypatch.context() as patched:
        if where == "commit":
            patched.setattr(group_commit, "commit", full)
        else:
            patched.setattr(type(site.ledger.pending(None)), "write", full)
        told = site.queued(lambda: site.run("second"))
    assert [type(answer.exception()) for answer in told] == [Unreachable, Unreachable]
    # A file's entries are on disk before the database commits: too many, never too few. The next
    # transaction records them, whoever begins it.
    kept = 2 if where == "commit" and isinstance(database, Path) else 0
    assert len(site.entries()) == kept
    assert site.runs("first", "second") == [bool(kept), bool(kept)]
    with site.store.reading() as transaction:
        for name in ("first", "second"):
            lease = transaction.lease(f"lease of {name}")
            assert (lease is not None and lease.superseded) == bool(kept)
    assert site.run("again") == kept
    assert site.ledger.audit().size == kept + 1


def test_a_transaction_that_the_database_undoes_takes_all_with_it(site: Site) -> None:
    begun: list[Connection] = []

    def lose() -> int:
        with site.store.transaction(alone=False) as transaction:
            site.add(transaction, "second")
            begun[-1].exec_driver_sql("ROLLBACK")
            raise ZeroDivisionError

    def note(connection: Connection) -> None:
        begun.append(connection)

    sa.event.listen(Engine, "begin", note)
    try:
        first, second, third = site.queued(lose, lambda: site.run("third"))
    finally:
        sa.event.remove(Engine, "begin", note)
    assert isinstance(first.exception(), Unreachable)
    assert isinstance(second.exception(), ZeroDivisionError)
    assert third.result() == 0
    assert site.entries() == ["third"]
    assert site.runs("first", "second", "third") == [False, False, True]


def test_who_is_alone_finds_everything_before_it_on_disk(site: Site, commits: list[int]) -> None:
    found: list[list[str]] = []

    def alone() -> int:
        with site.store.transaction() as transaction:
            found.append(site.entries())
            return site.add(transaction, "alone")

    told = site.queued(alone, lambda: site.run("third"))
    assert [future.result() for future in told] in ([0, 1, 2], [0, 2, 1])
    assert "first" in found[0]
    assert len(found[0]) == told[1].result()
    assert len(commits) >= 2


def test_what_an_owner_hands_in_is_seen_by_every_block_behind_it(site: Site) -> None:
    seen: list[tuple[bytes, ...]] = []  # in the order of turns, which is nobody's choice

    def reads(name: str) -> int:
        with site.store.transaction(alone=False) as transaction:
            seen.append(transaction.decisions(limit=9))
            return site.add(transaction, name)

    def hands_in() -> int:
        with site.store.transaction() as transaction:
            assert transaction.decisions(limit=9) == ()
            transaction.add_decision(digest="1" * 64, **TARGET, envelope=b"no", ledger_index=0)
            seen.append(transaction.decisions(limit=9))
        return 0

    site.queued(lambda: reads("before"), hands_in, lambda: reads("behind"), lambda: reads("last"))
    reads("later")
    handed_in = seen.index((b"no",))
    assert seen == [()] * handed_in + [(b"no",)] * (5 - handed_in)


def test_what_owners_handed_in_is_read_once_for_all_that_share_a_commit(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    run = statements.run

    def counted(connection: Connection, statement: object, values: object) -> object:
        asked.append(statement)
        return run(connection, statement, values)  # type: ignore[arg-type]

    monkeypatch.setattr(statements, "run", counted)

    def reads(name: str) -> int:
        with site.store.transaction(alone=False) as transaction:
            transaction.decisions(limit=9)
            transaction.successions.require_none()
            assert transaction.owner_documents.in_force("owner-policy") == {}
            return site.add(transaction, name)

    site.queued(*(lambda name=name: reads(name) for name in ("second", "third", "fourth")))
    assert asked.count(statements.DECISIONS) == 1
    assert asked.count(statements.BEGIN_RUN) == 4


def test_what_is_written_at_once_is_undone_like_anything_else(site: Site) -> None:
    def twice() -> int:
        with site.store.transaction(alone=False) as transaction, transaction.at_once():
            site.add(transaction, "twice")
            return site.add(transaction, "twice")

    _, bad, good = site.queued(twice, lambda: site.run("good"))
    assert isinstance(bad.exception(), Exception)
    assert site.runs("first", "twice", "good") == [True, False, True]
    assert sorted(site.entries()) == ["first", "good"]
    assert good.exception() is None


def test_entries_that_wait_are_not_read_nor_proven(site: Site) -> None:
    with site.store.transaction(alone=False) as transaction:
        assert site.add(transaction, "waits") == 0
        assert site.ledger.size == 0
        assert site.ledger.entries() == []
        head = site.ledger.checkpoint()
    assert site.ledger.size == 1
    site.ledger.audit([head, site.ledger.checkpoint()])


def test_who_gives_up_waiting_leaves_nobody_without_a_commit(
    database: Path | Postgres, tmp_path: Path
) -> None:
    inside, go = threading.Event(), threading.Event()
    with site_with(database, tmp_path, turn_seconds=0.05) as site:

        def first() -> int:
            with site.store.transaction(alone=False) as transaction:
                inside.set()
                assert go.wait(20)
                return site.add(transaction, "first")

        told = site.threads.submit(first)
        assert inside.wait(20)
        with pytest.raises(Unreachable) as late:
            site.run("late")
        assert (late.value.check, late.value.expected) == ("database", "a turn within 0.05 s")
        go.set()
        assert told.result(20) == 0
        assert site.entries() == ["first"]


def test_a_group_takes_so_many_and_then_commits(
    database: Path | Postgres, tmp_path: Path, commits: list[int]
) -> None:
    with site_with(database, tmp_path, blocks=2) as site:
        names = ["second", "third", "fourth"]
        commits.clear()
        told = site.queued(*(lambda name=name: site.run(name) for name in names))
        assert sorted(future.result() for future in told) == [0, 1, 2, 3]
        assert len(commits) == 2


@pytest.mark.parametrize(
    ("group", "waiting", "full", "alone", "expected"),
    [
        (GroupState.OPEN, 0, False, False, AfterBlock.COMMIT),
        (GroupState.OPEN, 3, False, False, AfterBlock.LEAVE_OPEN),
        (GroupState.OPEN, 3, True, False, AfterBlock.COMMIT),
        (GroupState.OPEN, 3, False, True, AfterBlock.COMMIT),
        (GroupState.UNDONE, 3, True, True, AfterBlock.NOTHING),
        (GroupState.ON_DISK, 0, False, False, AfterBlock.NOTHING),
        (None, 0, True, True, AfterBlock.NOTHING),
    ],
)
def test_what_happens_to_a_group_after_a_block(
    group: GroupState | None, waiting: int, full: bool, alone: bool, expected: AfterBlock
) -> None:
    assert after_block(group, waiting=waiting, full=full, alone=alone) is expected


def test_many_threads_get_one_place_each(site: Site, commits: list[int]) -> None:
    names = [f"run-{number}" for number in range(60)]
    indices = list(site.threads.map(site.run, names))
    assert sorted(indices) == list(range(60))
    entries = site.entries()
    assert [entries[index] for index in indices] == names
    assert all(site.runs(*names))
    assert len(commits) <= 60
    assert site.ledger.audit().size == 60
