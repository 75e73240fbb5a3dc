"""Whoever administers the database, answers in its place, reads the command line, puts a copy back.

What they change is noticed; what they could read is not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from carrying import carries
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from postgres_server import Server
from programs import need
from release_world import release_world
from typer.testing import CliRunner
from variants import variants
from world import NOW

from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import to_base64
from sealtrain.broker.address import database_of
from sealtrain.broker.store.memory import Store
from sealtrain.broker.store.restore import settle
from sealtrain.cli import app
from sealtrain.errors import (
    ConfigError,
    KeyFileInvalid,
    LedgerInconsistent,
    SealtrainError,
    Unreachable,
    UsageError,
)
from sealtrain.ledger.ledger import Ledger, verify_extension
from sealtrain.ledger.postgres import Postgres
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.errors import ProofInvalid

pytestmark = [pytest.mark.long, pytest.mark.claim("C13"), pytest.mark.claim("C63")]

ORIGIN = "sealtrain/ledger/attack"
SIGNER = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
ENTRIES = 13
FORGED = canonical_json({"kind": "approval", "at": "2026-03-01T12:00:00Z", "body": {"n": 99}}).hex()
LEDGER = "sealtrain_ledger"


def open_ledger(where: Postgres) -> Ledger:
    return Ledger.open(where, origin=ORIGIN, signer=SIGNER, clock=lambda: NOW)


@pytest.fixture
def name(postgres: Server) -> str:
    return postgres.emptied()


@pytest.fixture
def where(postgres: Server, name: str) -> Postgres:
    """A closed ledger with some history."""
    found = Postgres.parse(postgres.url(name))
    with open_ledger(found) as ledger:
        ledger.append_all(("approval", {"n": n}) for n in range(ENTRIES))
    return found


@pytest.fixture
def admin(postgres: Server, name: str) -> Iterator[psycopg.Connection]:
    with postgres.sql(name) as connection:
        connection.execute(f"SET search_path = {LEDGER}")
        yield connection


def edit(admin: psycopg.Connection, *statements: str) -> None:
    """Edit as the owner of the tables: triggers are lifted and put back as they were."""
    for table in ("entry", "node", "meta"):
        admin.execute(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
    for statement in statements:
        admin.execute(statement.replace("FORGED", FORGED))
    for table in ("entry", "node", "meta"):
        admin.execute(f"ALTER TABLE {table} ENABLE TRIGGER ALL")
        admin.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER refuse")
    admin.execute("ALTER TABLE entry ENABLE ALWAYS TRIGGER next")


@pytest.mark.parametrize("role", ["origin", "replica"])
def test_the_database_itself_refuses_to_change_what_is_in_it(
    where: Postgres, admin: psycopg.Connection, role: str
) -> None:
    admin.execute(f"SET session_replication_role = {role}")  # a replica skips usual triggers
    for statement in (
        "UPDATE entry SET data = '\\x7b7d' WHERE i = 0",
        "DELETE FROM entry WHERE i = 2",
        "TRUNCATE entry",
        "TRUNCATE entry, node, meta",
        "INSERT INTO entry (i, data) VALUES (14, '\\x7b7d')",
        "INSERT INTO entry (i, data) VALUES (0, '\\x7b7d') "
        "ON CONFLICT (i) DO UPDATE SET data = '\\x7b7d'",
        "UPDATE node SET hash = '\\x00' WHERE level = 0",
        "DELETE FROM node",
        "INSERT INTO node VALUES (0, 0, '\\x00') ON CONFLICT (level, i) DO UPDATE SET hash = '\\x'",
        "UPDATE meta SET value = 'x'",
        "DELETE FROM meta",
    ):
        with pytest.raises(psycopg.errors.RaiseException, check=carries(sqlstate="P0001")):
            admin.execute(statement)
    with open_ledger(where) as ledger:
        assert ledger.size == ENTRIES


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET data = '\\xFORGED' WHERE i = 5",
        "UPDATE entry SET data = (SELECT data FROM entry WHERE i = 4) WHERE i = 5",
        "DELETE FROM entry WHERE i = 0",
        "DELETE FROM entry WHERE i = 12",
        "INSERT INTO entry (i, data) VALUES (13, '\\xFORGED')",
        "INSERT INTO entry (i, data) VALUES (-1, '\\xFORGED')",
        "UPDATE node SET hash = decode(repeat('00', 32), 'hex') WHERE level = 3 AND i = 0",
        "DELETE FROM node WHERE level = 2 AND i = 1",
        "INSERT INTO node (level, i, hash) VALUES (0, 99, '\\x00')",
        "INSERT INTO node (level, i, hash) VALUES (-1, 0, '\\x00')",
        "DELETE FROM node",
        "DELETE FROM entry",
    ],
)
def test_an_edited_ledger_does_not_open(
    where: Postgres, admin: psycopg.Connection, statement: str
) -> None:
    edit(admin, statement)
    with pytest.raises(LedgerInconsistent, check=carries(check="stored ledger")):
        open_ledger(where)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER refuse ON entry",
        "ALTER TABLE entry DISABLE TRIGGER refuse",
        "ALTER TABLE entry ENABLE TRIGGER refuse",  # not in a session that replicates
        "ALTER TABLE node DISABLE TRIGGER ALL",
        "CREATE OR REPLACE FUNCTION sealtrain_ledger.refuse() RETURNS trigger LANGUAGE plpgsql "
        "AS 'BEGIN RETURN NEW; END'",
        "CREATE TRIGGER quiet AFTER INSERT ON entry FOR EACH ROW EXECUTE FUNCTION refuse()",
        "CREATE RULE quiet AS ON DELETE TO node DO INSTEAD NOTHING",
        "CREATE TABLE spare (x int)",
        "CREATE VIEW spare AS SELECT 1",
        "CREATE TABLE more () INHERITS (entry)",
        "ALTER TABLE node ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE node SET UNLOGGED",  # emptied by the next crash
        "ALTER TABLE entry DROP CONSTRAINT entry_pkey",
        "ALTER TABLE entry ALTER data DROP NOT NULL",
        "ALTER TABLE entry ADD more text",
        "ALTER TABLE entry ALTER data SET DEFAULT '\\x00'",
    ],
)
def test_a_ledger_of_another_structure_does_not_open(
    where: Postgres, admin: psycopg.Connection, statement: str
) -> None:
    admin.execute(statement)
    with pytest.raises(LedgerInconsistent, check=carries(check="stored ledger")):
        open_ledger(where)


def test_another_ledger_cannot_take_its_place(where: Postgres) -> None:
    for origin, signer in (
        ("sealtrain/ledger/other", SIGNER),
        (ORIGIN, Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32))),
    ):
        with pytest.raises(LedgerInconsistent):
            Ledger.open(where, origin=origin, signer=signer)


def test_entries_that_vanish_under_a_running_broker_stop_it(
    where: Postgres, admin: psycopg.Connection
) -> None:
    with open_ledger(where) as ledger:
        kept = ledger.checkpoint()
        edit(admin, "DELETE FROM entry WHERE i > 9", "DELETE FROM node WHERE (i + 1) << level > 10")
        with pytest.raises(LedgerInconsistent, check=carries(check="ledger size", got="10")):
            ledger.append("release", {})
        assert ledger.size == 10
    # Alone, what is left holds together: a new broker cannot know. Whoever kept a head does.
    with open_ledger(where) as ledger:
        with pytest.raises(LedgerInconsistent):
            ledger.audit([kept])
        ledger.append_all(("release", {}) for _ in range(5))
        with pytest.raises((LedgerInconsistent, ProofInvalid)):
            verify_extension(
                kept, ledger.checkpoint(), ledger.consistency(13), SIGNER.public, origin=ORIGIN
            )


def test_a_server_with_another_history_cannot_take_over(
    where: Postgres, admin: psycopg.Connection, name: str
) -> None:
    """A standby that lagged: the connection breaks, and the new one shows fewer or others."""
    with open_ledger(where) as ledger:
        ledger.append("revocation", {"owner": "ada"})
        ledger.checkpoint()  # shown to somebody
        edit(
            admin, "DELETE FROM entry WHERE i > 12", "DELETE FROM node WHERE (i + 1) << level > 13"
        )
        with open_ledger(where) as other:
            other.append_all(("release", {}) for _ in range(3))
        cut(admin, name)
        with pytest.raises(
            LedgerInconsistent, check=carries(check="ledger size", got="another history")
        ):
            ledger.checkpoint()
        with pytest.raises(
            LedgerInconsistent, check=carries(check="ledger size", got="another history")
        ):
            ledger.append("release", {})


def cut(admin: psycopg.Connection, name: str) -> None:
    admin.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = %s AND pid <> pg_backend_pid()",
        [name],
    )


def test_cut_connections_are_made_anew_and_nothing_is_lost(
    where: Postgres, admin: psycopg.Connection, name: str
) -> None:
    with open_ledger(where) as ledger:
        for number in range(3):
            cut(admin, name)
            assert ledger.append("release", {}) == ENTRIES + number
            cut(admin, name)
            assert ledger.proof(ENTRIES + number).size == ENTRIES + number + 1
        ledger.audit()


# An audit says where


def audited(postgres: Server, folder: Path, *statements: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of ``log audit`` over a small consortium's database."""
    name = postgres.emptied()
    with release_world(folder, database=Postgres.parse(postgres.url(name))) as world:
        world.obtain()
        (folder / "consortium.json").write_bytes(world.consortium.to_bytes())
        memory = {
            "version": 1,
            "origin": world.ledger.origin,
            "public_key": to_base64(world.keyring.signer.public),
            "checkpoint": world.ledger.checkpoint(),
        }
    with postgres.sql(name) as admin:
        admin.execute(f"SET search_path = {LEDGER}, public")
        edit(admin, *statements)
    for file, data in (
        ("memory.json", canonical_json(memory)),
        ("address", postgres.url(name).encode()),
    ):
        (folder / file).write_bytes(data)
        (folder / file).chmod(0o600)
    words = ["log", "audit", "--database", f"file:{folder / 'address'}", "--json"]
    words += ["--consortium", str(folder / "consortium.json")]
    done = CliRunner().invoke(app, [*words, "--memory", str(folder / "memory.json")])
    return done.exit_code, json.loads(done.stdout)


