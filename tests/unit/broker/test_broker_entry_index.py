"""The index of entries follows the ledger, on both databases, and finds them soon in a long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from release_world import TestClock
from world import identity

from sealtrain.broker.store.entry_index import EVERY, subject_of
from sealtrain.broker.store.memory import Store
from sealtrain.errors import LimitExceeded
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.postgres import Postgres

RUNS = ("aa" * 16, "bb" * 16)


def opened(database: Path | Postgres) -> Ledger:
    place = database.with_name("ledger.sqlite") if isinstance(database, Path) else database
    signer = identity("broker").signer
    return Ledger.open(place, origin="sealtrain/ledger/test", signer=signer, clock=TestClock())


def fill(store: Store, ledger: Ledger) -> None:
    for number in range(6):
        with store.transaction(alone=number % 2 == 0):
            ledger.append("refusal", {"run_id": RUNS[number % 2], "compose_hash": "cc" * 32})
    with store.transaction():
        ledger.append("boot", {"run_id": 7, "compose_hash": "not a hash"})
        ledger.append("rotation", {"run_id": RUNS[0], "parties": [RUNS[1], RUNS[0], 3]})


@pytest.mark.claim("C184")
@pytest.mark.parametrize("how", ["as it grows", "at the start"])
def test_entries_of_every_kind_are_found(database: Path | Postgres, how: str) -> None:
    with opened(database) as ledger:
        store = Store(database)
        if how == "as it grows":
            store.join(ledger, now=1)
            fill(store, ledger)
        else:
            for number in range(6):
                ledger.append("refusal", {"run_id": RUNS[number % 2], "compose_hash": "cc" * 32})
            ledger.append("boot", {"run_id": 7, "compose_hash": "not a hash"})
            ledger.append("rotation", {"run_id": RUNS[0], "parties": [RUNS[1], RUNS[0], 3]})
            store.join(ledger, now=1)
        with store.reading() as transaction:
            find = transaction.entries.find
            run = subject_of("run_id", RUNS[1])
            assert find(run, kind=None, start=0, limit=9) == [1, 3, 5, 7]
            assert find(run, kind="rotation", start=0, limit=9) == [7]
            assert find(run, kind=None, start=2, limit=2) == [3, 5]
            assert find(EVERY, kind="boot", start=0, limit=9) == [6]
            assert find(subject_of("compose_hash", "cc" * 32), kind=None, start=0, limit=9) == [
                *range(6)
            ]
            assert find(subject_of("run_id", "7"), kind=None, start=0, limit=9) == []
            assert transaction.entries.first(run, "refusal") == 1
        store.close()


@pytest.mark.claim("C184")
def test_an_undone_transaction_leaves_no_row(tmp_path: Path) -> None:
    with opened(tmp_path / "database.sqlite") as ledger:
        store = Store(tmp_path / "database.sqlite")
        store.join(ledger, now=1)
        with pytest.raises(LimitExceeded), store.transaction():
            _append_then_fail(ledger)
        with store.reading() as transaction:
            assert transaction.entries.find(EVERY, kind=None, start=0, limit=9) == []
        store.close()


def _append_then_fail(ledger: Ledger) -> None:
    ledger.append("refusal", {"run_id": RUNS[0]})
    ledger.append("boot", {"text": "b" * 300_000})
