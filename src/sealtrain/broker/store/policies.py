"""The part of a transaction that remembers owners' policies; the newest of each is in force."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.broker.store.statements import Settled, settled_rows
from sealtrain.broker.store.tables import owner_policies

__all__ = ["Policies"]

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
        """Each owner's newest: name → digest and envelope."""
        rows = settled_rows(self._connection, _IN_FORCE, {}, self._settled)
        return {owner: (digest, bytes(envelope)) for owner, digest, envelope in rows}

    def submitted(self, digest: str) -> int | None:
        """Ledger index of a policy handed in before, by the digest of its envelope."""
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