def test_an_audit_of_an_honest_database_holds(postgres: Server, tmp_path: Path) -> None:
    code, report = audited(postgres, tmp_path)
    assert report["findings"] == []
    assert code == 0
    assert report["kinds"]["release"] == 1


DOCTORED = [
    ("UPDATE entry SET data = '\\xFORGED' WHERE i = 4", "stored hash"),
    ("DELETE FROM entry WHERE i = 3", "entry missing"),
    ("UPDATE node SET hash = '\\x00' WHERE level = 1 AND i = 0", "stored hash"),
    ("CREATE TABLE spare (x int)", "file"),
    ("DROP TABLE node CASCADE", "file"),
    ("UPDATE meta SET value = 'x' WHERE name = 'origin'", "file"),
    ("DELETE FROM decisions", "database"),
    ("DROP TABLE decisions", "database"),
]


@pytest.mark.parametrize(
    ("statement", "check"),
    variants(
        DOCTORED,
        each_time=[
            ("UPDATE entry SET data = '\\xFORGED' WHERE i = 4", "stored hash"),
            ("DELETE FROM entry WHERE i = 3", "entry missing"),
            ("DROP TABLE node CASCADE", "file"),
            ("DELETE FROM decisions", "database"),
        ],
    ),
)
def test_an_audit_of_a_doctored_database_says_where(
    postgres: Server, tmp_path: Path, statement: str, check: str
) -> None:
    statements = [statement]
    if "node CASCADE" in statement:  # so that the triggers can be put back
        statements.append("CREATE TABLE node AS SELECT 0 AS level, 0 AS i, '\\x00'::bytea AS hash")
        statements.append(
            "CREATE TRIGGER refuse BEFORE UPDATE ON node "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
        )
    code, report = audited(postgres, tmp_path, *statements)
    assert code == 3
    assert check in {finding["check"] for finding in report["findings"]}


