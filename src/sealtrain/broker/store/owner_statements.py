"""The parts of a transaction that remember withdrawals and owners' policies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.broker.store.statements import Settled, among, places, run, settled_rows
from sealtrain.broker.store.tables import owner_policies, run_datasets, withdrawals

__all__ = ["Policies", "Withdrawals"]

# Built once: one query for each release and renewal (see ``store.statements``).
_DATA: Final = sa.select(run_datasets.c.dataset_id).where(
    run_datasets.c.run_id == sa.bindparam("run", type_=sa.Text)
)


@lru_cache(maxsize=16)
def _involved(count: int) -> sa.Select[Any]:
    return sa.select(withdrawals.c.dataset_id, withdrawals.c.owner).where(
        sa.or_(among(withdrawals.c.dataset_id, count), withdrawals.c.dataset_id.in_(_DATA))
    )


class Withdrawals:
    """Reads and writes of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def involved(self, run_id: str, dataset_ids: Sequence[str] = ()) -> dict[str, str]:
        """Withdrawn datasets among those named and the data of the run: id → owner."""
        named = places(dataset_ids)
        rows = run(self._connection, _involved(len(named)), {**named, "run": run_id})
        return dict(rows.fetchall())

    def submitted(self, digest: str) -> int | None:
        """Ledger index of a withdrawal submitted before, by the digest of its envelope."""
        found = self._connection.execute(
            sa.select(withdrawals.c.ledger_index).where(withdrawals.c.digest == digest).limit(1)
        ).scalar_one_or_none()
        return None if found is None else int(found)

    def add(
        self, dataset_ids: Sequence[str], *, owner: str, digest: str, ledger_index: int
    ) -> None:
        """Record a withdrawal."""
        self._connection.execute(
            withdrawals.insert(),
            [
                {
                    "dataset_id": dataset_id,
                    "owner": owner,
                    "digest": digest,
                    "ledger_index": ledger_index,
                }
                for dataset_id in dataset_ids
            ],
        )


_NEWEST: Final = sa.select(sa.func.max(owner_policies.c.ledger_index)).group_by(
    owner_policies.c.owner
)
# Built once: one query for each release and renewal (see ``store.statements``).
_IN_FORCE: Final = (
    sa.select(owner_policies.c.owner, owner_policies.c.digest, owner_policies.c.envelope)
    .where(owner_policies.c.ledger_index.in_(_NEWEST))
    .order_by(owner_policies.c.owner)
)


class Policies:
    """Reads and writes of one transaction."""

    def __init__(self, connection: Connection, settled: Settled | None) -> None:
        self._connection = connection
        self._settled = settled

    def in_force(self) -> dict[str, tuple[str, bytes]]:
        """Each owner's newest policy, which is in force: name → digest and envelope."""
        rows = settled_rows(self._connection, _IN_FORCE, {}, self._settled)
        return {owner: (digest, bytes(envelope)) for owner, digest, envelope in rows}

    def submitted(self, digest: str) -> int | None:
        """Ledger index of a policy submitted before, by the digest of its envelope."""
        found = self._connection.execute(
            sa.select(owner_policies.c.ledger_index).where(owner_policies.c.digest == digest)
        ).scalar_one_or_none()
        return None if found is None else int(found)

    def add(self, owner: str, *, digest: str, envelope: bytes, ledger_index: int) -> None:
        """Record a policy; it is in force from now on."""
        self._connection.execute(
            owner_policies.insert().values(
                digest=digest, owner=owner, envelope=envelope, ledger_index=ledger_index
            )
        )
