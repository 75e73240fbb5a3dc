"""Versions of the database: the steps lead to the tables, an unknown version is refused."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from carrying import carries
from sqlalchemy.engine import Connection, Engine
from variants import variants

from sealtrain.broker.store.database import engine_of
from sealtrain.broker.store.memory import Store
from sealtrain.broker.store.schema import HEAD, bring_on, check, migrate, migrations, version_of
from sealtrain.broker.store.tables import metadata
from sealtrain.consortium.receipts import RunDataset
from sealtrain.errors import ConfigError, DataInvalid
from sealtrain.ledger.postgres import Postgres

pytestmark = pytest.mark.long


@pytest.fixture
def engine(database: Path | Postgres) -> Iterator[Engine]:
    """To a file, then to a database of a real server."""
    made = engine_of(database, migrating=True)
    yield made
    made.dispose()


def say_version(engine: Engine, version: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :v"), {"v": version})


def test_migrations_are_one_line_from_the_first_to_the_newest() -> None:
    scripts = ScriptDirectory.from_config(migrations())
    assert scripts.get_heads() == [HEAD]
    numbers = [script.revision for script in scripts.walk_revisions()]
    assert numbers == [f"{number:04d}" for number in range(len(numbers), 0, -1)]


def test_migrations_lead_to_the_tables_of_the_code(engine: Engine) -> None:
    with engine.begin() as connection:
        assert migrate(connection) == (None, HEAD)
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []
        command.check(migrations(connection))  # what a developer runs, with env.py's settings
        names = set(sa.inspect(connection).get_table_names())
    assert names == {*metadata.tables, "alembic_version"}


def test_a_forgotten_migration_would_be_seen(engine: Engine) -> None:
    with engine.begin() as connection:
        migrate(connection)
        connection.execute(sa.text("ALTER TABLE runs DROP COLUMN checkpoint_digest"))
        connection.execute(sa.text("DROP INDEX ix_leases_run_id"))
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    assert sorted(difference[0] for difference in differences) == ["add_column", "add_index"]


def test_migrating_again_changes_nothing(engine: Engine) -> None:
    for before in (None, HEAD):
        with engine.begin() as connection:
            assert migrate(connection) == (before, HEAD)


FIRST = (
    "INSERT INTO runs (run_id, app_id, compose_hash, recipe_hash, started_at) "
    "VALUES ('r', 'a', 'b', 'c', 4102444800)",
    "INSERT INTO leases (lease_id, run_id, not_after, instance_id) VALUES ('l', 'r', 1, 'i')",
    "INSERT INTO challenges (challenge, purpose, issued_at, expires_at) VALUES ('x', 'p', 1, 2)",
    "INSERT INTO cosigned (size, note) VALUES (5000000000, 'n')",
    "INSERT INTO cosignatures (size, owner, line) VALUES (5000000000, 'o', 'l')",
)


def test_a_database_of_the_first_version_is_brought_on_with_what_is_in_it(
    engine: Engine, database: Path | Postgres
) -> None:
    with engine.begin() as connection:
        command.upgrade(migrations(connection), "0001")
        for statement in FIRST:
            connection.execute(sa.text(statement))
    with pytest.raises(ConfigError) as refused:
        Store(database)
    assert "sealtrain broker migrate" in str(refused.value.hint)
    assert bring_on(database) == ("0001", HEAD)
    assert bring_on(database) == (HEAD, HEAD)
    store = Store(database)
    try:
        with store.transaction() as transaction:
            run, lease = transaction.run("r"), transaction.lease("l")
            assert list(transaction.cosignatures.page(0, 9)) == [("n", ["l"])]
    finally:
        store.close()
    assert run is not None
    assert lease is not None
    assert lease.run_id == "r"


def test_runs_that_began_before_roots_were_kept_have_data_that_no_resume_names(
    engine: Engine, database: Path | Postgres
) -> None:
    with engine.begin() as connection:
        command.upgrade(migrations(connection), "0006")
        connection.execute(sa.text(FIRST[0]))
        connection.execute(sa.text("INSERT INTO run_datasets VALUES ('r', 'd1'), ('r', 'd2')"))
    assert bring_on(database) == ("0006", HEAD)
    store = Store(database)
    try:
        with store.transaction() as transaction:
            run = transaction.run("r")
    finally:
        store.close()
    assert run is not None
    assert run.data == {("", "d1", ""), ("", "d2", "")}


def test_runs_and_datasets_of_before_standing_approvals_are_of_no_count_and_no_series(
    engine: Engine, database: Path | Postgres
) -> None:
    with engine.begin() as connection:
        command.upgrade(migrations(connection), "0010")
        connection.execute(sa.text(FIRST[0]))
        connection.execute(
            sa.text(
                "INSERT INTO datasets (dataset_id, app_id, compose_hash, digest, envelope, "
                "ledger_index) VALUES ('d', 'a', 'b', 'e', 'envelope', 7)"
            )
            if engine.dialect.name == "sqlite"
            else sa.text(
                "INSERT INTO datasets (dataset_id, app_id, compose_hash, digest, envelope, "
                "ledger_index) VALUES ('d', 'a', 'b', 'e', CAST('envelope' AS bytea), 7)"
            )
        )
    assert bring_on(database) == ("0010", HEAD)
    store = Store(database)
    target = {"app_id": "a", "compose_hash": "b"}
    try:
        with store.transaction() as transaction:
            assert transaction.run("r") is not None
            assert transaction.first_release("r") is None
            assert transaction.find_run_starts(**target, recipe_hash="c", after=-1) == ()
            # It names no owner: the broker's next start records anew what its ledger holds.
            assert transaction.owners_of_dataset("d") == frozenset()
            assert transaction.members("o", "d") == ()
            transaction.begin_run(
                "s",
                **target,
                recipe_hash="c",
                data=[RunDataset("o", "d", "root")],
                now=1,
                ledger_index=9,
            )
            assert transaction.find_run_starts(**target, recipe_hash="c", after=-1) == (9,)
            assert transaction.first_release("s") == 9
    finally:
        store.close()


def test_a_migration_that_breaks_references_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite replaces tables with references off, so they are looked at before the commit."""
    path = tmp_path / "broker.sqlite"
    engine = engine_of(path, migrating=True)
    with engine.begin() as connection:
        command.upgrade(migrations(connection), "0001")
        for statement in FIRST:
            connection.execute(sa.text(statement))

    def careless(connection: Connection) -> tuple[str | None, str]:
        done = migrate(connection)
        connection.execute(sa.text("DELETE FROM runs"))
        return done

    monkeypatch.setattr("sealtrain.broker.store.schema.migrate", careless)
    with pytest.raises(DataInvalid, check=carries(check="foreign keys", got="1 rows")):
        bring_on(path)
    with engine.begin() as connection:
        assert version_of(connection) == "0001"
        assert connection.execute(sa.text("SELECT count(*) FROM runs")).scalar_one() == 1
    engine.dispose()


