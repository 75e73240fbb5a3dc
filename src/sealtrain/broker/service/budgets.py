"""Privacy that runs have reserved from owners, counted from the ledger each time.

The ledger is the account: a sum kept in the database could be set back with an old copy of its
file. The database remembers at which places of the ledger reservations stand, so that setting back
the ledger alone is detected here, and setting back both by the holder of a checkpoint or receipt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from sealtrain.errors import LedgerInconsistent
from sealtrain.ledger.ledger import MAX_PAGE, Ledger

__all__ = ["spent_so_far"]


def spent_so_far(ledger: Ledger, reserved: Mapping[int, str]) -> dict[tuple[str, str], float]:
    """Epsilon reserved by all runs.

    Args:
        ledger: The broker's.
        reserved: Index of every ledger entry that holds a reservation → run id, as the database
            remembers them; the ledger may hold more.

    Returns:
        Sum by (owner, dataset name).

    Raises:
        LedgerInconsistent: A reservation is missing from the ledger.
    """
    total: Counter[tuple[str, str]] = Counter()
    missing = dict(reserved)
    for index, entry in _entries(ledger):
        body = entry["body"]
        found = body.get("privacy") if entry["kind"] == "release" else None
        if not found:
            continue
        if missing.get(index) == body["run_id"]:
            del missing[index]
        for one in found:
            total[one["owner"], one["name"]] += one["epsilon"]
    if missing:
        raise LedgerInconsistent(
            "the ledger has lost reservations of privacy that this broker made",
            check="privacy budget",
            got=f"{len(missing)} of {len(reserved)} missing",
            hint="the ledger file was set back: restore the newest copy",
        )
    return dict(total)


def _entries(ledger: Ledger) -> Iterator[tuple[int, dict[str, Any]]]:
    start = 0
    while page := ledger.entries(start, MAX_PAGE):
        yield from enumerate(page, start)
        start += len(page)
