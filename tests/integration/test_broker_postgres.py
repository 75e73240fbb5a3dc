"""A broker whose memory is in PostgreSQL: shared by several, restarted, crashed under load."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from postgres_server import DATABASE, Server
from programs import need
from release_world import ROOT, ReleaseWorld, release_world, renewed
from typer.testing import CliRunner
from world import NOW

from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.broker.service.rotating import rotate_key
from sealtrain.broker.store.memory import Store
from sealtrain.broker.store.schema import HEAD
from sealtrain.cli import app
from sealtrain.client.grant import Grant
from sealtrain.consortium.receipts import RunDataset, receipt_digest
from sealtrain.errors import SealtrainError, SignatureInvalid, Unreachable
from sealtrain.keys.derive import signing_key
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.postgres import Postgres
from sealtrain.release.messages import ChallengeRequest, load_message
from sealtrain.signing.ed25519 import Ed25519Signer

SIGNER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))

pytestmark = [pytest.mark.long, pytest.mark.claim("C43")]


@pytest.fixture
def world(postgres: Server, tmp_path: Path) -> Iterator[ReleaseWorld]:
    with release_world(tmp_path, database=postgres.database()) as made:
        yield made


def test_it_releases_renews_and_audits_as_with_files(world: ReleaseWorld) -> None:
    grant = world.obtain()
    world.clock.now += 60
    renewed(world, grant)
    head = world.ledger.audit()
    kinds = [entry["kind"] for entry in world.ledger.entries()]
    assert kinds[-2:] == ["release", "renewal"]
    assert head.size == len(kinds)


def test_its_ledgers_key_follows_from_another_root_secret(
    world: ReleaseWorld, postgres: Server
) -> None:
    where = Postgres.parse(postgres.url(DATABASE))
    origin, new = world.ledger.origin, Secret(bytes([9]) * 32)
    index = rotate_key(where, origin, old=Secret(ROOT), new=new, now=NOW)
    assert index == world.ledger.size - 1
    with Ledger.open(where, origin=origin, signer=signing_key(new, "broker")) as ledger:
        assert ledger.keys[0] == world.keyring.signer.public
        assert ledger.append("refusal", {}) == index + 1
    with pytest.raises(SignatureInvalid):
        Ledger.open(where, origin=origin, signer=world.keyring.signer)


def test_a_role_that_owns_its_database_and_nothing_else_is_enough(postgres: Server) -> None:
    name = postgres.new_database()
    with postgres.sql("postgres") as admin:
        admin.execute(f"CREATE ROLE plain LOGIN PASSWORD '{postgres.password}'")
        admin.execute(f"ALTER DATABASE {name} OWNER TO plain")
    where = Postgres.parse(postgres.url(name).replace("//broker:", "//plain:"))
    for _ in range(2):
        Store(where).close()
        with Ledger.open(where, origin="sealtrain/ledger/plain", signer=SIGNER) as ledger:
            ledger.append("refusal", {})


@pytest.mark.claim("C9")
def test_no_key_is_in_the_database(world: ReleaseWorld, postgres: Server) -> None:
    world.obtain()
    address = postgres.url(DATABASE).replace("+psycopg", "")
    dump = subprocess.run(
        [need("postgresql")["pg_dump"], address], check=True, capture_output=True
    ).stdout
    assert world.consortium.consortium_id.encode() in dump
    assert world.sealed["hospital-a"].pin.dataset_id.encode() in dump
    for key in [dataset.key.reveal() for dataset in world.sealed.values()] + [ROOT]:
        for form in (key, key.hex().encode(), to_base64(key).encode()):
            assert form not in dump


def test_of_two_brokers_on_one_database_one_burns_a_challenge(
    world: ReleaseWorld, postgres: Server
) -> None:
    """Each has connections of its own, as two processes have."""
    where = Postgres.parse(postgres.url(DATABASE))
    body = {
        "version": 1,
        "consortium_id": world.consortium.consortium_id,
        "purpose": "release",
    }
    asked = load_message(ChallengeRequest, canonical_json(body))
    issued = [world.broker.challenge(asked).challenge for _ in range(5)]
    stores = [Store(where) for _ in range(3)]
    won: list[str] = []
    together = threading.Barrier(len(stores))

    def burn(store: Store) -> None:
        together.wait()
        for challenge in issued:
            with store.transaction() as transaction:
                if transaction.challenges.use(challenge, expires_at=NOW + 120):
                    won.append(challenge)

    threads = [threading.Thread(target=burn, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert sorted(won) == sorted(issued)


def test_ledgers_of_several_brokers_are_one(world: ReleaseWorld, postgres: Server) -> None:
    where = Postgres.parse(postgres.url(DATABASE))
    before = world.ledger.size
    signer = world.keyring.signer
    ledgers = [Ledger.open(where, origin=world.ledger.origin, signer=signer) for _ in range(3)]
    taken: list[int] = []

    def write(ledger: Ledger) -> None:
        for number in range(10):
            index = ledger.append("refusal", {"number": number})
            taken.append(index)
            assert ledger.proof(index).size > index

    threads = [threading.Thread(target=write, args=(ledger,)) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(before, before + 30))
    roots = {ledger.root() for ledger in ledgers}
    for ledger in ledgers:
        ledger.close()
    assert roots == {world.ledger.root()}


def test_tables_and_ledger_change_together_or_not_at_all(
    world: ReleaseWorld, postgres: Server
) -> None:
    """The connection breaks after the ledger's entry was written, before the commit."""
    size, root = world.ledger.size, world.ledger.root()
    body = {"run_id": "d" * 32, "receipt_digest": "e" * 64}

    def cut_off() -> None:
        with world.store.transaction() as transaction:
            ids = {"app_id": "a", "compose_hash": "b", "recipe_hash": "c"}
            transaction.begin_run("d" * 32, **ids, data=[RunDataset("a", "e", "f")], now=NOW)
            indices = [world.ledger.append("release", body) for _ in range(3)]
            assert indices == list(range(size, size + 3))
            assert world.ledger.size == size  # not there for anybody yet
            with postgres.sql(DATABASE) as admin:
                admin.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            transaction.grant_lease("1" * 64, "d" * 32, not_after=NOW, instance_id="i", now=NOW)

    with pytest.raises(Unreachable):
        cut_off()
    assert (world.ledger.size, world.ledger.root()) == (size, root)
    with world.store.transaction() as transaction:
        assert transaction.run("d" * 32) is None
        assert world.ledger.append("release", body) == size
    world.obtain()
    assert world.ledger.audit().size == world.ledger.size > size + 1


