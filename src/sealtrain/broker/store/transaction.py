"""Reads and writes of one transaction on a broker's database: decisions, datasets, runs, leases.

Contract: a transaction that writes begins with the write lock (``store.database``), so its reads
    are still true when it commits, whatever other threads or processes do. No key is ever stored.
    Only ``store.recording`` writes the changes that the ledger states.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.broker.store import statements
from sealtrain.broker.store.cosignatures import Cosignatures
from sealtrain.broker.store.entry_index import EntryIndex
from sealtrain.broker.store.incarnation import incarnation_of
from sealtrain.broker.store.nonces import Nonces, UsedChallenges
from sealtrain.broker.store.owner_documents import OwnerDocuments
from sealtrain.broker.store.submissions import Submissions
from sealtrain.broker.store.succession import Successions
from sealtrain.broker.store.tables import (
    datasets,
    decisions,
    leases,
    manifests,
    reservations,
    runs,
    used_challenges,
)
from sealtrain.broker.store.tokens import Tokens
from sealtrain.consortium.receipts import Anchor, OwnedId, RunDataset
from sealtrain.errors import LimitExceeded
from sealtrain.release.facts import LeaseState, RunState

StoredDocument = tuple[int, str, bytes]
"""Index of its ledger entry, digest, envelope bytes."""


class Transaction:
    """Reads and writes of one transaction; holds the write lock.

    Args:
        connection: In the transaction.
        settled: As for ``statements.read_settled_rows``.
    """

    def __init__(self, connection: Connection, settled: statements.Settled | None = None) -> None:
        self._connection = connection
        self._settled = settled
        self.challenges = UsedChallenges(connection)
        """Used challenges, and since when they are remembered."""
        self.cosignatures = Cosignatures(connection)
        """Owners' cosignatures of the ledger."""
        self.nonces = Nonces(connection)
        """Nonces of signed requests."""
        self.tokens = Tokens(connection)
        """Operators' tokens."""
        self.owner_documents = OwnerDocuments(connection, settled)
        """What owners signed about their own data (``consortium.documents``)."""
        self.successions = Successions(connection, settled)
        """The consortium's succession."""
        self.submissions = Submissions(connection)
        """Submissions, and what runners said of them."""
        self.entries = EntryIndex(connection)
        """By what the ledger's entries are found."""

    def _run(self, statement: sa.Executable, values: Mapping[str, Any]) -> Any:
        return statements.run(self._connection, statement, values)

    def _settled_rows(self, statement: sa.Executable, values: Mapping[str, Any]) -> list[Any]:
        return statements.read_settled_rows(self._connection, statement, values, self._settled)

    @property
    def began_at(self) -> int:
        """When this memory began without an earlier memory's contents; 0 for a first memory."""
        found = incarnation_of(self._connection)
        return 0 if found is None else found.began_at

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Send the block's writes to a server in one batch; their errors may come at its end."""
        driver: Any = self._connection.connection.driver_connection
        with getattr(driver, "pipeline", nullcontext)():
            yield

    def counts(self, now: int) -> tuple[int, int, int]:
        """How many used challenges are remembered, leases live and decisions there are."""
        live = (leases.c.superseded_at.is_(None), leases.c.not_after > now)
        first, second, third = (
            int(
                self._connection.execute(
                    sa.select(sa.func.count()).select_from(table).where(*where)
                ).scalar_one()
            )
            for table, where in ((used_challenges, ()), (leases, live), (decisions, ()))
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
        return tuple(envelope for envelope, _index in self.recorded_decisions(limit=limit))

    def recorded_decisions(self, *, limit: int) -> tuple[tuple[bytes, int], ...]:
        """As ``decisions``, each with the index of its entry in the ledger."""
        rows = self._settled_rows(statements.DECISIONS, {"limit": limit + 1})
        found = tuple((bytes(envelope), int(index)) for envelope, index in rows)
        if len(found) > limit:
            raise LimitExceeded(
                "the broker holds too many decisions",
                check="decisions",
                got=f"over {limit}",
                expected=f"at most {limit}",
            )
        return found

    # Datasets

    def manifests_of_dataset(self, owned: OwnedId) -> dict[tuple[str, str], StoredDocument]:
        """The latest manifest of a dataset for each (app id, compose hash) it is sealed for."""
        return self._manifests([owned]).get(owned, {})

    def owners_of_dataset(self, dataset_id: str) -> frozenset[str]:
        """Ids of the owners that registered a dataset under an id."""
        rows = self._connection.execute(
            sa.select(datasets.c.owner_id).where(datasets.c.dataset_id == dataset_id).distinct()
        )
        return frozenset(row.owner_id for row in rows)

    def _manifests(
        self, wanted: Sequence[OwnedId]
    ) -> dict[OwnedId, dict[tuple[str, str], StoredDocument]]:
        found: dict[OwnedId, dict[tuple[str, str], StoredDocument]] = {}
        statement = statements.select_datasets(len(wanted))
        for row in self._settled_rows(statement, statements.places(wanted)):
            owner_id, dataset_id, app_id, compose_hash, index, digest, envelope = row
            stored = (index, digest, bytes(envelope))
            found.setdefault(OwnedId(owner_id, dataset_id), {})[app_id, compose_hash] = stored
        return found

    def put_dataset(
        self,
        owned: OwnedId,
        *,
        app_id: str,
        compose_hash: str,
        digest: str,
        envelope: bytes,
        ledger_index: int,
        series: str | None = None,
        number: int | None = None,
    ) -> None:
        """Record a verified manifest in place of its predecessor for the same deployment."""
        key = {**owned._asdict(), "app_id": app_id, "compose_hash": compose_hash}
        self._connection.execute(
            datasets.delete().where(*(datasets.c[name] == value for name, value in key.items()))
        )
        self._connection.execute(
            datasets.insert().values(
                **key,
                series=series,
                number=number,
                digest=digest,
                envelope=envelope,
                ledger_index=ledger_index,
            )
        )

    def datasets(
        self, wanted: Sequence[OwnedId], *, app_id: str, compose_hash: str
    ) -> dict[str, bytes]:
        """Envelopes by dataset id, for this deployment where there is one, else for another.

        Datasets that their owners did not register are absent. No two of ``wanted`` have one id.
        """
        return {
            owned.dataset_id: (known.get((app_id, compose_hash)) or list(known.values())[-1])[2]
            for owned, known in self._manifests(wanted).items()
        }

    def list_registered(
        self,
        owner_id: str,
        *,
        app_id: str,
        compose_hash: str,
        limit: int,
        among: Collection[str] = (),
        after: str = "",
    ) -> tuple[str, ...]:
        """Ids of an owner's datasets that are registered for a deployment, in their order.

        Args:
            app_id: Of the deployment.
            compose_hash: The same.
            limit: At most so many.
            among: Only these ids; any where there are none.
            after: Only ids behind this one.
        """
        query = (
            sa.select(datasets.c.dataset_id)
            .where(
                datasets.c.owner_id == owner_id,
                datasets.c.app_id == app_id,
                datasets.c.compose_hash == compose_hash,
                datasets.c.dataset_id > after,
            )
            .order_by(datasets.c.dataset_id)
            .limit(limit)
        )
        if among:
            query = query.where(datasets.c.dataset_id.in_(among))
        return tuple(row.dataset_id for row in self._connection.execute(query))

    def members(self, owner: str, series: str) -> tuple[tuple[tuple[str, str], bytes], ...]:
        """Members of a series, oldest registration first.

        Returns:
            (app id, compose hash) and envelope of each.
        """
        rows = self._settled_rows(statements.SERIES, {"key": f"{owner}/{series}"})
        return tuple(((app, compose), bytes(envelope)) for app, compose, envelope in rows)

    def members_after(
        self, number: int, *, owner: str, series: str, app_id: str, compose_hash: str, limit: int
    ) -> tuple[tuple[int, bytes], ...]:
        """Members of a series for one deployment behind a number: number and envelope of each."""
        rows = self._connection.execute(
            sa.select(datasets.c.number, datasets.c.envelope)
            .where(
                datasets.c.series == f"{owner}/{series}",
                datasets.c.app_id == app_id,
                datasets.c.compose_hash == compose_hash,
                datasets.c.number > number,
            )
            .order_by(datasets.c.number)
            .limit(limit)
        )
        return tuple((int(row.number), bytes(row.envelope)) for row in rows)

    # Runs and leases

    def run(self, run_id: str) -> RunState | None:
        """A run that got keys before."""
        rows = self._run(statements.RUN, {"key": run_id}).fetchall()
        if not rows:
            return None
        app_id, compose_hash, recipe_hash, counter, digest, *_dataset = rows[0]
        return RunState(
            app_id=app_id,
            compose_hash=compose_hash,
            recipe_hash=recipe_hash,
            data=frozenset(
                RunDataset(owner_id, dataset_id, root)
                for *_, owner_id, dataset_id, root in rows
                if dataset_id is not None
            ),
            checkpoint=None if counter is None else Anchor(counter=counter, digest=digest),
        )

    def begin_run(
        self,
        run_id: str,
        *,
        app_id: str,
        compose_hash: str,
        recipe_hash: str,
        data: Collection[RunDataset],
        now: int,
        ledger_index: int | None = None,
        submission_id: str | None = None,
    ) -> None:
        """Record a new run and all its data, at least one dataset.

        ``ledger_index`` is where its first release stands, ``submission_id`` what that one says.
        """
        run = {
            "run_id": run_id,
            "recipe_hash": recipe_hash,
            "started_at": now,
            "ledger_index": ledger_index,
            "submission_id": submission_id,
        }
        self._run(statements.BEGIN_RUN, {**run, "app_id": app_id, "compose_hash": compose_hash})
        rows = [{"run_id": run_id, **dataset._asdict()} for dataset in sorted(data)]
        statements.run_all(self._connection, statements.GIVE_DATA, rows)

    def find_run_starts(
        self, *, app_id: str, compose_hash: str, recipe_hash: str, after: int
    ) -> tuple[int, ...]:
        """Where runs of a target began, behind a place of the ledger."""
        named = {"key": recipe_hash, "app": app_id, "compose": compose_hash, "after": after}
        return tuple(int(row[0]) for row in self._run(statements.BEGUN, named).fetchall())

    def first_release(self, run_id: str) -> int | None:
        """Ledger index of the first release of a run; ``None`` of an unknown one."""
        found = self._connection.execute(
            sa.select(runs.c.ledger_index).where(runs.c.run_id == run_id)
        ).scalar_one_or_none()
        return None if found is None else int(found)

    def submission_of(self, run_id: str) -> str | None:
        """The submission that the first release of a run states; ``None`` where it states none."""
        found = self._connection.execute(
            sa.select(runs.c.submission_id).where(runs.c.run_id == run_id)
        ).scalar_one_or_none()
        return None if found is None else str(found)

    def anchor(self, run_id: str, checkpoint: Anchor) -> None:
        """Record a run's newest checkpoint; ``release.decide`` made sure it is newer."""
        self._connection.execute(
            runs.update()
            .where(runs.c.run_id == run_id)
            .values(checkpoint_counter=checkpoint.counter, checkpoint_digest=checkpoint.digest)
        )

    def lease(self, lease_id: str) -> LeaseState | None:
        """A lease granted before."""
        row = self._run(statements.LEASE, {"key": lease_id}).fetchone()
        if row is None:
            return None
        run_id, not_after, superseded_at, instance_id = row
        return LeaseState(
            run_id=run_id,
            not_after=not_after,
            superseded=superseded_at is not None,
            instance_id=instance_id,
        )

    def grant_lease(
        self,
        lease_id: str,
        run_id: str,
        *,
        not_after: int,
        instance_id: str,
        now: int,
        ended: bool = False,
    ) -> None:
        """Give a run a new lease; its earlier ones end.

        Args:
            lease_id: 64 hex digits.
            run_id: The run that holds it.
            not_after: First second at which it has expired.
            instance_id: Of the guest that gets it.
            now: Seconds since the epoch.
            ended: It has ended already.
        """
        self._run(statements.END_LEASES, {"key": run_id, "at": now})
        lease = {"lease_id": lease_id, "not_after": not_after, "instance_id": instance_id}
        ends = {"superseded_at": now if ended else None}
        self._run(statements.GRANT_LEASE, {**lease, **ends, "run_id": run_id})

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

    def manifests_after(self, index: int, *, app_id: str, compose_hash: str) -> tuple[int, ...]:
        """Ledger indexes of the manifests of a deployment's runs that were recorded later."""
        rows = self._connection.execute(
            sa.select(manifests.c.ledger_index)
            .join(runs, runs.c.run_id == manifests.c.run_id)
            .where(
                manifests.c.ledger_index > index,
                runs.c.app_id == app_id,
                runs.c.compose_hash == compose_hash,
            )
            .order_by(manifests.c.ledger_index)
        )
        return tuple(int(row.ledger_index) for row in rows)

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