def test_a_newer_version_is_refused_and_left_alone(
    engine: Engine, database: Path | Postgres
) -> None:
    with engine.begin() as connection:
        check(connection)
    say_version(engine, "9999")
    with pytest.raises(ConfigError, check=carries(check="schema version", got="9999")) as refused:
        Store(database)
    assert (refused.value.got, refused.value.expected) == ("9999", HEAD)
    with (
        pytest.raises(ConfigError, check=carries(check="schema version", got="9999")),
        engine.begin() as connection,
    ):
        migrate(connection)
    with engine.begin() as connection:
        version = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    assert version == "9999"


def test_a_database_of_something_else_is_refused(engine: Engine, database: Path | Postgres) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE customers (name TEXT)"))
    with pytest.raises(
        ConfigError, check=carries(check="schema version", got="tables customers, no version")
    ):
        Store(database)


def test_a_failed_start_makes_no_tables(
    engine: Engine, database: Path | Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps are one transaction: after a failure in the last, none is done."""

    def broken(*_args: object, **_named: object) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patched:
        patched.setattr("alembic.op.create_index", broken)
        with pytest.raises(RuntimeError, match="power cut"):
            Store(database)
    with engine.begin() as connection:
        assert sa.inspect(connection).get_table_names() == []
    Store(database).close()


def started_together(database: Path | Postgres) -> list[BaseException]:
    """What brokers that start at one moment fail with."""
    together = threading.Barrier(6)
    failures: list[BaseException] = []

    def start() -> None:
        together.wait()
        try:
            Store(database).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_brokers_that_start_together_make_the_tables_once(database: Path | Postgres) -> None:
    assert started_together(database) == []


@pytest.mark.parametrize("starts", variants([4, 12, 60], each_time=[4]))
def test_a_new_file_that_is_busy_for_a_moment_is_waited_for(tmp_path: Path, starts: int) -> None:
    """SQLite itself does not wait there, but seldom says so: one start in twenty failed."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for number in range(starts):
            assert started_together(tmp_path / f"{number}.sqlite") == []
    finally:
        sys.setswitchinterval(before)