class Load:
    """Threads that ask for releases until told to stop; what they were told is kept."""

    def __init__(self, world: ReleaseWorld, threads: int = 2) -> None:
        self.world = world
        self.grants: list[Grant] = []
        self.failures: list[BaseException] = []
        self.unreachable = 0
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._ask) for _ in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def until(self, told: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(told, 60), (len(self.grants), self.unreachable)

    def more(self, count: int) -> None:
        """Wait for so many further releases."""
        goal = len(self.grants) + count
        self.until(lambda: len(self.grants) >= goal or bool(self.failures))

    def _ask(self) -> None:
        attested = self.world.attest()
        while not self._stop.is_set() and not self.failures:
            try:
                grant = self.world.obtain(attested=attested, run_id=os.urandom(16).hex())
            except Unreachable:
                with self._changed:
                    self.unreachable += 1
                    self._changed.notify_all()
                self._stop.wait(0.05)
            except BaseException as error:
                with self._changed:
                    self.failures.append(error)
                    self._changed.notify_all()
            else:
                with self._changed:
                    self.grants.append(grant)
                    self._changed.notify_all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="restart"),
        pytest.param(signal.SIGKILL, id="kill -9", marks=pytest.mark.nightly),
    ],
)
def test_a_database_that_ends_under_load_loses_nothing_acknowledged(
    postgres: Server, tmp_path: Path, number: int
) -> None:
    where = postgres.database()
    with release_world(tmp_path, database=where) as world:
        with Load(world) as load:
            for _ in range(2):
                load.more(3)
                postgres.stop(number)
                gone = load.unreachable
                load.until(lambda gone=gone: load.unreachable > gone + 2)  # type: ignore[misc]
                postgres.start()
            load.more(3)
        assert load.failures == []
        world.ledger.audit([grant.receipts[-1].proof.checkpoint for grant in load.grants])
        entries = [entry for entry in world.ledger.entries() if entry["kind"] == "release"]
        recorded = {entry["body"]["receipt_digest"] for entry in entries}
        assert {receipt_digest(grant.receipts[-1].envelope) for grant in load.grants} <= recorded
        with world.store.transaction() as transaction:
            for grant in load.grants:
                assert transaction.run(grant.run_id) is not None
                assert transaction.lease(grant.lease_id) is not None


def test_a_database_that_is_gone_is_named_without_its_password(
    postgres: Server, tmp_path: Path
) -> None:
    with release_world(tmp_path, database=postgres.database()) as world:
        postgres.stop()
        try:
            with pytest.raises(Unreachable) as caught:
                world.obtain()
            with pytest.raises(Unreachable):
                world.broker.condition.require()
        finally:
            postgres.start()
        said = str(caught.value) + str(caught.value.hint)
        assert "broker_1 at 127.0.0.1" in said
        assert postgres.password not in said
        world.obtain()  # by itself, once the server is back


def test_its_tables_are_brought_on_by_command(postgres: Server, tmp_path: Path) -> None:
    address = tmp_path / "database"
    address.write_text(postgres.url(postgres.emptied()))
    address.chmod(0o600)
    words = ["broker", "migrate", "--database", f"file:{address}", "--json"]
    for before in ("null", f'"{HEAD}"'):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert f'"before": {before}' in done.stdout
    done = CliRunner().invoke(app, ["broker", "migrate"])
    assert isinstance(done.exception, SealtrainError)
    assert done.exception.code == "usage"
