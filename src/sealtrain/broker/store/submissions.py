"""The part of a transaction that remembers submissions and what runners said of them.

A row is a ``SubmissionState``, which follows from the ledger's entries alone. What the broker
itself recorded of a run comes from its own tables (``facts``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from sealtrain.broker.store.tables import (
    control_documents,
    entry_index,
    leases,
    manifests,
    runs,
    submissions,
)
from sealtrain.consortium.runevents import SubmissionState
from sealtrain.signing.target import Target

_TARGET: Final = ("app_id", "compose_hash", "recipe_hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the broker recorded of a run that it released keys to.

    Attributes:
        run_id: 32 hex digits.
        submission_id: What its first release states.
        began_at: Time of the first release, seconds since the epoch.
        lease_until: First second at which its lease has ended; ``None`` without one.
        checkpoint: Counter of the anchored checkpoint.
        failure_index: Entry in which its guest gave a lease back with a code.
        manifest_index: Entry of the first manifest.
        manifest_digest: SHA-256 of that manifest.
    """

    run_id: str
    submission_id: str | None
    began_at: int
    lease_until: int | None
    checkpoint: int | None
    failure_index: int | None
    manifest_index: int | None
    manifest_digest: str | None


class Submissions:
    """Reads and writes of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, submission_id: str) -> SubmissionState | None:
        """A submission by its id."""
        return self._one(submissions.c.submission_id == submission_id)

    def find_by_name(self, name: str) -> SubmissionState | None:
        """A submission by its name."""
        return self._one(submissions.c.name == name)

    def newest(
        self,
        *,
        limit: int,
        now: int,
        open_only: bool = False,
        compose_hash: str | None = None,
        before: int | None = None,
    ) -> list[SubmissionState]:
        """Submissions, newest first.

        Args:
            limit: At most so many.
            now: The broker's time, seconds since the epoch.
            open_only: Only those that have not ended.
            compose_hash: Only those of this document.
            before: Only those whose entry has a lower index.
        """
        query = sa.select(submissions).order_by(submissions.c.ledger_index.desc()).limit(limit)
        if open_only:
            query = query.where(_is_open(now))
        if compose_hash is not None:
            query = query.where(submissions.c.compose_hash == compose_hash)
        if before is not None:
            query = query.where(submissions.c.ledger_index < before)
        return [_state(row) for row in self._connection.execute(query)]

    def open_of(self, submitter_key: str, now: int) -> int:
        """How many submissions of a submitter have not ended."""
        query = (
            sa.select(sa.func.count())
            .select_from(submissions)
            .where(_is_open(now), submissions.c.submitter_key == submitter_key)
        )
        return int(self._connection.execute(query).scalar_one())

    def newest_time(self) -> int:
        """Time of the newest entry about any submission; 0 without one."""
        found = self._connection.execute(sa.select(sa.func.max(submissions.c.changed_at)))
        return int(found.scalar_one() or 0)

    def find_recorded(self, digest: str) -> tuple[str, int] | None:
        """Submission and ledger index of a run event or stop, by its envelope's digest."""
        row = self._connection.execute(
            sa.select(control_documents.c.submission_id, control_documents.c.ledger_index).where(
                control_documents.c.digest == digest
            )
        ).one_or_none()
        return None if row is None else (row.submission_id, int(row.ledger_index))

    def is_named_elsewhere(self, run_id: str, submission_id: str) -> bool:
        """Whether another submission's event names a run."""
        query = sa.select(control_documents.c.digest).where(
            control_documents.c.run_id == run_id,
            control_documents.c.submission_id != submission_id,
        )
        return self._connection.execute(query.limit(1)).first() is not None

    def facts(self, run_ids: Collection[str], now: int) -> dict[str, RunFacts]:
        """What the broker recorded of runs; those that it does not know are absent."""
        if not run_ids:
            return {}
        lease = (
            sa.select(leases.c.run_id, sa.func.max(leases.c.not_after).label("until"))
            .where(leases.c.superseded_at.is_(None), leases.c.run_id.in_(run_ids))
            .group_by(leases.c.run_id)
            .subquery()
        )
        first = (
            sa.select(manifests.c.run_id, sa.func.min(manifests.c.ledger_index).label("entry"))
            .where(manifests.c.run_id.in_(run_ids))
            .group_by(manifests.c.run_id)
            .subquery()
        )
        failed = (
            sa.select(entry_index.c.subject, sa.func.max(entry_index.c.ledger_index).label("entry"))
            .where(
                entry_index.c.subject.in_([f"run_id:{id_}" for id_ in run_ids]),
                entry_index.c.kind == "failure",
            )
            .group_by(entry_index.c.subject)
            .subquery()
        )
        query = (
            sa.select(
                runs.c.run_id,
                runs.c.submission_id,
                runs.c.started_at,
                runs.c.checkpoint_counter,
                lease.c.until,
                failed.c.entry.label("failure"),
                manifests.c.ledger_index,
                manifests.c.digest,
            )
            .outerjoin_from(runs, lease, lease.c.run_id == runs.c.run_id)
            .outerjoin(failed, failed.c.subject == sa.literal("run_id:") + runs.c.run_id)
            .outerjoin(first, first.c.run_id == runs.c.run_id)
            .outerjoin(
                manifests,
                sa.and_(
                    manifests.c.run_id == first.c.run_id,
                    manifests.c.ledger_index == first.c.entry,
                ),
            )
            .where(runs.c.run_id.in_(run_ids))
        )
        return {
            row.run_id: RunFacts(
                run_id=row.run_id,
                submission_id=row.submission_id,
                began_at=row.started_at,
                lease_until=row.until if row.until is not None and row.until > now else None,
                checkpoint=row.checkpoint_counter,
                failure_index=row.failure,
                manifest_index=row.ledger_index,
                manifest_digest=row.digest,
            )
            for row in self._connection.execute(query)
        }

    def put(self, state: SubmissionState, *, at: int) -> None:
        """Record a state in place of the one before it.

        Args:
            at: Time of the entry that led to it.
        """
        key = submissions.c.submission_id == state.submission_id
        values = {**_values(state), "changed_at": at}
        done = self._connection.execute(submissions.update().where(key).values(values))
        if not done.rowcount:
            self._connection.execute(submissions.insert().values(values))

    def add_document(
        self, digest: str, *, submission_id: str, run_id: str | None, ledger_index: int
    ) -> None:
        """Record that a run event or stop was posted."""
        self._connection.execute(
            control_documents.insert().values(
                digest=digest, submission_id=submission_id, run_id=run_id, ledger_index=ledger_index
            )
        )

    def _one(self, where: sa.ColumnElement[bool]) -> SubmissionState | None:
        row = self._connection.execute(sa.select(submissions).where(where)).one_or_none()
        return None if row is None else _state(row)


def _is_open(now: int) -> sa.ColumnElement[bool]:
    """As ``SubmissionState.state``: neither final, nor stopped, nor expired."""
    found = submissions.c
    held = sa.and_(found.phase.in_(("claimed", "started")), found.claim_until > now)
    stopped = sa.and_(found.stop_index.is_not(None), sa.not_(sa.func.coalesce(held, sa.false())))
    expired = sa.and_(
        found.phase.in_(("waiting", "claimed")),
        found.not_after < now,
        sa.not_(sa.func.coalesce(held, sa.false())),
    )
    # Positively, so that the index on phases serves.
    return sa.and_(
        found.phase.in_(("waiting", "claimed", "started")), sa.not_(stopped), sa.not_(expired)
    )


def _values(state: SubmissionState) -> dict[str, Any]:
    values = asdict(state)
    values |= values.pop("target")
    values["ledger_index"] = values.pop("index")
    return values


def _state(row: Row[Any]) -> SubmissionState:
    values = dict(row._mapping)
    values.pop("changed_at")
    values["index"] = values.pop("ledger_index")
    target = Target(**{name: cast("str", values.pop(name)) for name in _TARGET})
    return SubmissionState(target=target, **values)
