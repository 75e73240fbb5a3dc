"""Where a run stands after what its log says."""

from __future__ import annotations

from typing import Any

from run_logs import fields_of

from sealtrain.signing.runlog import RunLog
from sealtrain_together.travelling.history import first_open

RUN_ID = "7e" * 16
NOW = 1_790_000_000


def _log(*events: tuple[str, int | None]) -> RunLog:
    log = RunLog(RUN_ID)
    for name, trip in events:
        changed: dict[str, Any] = {} if trip is None else {"trip": trip}
        log.append(name, fields_of(name, **changed), NOW)
    return log


def test_the_first_open_trip_is_neither_trained_nor_refused() -> None:
    events = [("trip.lent", 0), ("trip.lent", 1), ("trip.trained", 0), ("trip.lent", 2)]
    assert first_open(_log(*events)) == 1
    assert first_open(_log(*events, ("trip.refused", 1))) == 2
    assert first_open(_log(*events[:1], ("trip.trained", 0))) == 1


def test_a_trip_that_was_open_when_a_run_was_taken_over_is_not_open_for_the_next_one() -> None:
    """Otherwise holders would refuse a second orchestrator for all that came since the first."""
    before = [("trip.lent", 0), ("trip.lent", 1), ("trip.trained", 0), ("travel.taken-over", None)]
    assert first_open(_log(*before)) == 2
    assert first_open(_log(*before, ("trip.lent", 2), ("trip.trained", 2), ("trip.lent", 3))) == 3
