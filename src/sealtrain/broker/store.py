"""What a broker remembers, in one database: challenges, decisions, datasets, runs, leases.

Contract: every change is one transaction that begins with the write lock (``broker.database``), so
what a transaction read is still true when it commits, whatever other threads or processes do. No
key is ever stored. The ledger is another file or schema (``consortium.ledger``): a change of the
tables here cannot touch it.

``burn`` is the heart of replay protection: one conditional update; of many callers with the same
challenge exactly one sees it unused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.broker import statements
from sealtrain.broker.cosignatures import Cosignatures
from sealtrain.broker.database import begun, engine_of
from sealtrain.broker.home import move_in
from sealtrain.broker.nonces import Nonces
from sealtrain.broker.policies import Policies
from sealtrain.broker.schema import check
from sealtrain.broker.succession import Successions
from sealtrain.broker.tables import (
    challenges,
    datasets,
    decisions,
    leases,
    manifests,
    reservations,
    runs,
)
from sealtrain.broker.tokens import Tokens
from sealtrain.broker.withdrawn import Withdrawals
from sealtrain.consortium.ledger import Ledger
from sealtrain.consortium.ledger_tree import Join
from sealtrain.consortium.postgres import Postgres
from sealtrain.consortium.receipts import Anchor
from sealtrain.errors import LimitExceeded, Unreachable
from sealtrain.release.facts import ChallengeState, LeaseState, RunState
from sealtrain.release.messages import ChallengePurpose

__all__ = ["Store", "StoredDocument", "Transaction"]

_FORGET_CHALLENGE_AFTER = 24 * 3600
_TURN_SECONDS = 20.0

StoredDocument = tuple[int, str, bytes]
"""Index of its ledger entry, digest, envelope bytes."""


class Store:
    """One database, safe to use from many threads."""

    def __init__(self, where: Path | Postgres) -> None:
        """Open or create.

        Args:
            where: SQLite file, whose folder must exist; or a PostgreSQL database.

        Raises:
            ConfigError: It was written by another version, is not a broker's, or was copied.
            Unreachable: It cannot be opened.
        """
        self._engine = engine_of(where)
        self._writer = threading.Lock()
        self._ledger: Ledger | None = None
        try:
            with begun(self._engine) as connection:
                check(connection)
                move_in(connection)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Everything inside happens, or nothing if the block raises.

        Raises:
            Unreachable: The database cannot be read or written; nothing happened, unless the
                connection to a server broke during the commit.
        """
        with self._turn(), self._joining() as join, begun(self._engine) as connection:
            join(connection.connection.driver_connection)
            yield Transaction(connection)

    def join(self, ledger: Ledger) -> None:
        """Let entries commit with the transaction in which they are appended, where both can.

        Args:
            ledger: Of the same database; or a file, which commits by itself.
        """
        self._ledger = ledger

    def _joining(self) -> AbstractContextManager[Join]:
        if self._ledger is None:
            return nullcontext(lambda _connection: None)
        return self._ledger.joining()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Threads queue up here: SQLite would have them sleep and try again, by ever longer."""
        if not self._writer.acquire(timeout=_TURN_SECONDS):
            raise Unreachable(
                "the broker's database is held by another request for too long",
                check="database",
                expected=f"a turn within {_TURN_SECONDS:g} s",
            )
        try:
            yield
        finally:
            self._writer.release()

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


class Transaction:
    """Reads and writes of one transaction; holds the write lock."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.cosignatures = Cosignatures(connection)
        """Owners' cosignatures of the ledger."""
        self.nonces = Nonces(connection)
        """Nonces of signed requests."""
        self.tokens = Tokens(connection)
        """Operators' tokens."""
        self.withdrawals = Withdrawals(connection)
        """Datasets that owners took back, and which run was given which."""
        self.policies = Policies(connection)
        """What owners ask of guests that read their data."""
        self.successions = Successions(connection)
        """What took the consortium's place."""

    # Challenges

    def issue(
        self,
        challenge: str,
        purpose: ChallengePurpose,
        *,
        now: int,
        expires_at: int,
        max_outstanding: int,
    ) -> None:
        """Record a fresh challenge and forget those long over.

        Raises:
            LimitExceeded: ``max_outstanding`` challenges wait to be used already.
        """
        execute = self._connection.execute
        execute(statements.FORGET_CHALLENGES, {"at": now - _FORGET_CHALLENGE_AFTER})
        waiting = execute(statements.WAITING, {"at": now}).scalar_one()
        if waiting >= max_outstanding:
            raise LimitExceeded(
                "too many challenges wait to be used",
                check="outstanding challenges",
                got=waiting,
                expected=f"fewer than {max_outstanding}",
                hint="try again when some have expired",
            )
        fresh = {"challenge": challenge, "purpose": purpose}
        execute(statements.ISSUE, {**fresh, "issued_at": now, "expires_at": expires_at})

    def burn(self, challenge: str, *, now: int) -> ChallengeState | None:
        """Use up a challenge and return what it was before; ``None`` if never issued."""
        row = self._connection.execute(statements.CHALLENGE, {"key": challenge}).one_or_none()
        if row is None:
            return None
        won = self._connection.execute(statements.BURN, {"key": challenge, "at": now}).rowcount
        return ChallengeState(purpose=row.purpose, expires_at=row.expires_at, used=won != 1)

    def counts(self, now: int) -> tuple[int, int, int]:
        """How many challenges wait, leases live and decisions there are."""
        waiting = (challenges.c.used_at.is_(None), challenges.c.expires_at > now)
        live = (leases.c.superseded_at.is_(None), leases.c.not_after > now)
        first, second, third = (
            int(
                self._connection.execute(
                    sa.select(sa.func.count()).select_from(table).where(*where)
                ).scalar_one()
            )
            for table, where in ((challenges, waiting), (leases, live), (decisions, ()))
        )
        return first, second, third

    # Decisions of owners

    def decision(self, digest: str) -> StoredDocument | None:
        """A decision submitted before, by the digest of its envelope."""
        return self._document(decisions, decisions.c.digest == digest)

    def add_decision(
        self, *, digest: str, app_id: str, compose_hash: str, recipe_hash: str,
        envelope: bytes, ledger_index: int,
    ) -> None:  # fmt: skip
        """Record a verified decision."""
        self._connection.execute(
            decisions.insert().values(
                digest=digest,
                app_id=app_id,
                compose_hash=compose_hash,
                recipe_hash=recipe_hash,
                envelope=envelope,
                ledger_index=ledger_index,
            )
        )

    def decisions(self, *, limit: int) -> tuple[bytes, ...]:
        """Envelopes of every decision of this consortium, oldest first.

        Raises:
            LimitExceeded: There are more than ``limit``.
        """
        rows = self._connection.execute(statements.DECISIONS, {"limit": limit + 1}).scalars()
        found = tuple(bytes(row) for row in rows)
        if len(found) > limit:
            raise LimitExceeded(
                "the broker holds too many decisions",
                check="decisions",
                got=f"over {limit}",
                expected=f"at most {limit}",
            )
        return found

    # Datasets

    def manifests_of_dataset(self, dataset_id: str) -> dict[tuple[str, str], StoredDocument]:
        """The latest manifest of a dataset for each (app id, compose hash) it is sealed for."""
        return self._manifests([dataset_id]).get(dataset_id, {})

    def _manifests(
        self, dataset_ids: Sequence[str]
    ) -> dict[str, dict[tuple[str, str], StoredDocument]]:
        found: dict[str, dict[tuple[str, str], StoredDocument]] = {}
        for row in self._connection.execute(statements.DATASETS, {"ids": list(dataset_ids)}):
            stored = (row.ledger_index, row.digest, bytes(row.envelope))
            found.setdefault(row.dataset_id, {})[row.app_id, row.compose_hash] = stored
        return found

    def put_dataset(
        self,
        *,
        dataset_id: str,
        app_id: str,
        compose_hash: str,
        digest: str,
        envelope: bytes,
        ledger_index: int,
    ) -> None:
        """Record a verified manifest in place of its predecessor for the same deployment."""
        key = {"dataset_id": dataset_id, "app_id": app_id, "compose_hash": compose_hash}
        self._connection.execute(
            datasets.delete().where(*(datasets.c[name] == value for name, value in key.items()))
        )
        self._connection.execute(
            datasets.insert().values(
                **key, digest=digest, envelope=envelope, ledger_index=ledger_index
            )
        )

    def datasets(
        self, dataset_ids: Sequence[str], *, app_id: str, compose_hash: str
    ) -> dict[str, bytes]:
        """Envelopes by dataset id, for this deployment where there is one, else for another.

        Ids nobody registered are absent.
        """
        return {
            dataset_id: (known.get((app_id, compose_hash)) or list(known.values())[-1])[2]
            for dataset_id, known in self._manifests(dataset_ids).items()
        }

    def registered(self, *, app_id: str, compose_hash: str) -> tuple[str, ...]:
        """Ids of the datasets that are registered for a deployment, in their order."""
        rows = self._connection.execute(
            sa.select(datasets.c.dataset_id)
            .where(datasets.c.app_id == app_id, datasets.c.compose_hash == compose_hash)
            .order_by(datasets.c.dataset_id)
        )
        return tuple(row.dataset_id for row in rows)

    # Runs and leases

    def run(self, run_id: str) -> RunState | None:
        """A run that got keys before."""
        row = self._connection.execute(statements.RUN, {"key": run_id}).one_or_none()
        if row is None:
            return None
        anchor = (
            None
            if row.checkpoint_counter is None
            else Anchor(counter=row.checkpoint_counter, digest=row.checkpoint_digest)
        )
        return RunState(
            app_id=row.app_id,
            compose_hash=row.compose_hash,
            recipe_hash=row.recipe_hash,
            checkpoint=anchor,
        )

    def begin_run(
        self, run_id: str, *, app_id: str, compose_hash: str, recipe_hash: str, now: int
    ) -> None:
        """Record a new run."""
        run = {"run_id": run_id, "recipe_hash": recipe_hash, "started_at": now}
        self._connection.execute(
            statements.BEGIN_RUN, {**run, "app_id": app_id, "compose_hash": compose_hash}
        )

    def anchor(self, run_id: str, checkpoint: Anchor) -> None:
        """Record a run's newest checkpoint; ``release.decide`` made sure it is newer."""
        self._connection.execute(
            runs.update()
            .where(runs.c.run_id == run_id)
            .values(checkpoint_counter=checkpoint.counter, checkpoint_digest=checkpoint.digest)
        )

    def lease(self, lease_id: str) -> LeaseState | None:
        """A lease granted before."""
        row = self._connection.execute(statements.LEASE, {"key": lease_id}).one_or_none()
        if row is None:
            return None
        return LeaseState(
            run_id=row.run_id,
            not_after=row.not_after,
            superseded=row.superseded_at is not None,
            instance_id=row.instance_id,
        )

    def grant_lease(
        self, lease_id: str, run_id: str, *, not_after: int, instance_id: str, now: int
    ) -> None:
        """Give a run a new lease; its earlier ones end."""
        self._connection.execute(statements.END_LEASES, {"key": run_id, "at": now})
        lease = {"lease_id": lease_id, "not_after": not_after, "instance_id": instance_id}
        self._connection.execute(statements.GRANT_LEASE, {**lease, "run_id": run_id})

    def extend_lease(self, lease_id: str, *, not_after: int) -> None:
        """Let a lease end later."""
        self._connection.execute(
            leases.update().where(leases.c.lease_id == lease_id).values(not_after=not_after)
        )

    # Reservations of privacy

    def reservations(self) -> dict[int, str]:
        """Index of every ledger entry that reserves privacy → its run id."""
        rows = self._connection.execute(sa.select(reservations))
        return {int(row.ledger_index): row.run_id for row in rows}

    def reserve(self, run_id: str, *, ledger_index: int) -> None:
        """Record where the ledger holds a run's reservation."""
        self._connection.execute(
            reservations.insert().values(run_id=run_id, ledger_index=ledger_index)
        )

    # Run manifests

    def manifest(self, digest: str) -> int | None:
        """Ledger index of a manifest recorded before."""
        found = self._connection.execute(
            sa.select(manifests.c.ledger_index).where(manifests.c.digest == digest)
        ).scalar_one_or_none()
        return None if found is None else int(found)

    def add_manifest(self, digest: str, run_id: str, *, ledger_index: int) -> None:
        """Record that a run's manifest was submitted."""
        self._connection.execute(
            manifests.insert().values(digest=digest, run_id=run_id, ledger_index=ledger_index)
        )

    def manifests_of(self, run_id: str) -> int:
        """How many manifests were submitted for a run."""
        counted = self._connection.execute(
            sa.select(sa.func.count()).select_from(manifests).where(manifests.c.run_id == run_id)
        ).scalar_one()
        return int(counted)

    def _document(self, table: sa.Table, where: sa.ColumnElement[bool]) -> StoredDocument | None:
        row = self._connection.execute(
            sa.select(table.c.ledger_index, table.c.digest, table.c.envelope).where(where)
        ).one_or_none()
        if row is None:
            return None
        return cast("int", row.ledger_index), cast("str", row.digest), bytes(row.envelope)
