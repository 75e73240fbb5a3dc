"""The part of a transaction that remembers owners' documents of all kinds of the table.

A document is found by its digest, as the newest of its kind by an owner, or by what it is about.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.broker.store.statements import Settled, among, places, read_settled_rows, run
from sealtrain.broker.store.tables import (
    document_subjects,
    manifests,
    owner_documents,
    run_datasets,
    runs,
)
from sealtrain.consortium.receipts import OwnedId

# Built once: queries for each release and renewal (see ``store.statements``).
_KIND: Final = sa.bindparam("kind", type_=sa.Text)
_OF_RUN: Final = sa.exists().where(
    run_datasets.c.run_id == sa.bindparam("run", type_=sa.Text),
    run_datasets.c.owner_id == document_subjects.c.owner_id,
    run_datasets.c.dataset_id == document_subjects.c.subject,
)
_NEWEST: Final = (
    sa.select(sa.func.max(owner_documents.c.ledger_index))
    .where(owner_documents.c.kind == _KIND)
    .group_by(owner_documents.c.owner)
)
_IN_FORCE: Final = (
    sa.select(owner_documents.c.owner, owner_documents.c.digest, owner_documents.c.envelope)
    .where(owner_documents.c.ledger_index.in_(_NEWEST))
    .order_by(owner_documents.c.owner)
)


@lru_cache(maxsize=16)
def _about(count: int) -> sa.Select[Any]:
    found = document_subjects.c
    return sa.select(found.subject, found.owner).where(
        found.kind == _KIND, sa.or_(among(found.owner_id, found.subject, count), _OF_RUN)
    )


_ABOUT_RECORDED: Final = (
    sa.select(document_subjects.c.subject, document_subjects.c.owner)
    .join(
        run_datasets,
        sa.and_(
            run_datasets.c.owner_id == document_subjects.c.owner_id,
            run_datasets.c.dataset_id == document_subjects.c.subject,
        ),
    )
    .join(manifests, manifests.c.run_id == run_datasets.c.run_id)
    .join(runs, runs.c.run_id == run_datasets.c.run_id)
    .where(
        document_subjects.c.kind == _KIND,
        runs.c.app_id == sa.bindparam("app", type_=sa.Text),
        runs.c.compose_hash == sa.bindparam("compose", type_=sa.Text),
    )
)


class OwnerDocuments:
    """Reads and writes of one transaction."""

    def __init__(self, connection: Connection, settled: Settled | None) -> None:
        self._connection = connection
        self._settled = settled

    def find_recorded(self, digest: str) -> int | None:
        """Ledger index of a document that was handed in before, by its envelope's digest."""
        found = self._connection.execute(
            sa.select(owner_documents.c.ledger_index).where(owner_documents.c.digest == digest)
        ).scalar_one_or_none()
        return None if found is None else int(found)

    def in_force(self, kind: str) -> dict[str, tuple[str, bytes]]:
        """Each owner's newest document of a kind: name → digest and envelope."""
        rows = read_settled_rows(self._connection, _IN_FORCE, {"kind": kind}, self._settled)
        return {owner: (digest, bytes(envelope)) for owner, digest, envelope in rows}

    def about(self, kind: str, run_id: str, data: Sequence[OwnedId] = ()) -> dict[str, str]:
        """Datasets that documents of a kind by their own owners are about: id → owner.

        Args:
            kind: Of the documents.
            run_id: The data that this run began with is looked for.
            data: So are these.
        """
        values = {**places(data), "kind": kind, "run": run_id}
        rows = run(self._connection, _about(len(data)), values)
        return dict(rows.fetchall())

    def about_recorded_runs(self, kind: str, *, app_id: str, compose_hash: str) -> dict[str, str]:
        """As ``about``, of the data of every run of a deployment whose manifest is recorded."""
        values = {"kind": kind, "app": app_id, "compose": compose_hash}
        return dict(run(self._connection, _ABOUT_RECORDED, values).fetchall())

    def add(
        self,
        kind: str,
        *,
        owner: str,
        owner_id: str,
        digest: str,
        envelope: bytes,
        subjects: Collection[str],
        ledger_index: int,
    ) -> None:
        """Record a document; it is its owner's newest of its kind from now on."""
        self._connection.execute(
            owner_documents.insert().values(
                kind=kind, owner=owner, digest=digest, envelope=envelope, ledger_index=ledger_index
            )
        )
        if subjects:
            self._connection.execute(
                document_subjects.insert(),
                [
                    {
                        "kind": kind,
                        "subject": subject,
                        "digest": digest,
                        "owner": owner,
                        "owner_id": owner_id,
                    }
                    for subject in subjects
                ],
            )