# What is shown


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))


def test_a_password_is_shown_nowhere(postgres: Server, tmp_path: Path) -> None:
    word = "correct-horse-battery"
    address = f"postgresql+psycopg://broker:{word}@127.0.0.1:{postgres.port}/postgres"
    place = Postgres.parse(address)
    assert word not in repr(place) + str(place)
    file = tmp_path / "database"
    file.write_text(address + "\n")
    file.chmod(0o600)
    wrong = database_of(f"file:{file}")
    assert wrong is not None
    for act in (
        lambda: Store(wrong),
        lambda: open_ledger(wrong),
        lambda: Postgres.parse(f"{address}%zz"),
        lambda: Postgres.parse(f"{address}?nonsense={word}"),
        lambda: Postgres.parse(f"mysql:{word}@host/db"),
        lambda: database_of(address),
    ):
        with pytest.raises(SealtrainError) as caught:
            act()
        assert word not in shown(caught.value), act
    words = ["broker", "migrate", "--database", address]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, UsageError)
    assert word not in done.output + shown(done.exception)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_an_address_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "database"
    file.write_text("postgresql://broker:secret@127.0.0.1/broker")
    file.chmod(mode)
    with pytest.raises(KeyFileInvalid, check=carries(check="key file", expected="mode 0600")):
        database_of(f"file:{file}")


@pytest.mark.parametrize(
    ("rest", "setting"),
    [
        ("db.example.org/broker", "verify-full"),
        ("db.example.org/broker?sslmode=require", "verify-full"),
        ("db.example.org/broker?sslmode=prefer", "verify-full"),
        ("127.0.0.1,db.example.org/broker", "verify-full"),
        ("localhost/broker?hostaddr=192.0.2.1", "verify-full"),
        ("/broker?host=192.0.2.1", "verify-full"),
        ("127.0.0.1:5432", "USER@HOST"),
        ("127.0.0.1/broker?dbname=", "USER@HOST"),
    ],
)
def test_a_server_that_need_not_prove_its_name_is_refused(rest: str, setting: str) -> None:
    with pytest.raises(UsageError) as caught:
        Postgres.parse(f"postgresql+psycopg://{rest}")
    assert setting in str(caught.value.expected)


