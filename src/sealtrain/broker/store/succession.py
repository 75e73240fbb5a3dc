"""A broker before and after a succession: how one begins a ledger, how the other ends (§3).

See ``spec/succession.md``. The successor's broker writes it as its first entry, so that owners'
memories follow; the predecessor's broker records it and from then on lets nothing run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sealtrain.broker.store.statements import Settled, settled_rows
from sealtrain.broker.store.tables import successions
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.succession import SuccessionFile
from sealtrain.errors import ConfigError, ConsortiumMismatch
from sealtrain.ledger.ledger import Ledger

__all__ = ["Successions", "begin_ledger"]

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

    def recorded(self) -> tuple[str, str, int] | None:
        """What took this consortium's place: its id, the digest of the envelope, its entry."""
        for successor, digest, index in settled_rows(
            self._connection, _RECORDED, {}, self._settled
        ):
            return successor, digest, int(index)
        return None

    def add(self, successor_id: str, digest: str, *, ledger_index: int) -> None:
        """Record that the consortium was succeeded; only one succession ever is."""
        self._connection.execute(
            successions.insert().values(
                place=0, successor_id=successor_id, digest=digest, ledger_index=ledger_index
            )
        )

    def require_none(self) -> None:
        """Return if the consortium is still in force.

        Raises:
            ConsortiumMismatch: Its owners put another one in its place.
        """
        found = self.recorded()
        if found is not None:
            raise ConsortiumMismatch(
                "the owners put another consortium in the place of this one",
                check="succession",
                expected=f"requests to a broker of {found[0]}",
                hint="lock the recipe anew for the successor and have it approved there",
            )


def begin_ledger(ledger: Ledger, consortium: Consortium, path: Path, *, now: int) -> None:
    """Write a succession as the first entry of the successor's ledger, or find it there.

    Args:
        ledger: Of the successor's broker.
        consortium: The successor.
        path: ``succession.json``.
        now: The broker's time, seconds since the epoch.

    Raises:
        Refused: Too few owners of the predecessor signed it, or it is over.
        ConsortiumMismatch: It names another successor.
        ConfigError: The ledger began with something else.
    """
    found = SuccessionFile.load(path).verified()
    if found.successor.consortium_id != consortium.consortium_id:
        raise ConsortiumMismatch(
            "the succession names another successor than the consortium file",
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
