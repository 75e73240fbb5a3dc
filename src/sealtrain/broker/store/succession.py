"""A broker before and after a succession: how the new ledger begins and the old ends (§3).

See ``spec/succession.md``. The successor's broker writes the succession as its first entry, so that
owners' pins follow; the predecessor's broker records it and from then on refuses every release and
renewal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.broker.store.statements import Settled, read_settled_rows
from sealtrain.broker.store.tables import successions
from sealtrain.consortium.errors import ConsortiumMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.succession import SuccessionFile
from sealtrain.errors import ConfigError
from sealtrain.ledger.ledger import Ledger
from sealtrain.release.decide import in_force

ENTRY_KIND: Final = "succession"
# Built once: asked with every release and renewal (see ``store.statements``).
_RECORDED: Final = sa.select(
    successions.c.successor_id, successions.c.digest, successions.c.ledger_index
).limit(1)


class Successions:
    """Reads and writes of one transaction."""

    def __init__(self, connection: Connection, settled: Settled | None) -> None:
        self._connection = connection
        self._settled = settled

    def find_recorded(self) -> tuple[str, str, int] | None:
        """The successor's id, the digest of the succession's envelope, and its entry."""
        for successor, digest, index in read_settled_rows(
            self._connection, _RECORDED, {}, self._settled
        ):
            return successor, digest, int(index)
        return None

    def add(self, successor_id: str, digest: str, *, ledger_index: int) -> None:
        """Record the consortium's succession, of which there is at most one."""
        self._connection.execute(
            successions.insert().values(
                place=0, successor_id=successor_id, digest=digest, ledger_index=ledger_index
            )
        )

    def require_none(self) -> None:
        """Return if the consortium is still in force.

        Raises:
            ConsortiumMismatch: Its owners replaced it by a successor.
        """
        found = self.find_recorded()
        in_force(None if found is None else found[0])


def begin_ledger(ledger: Ledger, consortium: Consortium, path: Path, *, now: int) -> None:
    """Write a succession as the first entry of the successor's ledger, or find it there.

    Args:
        ledger: Of the successor's broker.
        consortium: The successor.
        path: ``succession.json``.
        now: The broker's time, seconds since the epoch.

    Raises:
        Refused: Too few owners of the predecessor signed it, or it expired.
        ConsortiumMismatch: It names another successor.
        ConfigError: The ledger's first entry is another.
    """
    found = SuccessionFile.load(path).verify()
    if found.successor.consortium_id != consortium.consortium_id:
        raise ConsortiumMismatch(
            "the succession and the consortium file name different successors",
            check="successor",
            got=consortium.consortium_id,
            expected=found.successor.consortium_id,
            hint="serve the consortium.json that sealtrain consortium succeed wrote",
        )
    if ledger.size == 0:
        ledger.append(ENTRY_KIND, found.in_time(now).entry)
        return
    first = ledger.entries(0, 1)[0]
    body = first["body"]
    if (
        first["kind"] != ENTRY_KIND
        or not isinstance(body, dict)
        or (body.get("digest") != found.envelope.digest)
    ):
        raise ConfigError(
            "the ledger in the state folder began without this succession",
            check="--succeeds",
            got=f"a first entry of kind {first['kind']}",
            expected=f"succession {found.envelope.digest}",
            hint="begin the successor with an empty state folder; keep the old one as it is",
        )
