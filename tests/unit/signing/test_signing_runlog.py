"""The run log keeps order and content, and says when either was lost."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import pytest
from carrying import carries

from sealtrain.base.canonical import canonical_json
from sealtrain.errors import DataInvalid, LimitExceeded, RunLogBroken
from sealtrain.signing import runlog
from sealtrain.signing.runlog import RunLog

RUN = "0f" * 16
AT = 1_772_366_400


def example() -> RunLog:
    log = RunLog(RUN)
    log.append("run.started", {"platform": "simulator"}, AT)
    log.append("checkpoint.sealed", {"step": 50, "loss": 1.5}, AT + 1)
    log.append("training.finished", {}, AT + 2)
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
        "fields": {"platform": "simulator"},
    }


def test_append_returns_the_new_head() -> None:
    log = RunLog(RUN)
    assert log.append("keys.released", {}, AT) == log.head


def test_changing_what_came_in_or_out_changes_nothing_inside() -> None:
    log, fields = RunLog(RUN), {"names": ["a"]}
    log.append("keys.released", fields, AT)
    fields["names"].append("b")
    log.entries[0]["fields"]["names"].append("c")
    assert log.entries[0]["fields"] == {"names": ["a"]}
    assert runlog.verify(RUN, log.entries) == log.head


def test_a_resumed_log_goes_on_where_it_stopped() -> None:
    whole, first = example(), example()
    resumed = RunLog.restore(RUN, first.entries, head=first.head)
    assert resumed.append("data.validated", {}, AT + 3) == whole.append(
        "data.validated", {}, AT + 3
    )
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
    broken([entries[0], {**entries[1], "fields": {"step": 51, "loss": 1.5}}, entries[2]])
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
        log.append("keys.released", {"loss": float("nan")}, AT)
    with pytest.raises(DataInvalid):
        log.append("keys.released", {"loss": 2**60}, AT)
    with pytest.raises(LimitExceeded):
        log.append("keys.released", {"text": "x" * runlog.MAX_ENTRY_BYTES}, AT)
    assert (log.head, len(log)) == (head, 3)
    with pytest.raises(DataInvalid):
        RunLog("not a run id")


def test_a_full_log_takes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runlog, "MAX_ENTRIES", 3)
    log = example()
    with pytest.raises(LimitExceeded):
        log.append("keys.released", {}, AT)
    monkeypatch.setattr(runlog, "MAX_ENTRIES", 2)
    with pytest.raises(RunLogBroken, check=carries(expected="at most 2 entries")):
        runlog.verify(RUN, log.entries)


def test_several_threads_append_without_losing_an_entry() -> None:
    log = RunLog(RUN)

    def write(number: int) -> None:
        for step in range(50):
            log.append("checkpoint.sealed", {"writer": number, "step": step}, AT)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log) == 200
    assert runlog.verify(RUN, log.entries) == log.head