def test_the_environment_names_no_other_server(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    monkeypatch.setenv("PGPORT", str(postgres.port))
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    place = Postgres.parse("postgresql:///postgres?user=broker")
    with pytest.raises(Unreachable):  # it asks the local socket, where there is none
        Store(place)


@pytest.mark.parametrize(("setting", "value"), [("fsync", "off"), ("full_page_writes", "off")])
def test_a_server_that_may_lose_what_it_acknowledged_is_refused(
    postgres: Server, where: Postgres, setting: str, value: str
) -> None:
    with postgres.sql("postgres") as admin:
        try:
            admin.execute(f"ALTER SYSTEM SET {setting} = {value}")
            admin.execute("SELECT pg_reload_conf()")
            for act in (lambda: open_ledger(where), lambda: Store(where)):
                with pytest.raises(ConfigError) as caught:
                    until(act)
                assert (caught.value.check, caught.value.got) == (setting, value)
        finally:
            admin.execute(f"ALTER SYSTEM RESET {setting}")
            admin.execute("SELECT pg_reload_conf()")


def until(act: object) -> None:
    """Settings are reloaded a moment later; a broker that opens before that is closed again."""
    for _ in range(200):
        act().close()  # type: ignore[operator]


def test_commits_that_are_not_durable_are_made_durable(
    where: Postgres, admin: psycopg.Connection, name: str
) -> None:
    admin.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    try:
        with where.connect() as connection:
            row = connection.execute("SHOW synchronous_commit").fetchone()
        assert row == ("on",)
    finally:
        admin.execute(f"ALTER DATABASE {name} RESET synchronous_commit")


def test_a_standby_is_no_broker_memory(
    where: Postgres, admin: psycopg.Connection, name: str
) -> None:
    admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        for act in (lambda: open_ledger(where), lambda: Store(where)):
            with pytest.raises(Unreachable):
                act()
    finally:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


# Copies


def dump_and_restore(postgres: Server, source: str, folder: Path) -> str:
    """A copy of a database as the operator guide makes it; returns its name."""
    target = postgres.new_database()
    environment = {**os.environ, "PGPASSWORD": postgres.password}
    at = ["-h", "127.0.0.1", "-p", str(postgres.port), "-U", "broker"]
    backup = str(folder / "broker.dump")
    programs = need("postgresql")
    dump = [programs["pg_dump"], *at, "-Fc", "-f", backup, source]
    back = [programs["pg_restore"], *at, "--single-transaction", "-d", target, backup]
    for command in (dump, back):
        subprocess.run(command, env=environment, check=True, capture_output=True)
    return target


@pytest.mark.claim("C43")
def test_an_old_copy_put_back_is_refused_settled_and_then_noticed_by_owners(
    postgres: Server, name: str, tmp_path: Path
) -> None:
    original = Postgres.parse(postgres.url(name))
    with release_world(tmp_path, database=original) as world:
        grant = world.obtain()
        old = Postgres.parse(postgres.url(dump_and_restore(postgres, name, tmp_path)))
        world.approve("hospital-c")
        kept = world.ledger.checkpoint()
        with pytest.raises(ConfigError, check=carries(check="database")):
            Store(old)
        done = settle(old, now=NOW)
        assert done.leases_ended == 1
        assert done.size == world.ledger.size - 1
        assert done.origin == world.ledger.origin
        store = Store(old)
        try:
            with store.transaction() as transaction:
                lease = transaction.lease(grant.lease_id)
            assert lease is not None
            assert lease.superseded
        finally:
            store.close()
        signer = world.keyring.signer
        with (
            Ledger.open(old, origin=world.ledger.origin, signer=signer) as ledger,
            pytest.raises(LedgerInconsistent),
        ):
            ledger.audit([kept])


@pytest.mark.claim("C43")
def test_a_copy_whose_halves_do_not_fit_is_not_settled(
    postgres: Server, name: str, tmp_path: Path
) -> None:
    with release_world(tmp_path, database=Postgres.parse(postgres.url(name))) as world:
        world.obtain()
    copy = dump_and_restore(postgres, name, tmp_path)
    with postgres.sql(copy) as admin:
        admin.execute("UPDATE decisions SET ledger_index = 0")
    with pytest.raises(LedgerInconsistent, match="decisions"):
        settle(Postgres.parse(postgres.url(copy)), now=NOW)
    with pytest.raises(ConfigError, check=carries(check="database")):
        Store(Postgres.parse(postgres.url(copy)))
