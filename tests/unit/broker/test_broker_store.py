"""The broker's memory: single use, monotonic, all or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from postgres_server import Server
from sqlalchemy.exc import IntegrityError

from sealtrain.broker.errors import RequestReplayed, TokenRefused
from sealtrain.broker.store.memory import Store
from sealtrain.broker.store.tokens import TokenState, admit_token, scope_of
from sealtrain.consortium.errors import ConsortiumMismatch
from sealtrain.consortium.receipts import Anchor, OwnedId, RunDataset
from sealtrain.errors import LimitExceeded, Unreachable
from sealtrain.ledger.postgres import Postgres

pytestmark = pytest.mark.long

NOW = 1_790_000_000
TARGET = {"app_id": "a" * 40, "compose_hash": "b" * 64, "recipe_hash": "c" * 64}
DATA = [RunDataset("3" * 64, "1" * 32, "2" * 64)]


@pytest.fixture
def store(database: Path | Postgres) -> Iterator[Store]:
    """In a file, then in a database of a real server."""
    made = Store(database)
    yield made
    made.close()


def use(store: Store, challenge: str, *, now: int = NOW) -> bool:
    with store.transaction() as transaction:
        transaction.challenges.forget(transaction.challenges.memory(), now=now)
        return transaction.challenges.use(challenge, expires_at=NOW + 120)


def test_a_challenge_is_used_once(store: Store) -> None:
    assert [use(store, "one"), use(store, "one"), use(store, "two")] == [True, False, True]


def test_of_many_threads_one_uses_a_challenge(store: Store) -> None:
    with ThreadPoolExecutor(12) as pool:
        won = list(pool.map(lambda _: use(store, "one"), range(12)))
    assert sorted(won) == [False] * 11 + [True]


def test_two_brokers_share_one_memory(store: Store, database: Path | Postgres) -> None:
    other = Store(database)
    try:
        assert use(other, "one")
        with store.reading() as mine, other.reading() as theirs:
            assert mine.challenges.memory() == theirs.challenges.memory()
    finally:
        other.close()
    assert not use(store, "one")


def test_used_challenges_are_forgotten_an_hour_after_their_end_and_it_is_known(
    store: Store,
) -> None:
    use(store, "one")
    assert not use(store, "one", now=NOW + 3700)
    with store.reading() as transaction:
        assert transaction.challenges.memory().forgotten_before <= NOW + 120
        assert transaction.counts(NOW)[0] == 1
    use(store, "two", now=NOW + 4000)
    with store.reading() as transaction:
        assert transaction.challenges.memory().forgotten_before == NOW + 400
        assert transaction.counts(NOW)[0] == 1


def test_reading_waits_for_no_writer_and_shows_what_was_committed(store: Store) -> None:
    with store.transaction() as writing:
        writing.begin_run("d" * 32, **TARGET, data=DATA, now=NOW)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(found, store).result(10) is None
    assert found(store) is not None


def found(store: Store) -> object:
    with store.reading() as transaction:
        return transaction.run("d" * 32)


def test_reading_writes_nothing_into_a_server(postgres: Server) -> None:
    store = Store(postgres.database())
    try:
        with pytest.raises(Unreachable) as caught, store.reading() as transaction:
            transaction.begin_run("d" * 32, **TARGET, data=DATA, now=NOW)
    finally:
        store.close()
    assert caught.value.got == "ReadOnlySqlTransaction"


def test_a_block_that_raises_leaves_nothing(store: Store) -> None:
    def begin_and_fail() -> None:
        with store.transaction() as transaction:
            transaction.begin_run("d" * 32, **TARGET, data=DATA, now=NOW)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        begin_and_fail()
    with store.transaction() as transaction:
        assert transaction.run("d" * 32) is None


def test_a_run_remembers_its_newest_checkpoint(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.begin_run("d" * 32, **TARGET, data=DATA, now=NOW)
        begun = transaction.run("d" * 32)
        transaction.anchor("d" * 32, Anchor(counter=3, digest="e" * 64))
        run = transaction.run("d" * 32)
    assert begun is not None
    assert begun.checkpoint is None
    assert begun.data == frozenset(DATA)
    assert run is not None
    assert run.checkpoint == Anchor(counter=3, digest="e" * 64)
    assert run.recipe_hash == TARGET["recipe_hash"]


def test_a_new_lease_ends_the_ones_before(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.begin_run("d" * 32, **TARGET, data=DATA, now=NOW)
        for lease in ("1" * 64, "2" * 64):
            transaction.grant_lease(lease, "d" * 32, not_after=NOW + 60, instance_id="i", now=NOW)
        transaction.extend_lease("2" * 64, not_after=NOW + 99)
        first, second = transaction.lease("1" * 64), transaction.lease("2" * 64)
        assert transaction.lease("3" * 64) is None
    assert first is not None
    assert second is not None
    assert (first.superseded, second.superseded) == (True, False)
    assert second.not_after == NOW + 99


def test_a_lease_needs_a_run(store: Store) -> None:
    with pytest.raises(Exception, match=r"(?i)foreign.?key"), store.transaction() as transaction:
        transaction.grant_lease("1" * 64, "d" * 32, not_after=NOW, instance_id="", now=NOW)


def test_decisions_come_back_in_order_and_bounded(store: Store) -> None:
    with store.transaction() as transaction:
        for number in range(3):
            transaction.add_decision(
                digest=str(number) * 64, **TARGET, envelope=b"%d" % number, ledger_index=number
            )
        assert transaction.decisions(limit=3) == (b"0", b"1", b"2")
        assert transaction.decision("1" * 64) == (1, "1" * 64, b"1")
        assert transaction.decision("9" * 64) is None
        with pytest.raises(LimitExceeded):
            transaction.decisions(limit=2)


def test_a_dataset_has_one_manifest_for_each_deployment(store: Store) -> None:
    one, two = ({"app_id": letter * 40, "compose_hash": letter * 64} for letter in "ab")
    with store.transaction() as transaction:
        for number, deployment in enumerate((one, one, two)):
            transaction.put_dataset(
                OwnedId("a", "f" * 32),
                **deployment,
                digest=str(number),
                envelope=b"%d" % number,
                ledger_index=number,
            )
        transaction.put_dataset(
            OwnedId("b", "f" * 32), **two, digest="3", envelope=b"3", ledger_index=3
        )
        found = transaction.manifests_of_dataset(OwnedId("a", "f" * 32))
        assert found[one["app_id"], one["compose_hash"]] == (1, "1", b"1")
        assert found[two["app_id"], two["compose_hash"]] == (2, "2", b"2")
        assert transaction.owners_of_dataset("f" * 32) == {"a", "b"}
        ids = [OwnedId("a", "f" * 32), OwnedId("a", "0" * 32)]
        assert transaction.datasets(ids, **one) == {"f" * 32: b"1"}
        assert transaction.datasets(ids, app_id="c", compose_hash="c") == {"f" * 32: b"2"}
        assert transaction.datasets([OwnedId("b", "f" * 32)], **one) == {"f" * 32: b"3"}


def test_a_nonce_serves_once_for_each_key_until_it_is_over(store: Store) -> None:
    def spend(key: str, nonce: str, *, now: int = NOW) -> None:
        with store.transaction() as transaction:
            transaction.nonces.spend(key, nonce, now=now, forget_after=now + 100)

    spend("a", "0f")
    spend("b", "0f")
    for now in (NOW, NOW + 100):
        with pytest.raises(RequestReplayed):
            spend("a", "0f", now=now)
    spend("a", "0f", now=NOW + 101)  # forgotten: the request itself is too old by then


def test_of_many_that_spend_one_nonce_one_does(store: Store) -> None:
    def spend(_: int) -> bool:
        try:
            with store.transaction() as transaction:
                transaction.nonces.spend("a", "aa", now=NOW, forget_after=NOW + 1)
        except RequestReplayed:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(spend, range(16))) == 1


def test_tokens_are_found_by_what_they_are(store: Store) -> None:
    made = TokenState(name="one", scope="status", made_at=NOW, not_after=NOW + 1)
    with store.transaction() as transaction:
        transaction.tokens.add("secret", made)
    for shown, scope, now in (
        ("other", "status", NOW),
        ("secret", "metrics", NOW),
        ("secret", "status", NOW + 2),
    ):
        with store.transaction() as transaction, pytest.raises(TokenRefused):
            admit_token(transaction.tokens.list_tokens(), shown, scope_of(scope), now=now)
    with store.transaction() as transaction:
        assert (
            admit_token(transaction.tokens.list_tokens(), "secret", "status", now=NOW + 1) == made
        )
        transaction.tokens.remove("one")
        assert transaction.tokens.all() == []


def test_documents_are_found_by_subject_and_by_the_data_of_a_run(store: Store) -> None:
    with store.transaction() as transaction:
        data = {RunDataset("a", f"d{number}", "x") for number in (1, 2, 3)}
        transaction.begin_run("r1", **TARGET, data=data, now=NOW)
        documents = transaction.owner_documents
        d1, d4 = OwnedId("a", "d1"), OwnedId("a", "d4")
        assert documents.about("gone", "r1", [d1, d4]) == {}
        documents.add(
            "gone",
            owner="eve",
            owner_id="e",
            digest="w",
            envelope=b"w",
            subjects=["d1", "d2", "d3", "d4"],
            ledger_index=6,
        )
        for digest, subjects, index in (("x", ["d3", "d4"], 7), ("y", ["d4"], 8)):
            documents.add(
                "gone",
                owner="ada",
                owner_id="a",
                digest=digest,
                envelope=digest.encode(),
                subjects=subjects,
                ledger_index=index,
            )
    with store.transaction() as transaction:
        documents = transaction.owner_documents
        assert documents.about("gone", "r1") == {"d3": "ada"}
        assert documents.about("gone", "r1", [d4]) == {"d3": "ada", "d4": "ada"}
        assert documents.about("gone", "r2", [d1]) == {}
        assert documents.about("another kind", "r1", [d4]) == {}
        assert [documents.find_recorded(name) for name in ("x", "y", "z")] == [7, 8, None]
        assert documents.in_force("gone") == {"ada": ("y", b"y"), "eve": ("w", b"w")}
        assert documents.in_force("another kind") == {}


def test_a_consortium_has_one_successor(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.successions.require_none()
        transaction.successions.add("ab" * 32, "one", ledger_index=3)
    with pytest.raises(IntegrityError), store.transaction() as transaction:
        transaction.successions.add("cd" * 32, "two", ledger_index=4)
    with store.transaction() as transaction:
        assert transaction.successions.find_recorded() == ("ab" * 32, "one", 3)
        with pytest.raises(ConsortiumMismatch):
            transaction.successions.require_none()


def test_a_crash_in_mid_transaction_leaves_the_state_before(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = tmp_path / "broker.sqlite"
    script = (
        "import os, sys; from pathlib import Path\n"
        "from sealtrain.broker.store.memory import Store\n"
        "from sealtrain.consortium.receipts import RunDataset\n"
        "store = Store(Path(sys.argv[1]))\n"
        "with store.transaction() as transaction:\n"
        "    ids = dict(app_id='a', compose_hash='b', recipe_hash='c')\n"
        "    transaction.begin_run('d' * 32, **ids, data=[RunDataset('a', 'e', 'f')], now=1)\n"
        "    os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == 9
    store = Store(path)
    with store.transaction() as transaction:
        assert transaction.run("d" * 32) is None
    store.close()
