"""The run log keeps order and content, and says when either was lost."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import pytest
from carrying import carries
from run_logs import FIELDS, fields_of

from sealtrain.base.canonical import canonical_json
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.recipe.collaborations.federated import Federated
from sealtrain.recipe.kinds import KINDS
from sealtrain.recipe.schema import PHASES
from sealtrain.signing import logevents, runlog
from sealtrain.signing.errors import RunLogBroken
from sealtrain.signing.runlog import RunLog

RUN = "0f" * 16
AT = 1_772_366_400


def example() -> RunLog:
    log = RunLog(RUN)
    log.append("run.started", fields_of("run.started"), AT)
    log.append("checkpoint.sealed", fields_of("checkpoint.sealed"), AT + 1)
    log.append("training.finished", fields_of("training.finished"), AT + 2)
    return log


def test_the_head_follows_the_specification() -> None:
    log = example()
    head = hashlib.sha256(b"sealtrain/run-log/v1:" + RUN.encode()).digest()
    assert RunLog(RUN).head == head.hex() == runlog.verify(RUN, [])
    for entry in log.entries:
        head = hashlib.sha256(head + canonical_json(entry)).digest()
    assert log.head == head.hex() == runlog.verify(RUN, log.entries, head=log.head)


def test_entries_hold_what_was_said() -> None:
    first = example().entries[0]
    assert first == {
        "seq": 1,
        "at": "2026-03-01T12:00:00Z",
        "event": "run.started",
        "fields": {"platform": "simulator", "phase": "sft"},
    }


def test_append_returns_the_new_head() -> None:
    log = RunLog(RUN)
    assert log.append("run.restarted", {}, AT) == log.head


def test_changing_what_came_in_or_out_changes_nothing_inside() -> None:
    log, fields = RunLog(RUN), fields_of("federation.begun")
    log.append("federation.begun", fields, AT)
    fields["parties"].append("b")
    log.entries[0]["fields"]["parties"].append("c")
    assert log.entries[0]["fields"] == fields_of("federation.begun")
    assert runlog.verify(RUN, log.entries) == log.head


def test_a_resumed_log_goes_on_where_it_stopped() -> None:
    whole, first = example(), example()
    resumed = RunLog.restore(RUN, first.entries, head=first.head)
    assert resumed.append("run.restarted", {}, AT + 3) == whole.append("run.restarted", {}, AT + 3)
    assert len(resumed) == 4


def test_a_log_resumed_from_a_shorter_copy_is_refused() -> None:
    log = example()
    with pytest.raises(RunLogBroken, check=carries(check="run log head")):
        RunLog.restore(RUN, log.entries[:-1], head=log.head)


def broken(entries: list[dict[str, Any]]) -> None:
    with pytest.raises(RunLogBroken):
        runlog.verify(RUN, entries, head=example().head)


def test_a_log_that_was_touched_is_refused() -> None:
    entries = example().entries
    broken(entries[:-1])
    broken(entries[1:])
    broken([entries[1], entries[0], entries[2]])
    broken([*entries, entries[-1]])
    broken(
        [entries[0], {**entries[1], "fields": fields_of("checkpoint.sealed", step=51)}, entries[2]]
    )
    broken([entries[0], {**entries[1], "at": "2026-03-01T12:00:09Z"}, entries[2]])
    broken([entries[0], {**entries[1], "seq": True}, entries[2]])
    broken([{**entries[0], "seq": True}, *entries[1:]])
    broken([entries[0], {**entries[1], "extra": 0}, entries[2]])
    broken([{**entries[0], "event": "run.startet"}, *entries[1:]])
    broken([entries[0], [], entries[2]])  # type: ignore[list-item]  # what a hostile file may hold


def test_another_runs_log_is_refused() -> None:
    log = example()
    with pytest.raises(RunLogBroken):
        runlog.verify("1f" * 16, log.entries, head=log.head)
    with pytest.raises(RunLogBroken):
        runlog.verify("not hex", log.entries)


def test_what_cannot_be_written_leaves_the_log_as_it_was() -> None:
    log = example()
    head = log.head
    with pytest.raises(DataInvalid):
        log.append("Loud Event", {}, AT)
    with pytest.raises(DataInvalid):
        log.append("patient.4711-was-positive", {}, AT)
    with pytest.raises(DataInvalid):
        log.append("trip.trained", fields_of("trip.trained", moved=float("nan")), AT)
    with pytest.raises(DataInvalid):
        log.append("trip.trained", fields_of("trip.trained", moved=2**60), AT)
    with pytest.raises(LimitExceeded):
        log.append("keys.released", {"text": "x" * runlog.MAX_ENTRY_BYTES}, AT)
    assert (log.head, len(log)) == (head, 3)
    with pytest.raises(DataInvalid):
        RunLog("not a run id")


def test_a_full_log_takes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runlog, "MAX_ENTRIES", 3)
    log = example()
    with pytest.raises(LimitExceeded):
        log.append("run.restarted", {}, AT)
    monkeypatch.setattr(runlog, "MAX_ENTRIES", 2)
    with pytest.raises(RunLogBroken, check=carries(expected="at most 2 entries")):
        runlog.verify(RUN, log.entries)


def test_several_threads_append_without_losing_an_entry() -> None:
    log = RunLog(RUN)

    def write() -> None:
        for step in range(50):
            log.append("checkpoint.sealed", fields_of("checkpoint.sealed", step=step), AT)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log) == 200
    assert runlog.verify(RUN, log.entries) == log.head


def test_the_table_has_honest_fields_of_each_event() -> None:
    assert FIELDS.keys() == logevents.EVENTS.keys()
    for event, fields in FIELDS.items():
        row = logevents.EVENTS[event]
        assert logevents.fault(event, fields) is None
        assert row.fields.keys() <= fields.keys()


@pytest.mark.parametrize("event", FIELDS)
def test_a_log_takes_the_fields_of_the_table_and_no_others(event: str) -> None:
    log, fields = RunLog(RUN), fields_of(event)
    log.append(event, fields, AT)
    row = logevents.EVENTS[event]
    wrong = [fields | {"note": "positive"}]
    wrong += [{name: fields[name] for name in fields if name != gone} for gone in row.fields]
    wrong += [
        fields | {name: value}
        for name in fields.keys() - {"program"}
        for value in ("x y", -2, {"": None}, [None])
    ]
    for others in wrong:
        with pytest.raises(DataInvalid, check=carries(check="run log fields")):
            log.append(event, others, AT)
    assert len(log) == 1


def test_words_of_the_table_are_those_of_the_modules_that_own_them() -> None:
    """``signing`` lies below recipes and kinds, so it cannot import their lists."""
    assert tuple(PHASES) == logevents.PHASES
    assert set(logevents.KINDS) == KINDS.keys()
    settings = Federated.model_json_schema()["properties"]
    assert set(logevents.RULES) == set(settings["aggregation"]["enum"])
