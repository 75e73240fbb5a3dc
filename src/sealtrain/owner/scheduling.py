"""Decide what becomes of each due time of a schedule: a submission, or a reason.

``advance`` (spec/schedule.md §2) is the whole scheduler but for the network and for sleeping. It
keeps no state: what was submitted is read from the broker each time, by names that follow from
recipe and due time, so that a scheduler may be killed, started twice or moved at any moment. Each
due time passes these states:

    due ──► skipped, for the first reason of ``_reason`` that holds
      └───► submitted, with the manifest of the run before in its ticket

A due time that has a name at the broker is never decided again, whatever the clock says. With
``when: cron`` due times follow from the lock alone; with ``when: new-data`` one arises when the
broker's ledger has data that no run was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.client.errors import SubmissionConflict
from sealtrain.recipe.duetimes import (
    earliest_of_data,
    find_due_of_data,
    iterate_due_times,
    name_of,
    read_due_name,
)
from sealtrain.recipe.schedule import Schedule
from sealtrain.signing.continues import Continues

LATE_SECONDS: Final = 1800
"""A due time of cron that was missed by more is skipped: half of the least time between two."""
_OVER: Final = frozenset({"completed", "failed", "stopped", "skipped", "expired"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What a broker knows of one due time.

    Attributes:
        state: As ``spec/run-control.md`` §5 names it.
        skips: Code of the reason for which it is to be skipped; ``None`` of a run.
    """

    state: str
    skips: str | None = None

    @property
    def is_over(self) -> bool:
        """Nothing will be started for it any more."""
        return self.state in _OVER


class Board(Protocol):
    """What a scheduler asks of a broker and tells it."""

    def list_submitted(self) -> Mapping[str, Submitted]:
        """Every submission of this recipe's schedule, by name."""

    def newest(self) -> Continues | None:
        """What the next run of the chain says of the run before; ``None`` for its first run."""

    def new_data(self) -> int | None:
        """When the first data was registered after the newest submission that was not skipped."""

    def find_watched(self) -> int:
        """Least index of an entry that registers such data."""

    def objection(self) -> str | None:
        """Code of the first reason for which no key would be released to a run now."""

    def submit(self, name: str, continues: Continues | None) -> None:
        """Ask for a run."""

    def skip(self, name: str, code: str) -> None:
        """Record that a due time is skipped, and why; complete a skip that was begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What became of a due time just now.

    Attributes:
        due: Seconds since the epoch.
        name: Of its submission.
        code: Why it was skipped; ``None`` where a run was asked for.
    """

    due: int
    name: str
    code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleWait:
    """What a scheduler waits for.

    Attributes:
        at: No due time is earlier; seconds since the epoch.
        watch: Least index of a ledger entry whose data makes a due time; ``None`` where ``at`` is
            one by itself.
    """

    at: int
    watch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    due: int
    now: int
    spent: bool
    running: bool


def advance(
    schedule: Schedule,
    recipe_hash: str,
    board: Board,
    *,
    now: int,
    on_decided: Callable[[Decided], None],
    on_clock_back: Callable[[int], None],
) -> ScheduleWait | None:
    """Decide every due time up to now that has none yet, oldest first.

    Args:
        schedule: Of the lock.
        recipe_hash: Of the lock.
        board: The broker.
        now: Seconds since the epoch.
        on_decided: Called for each due time once the broker recorded it.
        on_clock_back: Called with the newest due time that was decided, where that is later than
            now: this clock was set back, or another scheduler's is ahead.

    Returns:
        What comes next; ``None`` when the schedule is over.
    """
    known = dict(board.list_submitted())
    taken = [due for name in known if (due := read_due_name(name, recipe_hash)) is not None]
    newest = max(taken, default=None)
    if newest is not None and newest > now:
        on_clock_back(newest)
    for name, there in known.items():
        if there.skips is not None and not there.is_over:
            board.skip(name, there.skips)

    def settle(due: int) -> None:
        name = name_of(recipe_hash, due)
        code = _reason(schedule, board, _look_at(schedule, known, due=due, now=now))
        known[name] = _decide(board, name, code)
        on_decided(Decided(due=due, name=name, code=code))

    if schedule.when == "new-data":
        return _after_data(schedule, board, newest, now, settle)
    for due in iterate_due_times(schedule, until=now):
        if name_of(recipe_hash, due) not in known:
            settle(due)
    ends = from_rfc3339(schedule.ends_at)
    following = next((due for due in iterate_due_times(schedule, until=ends) if due > now), None)
    return None if following is None else ScheduleWait(at=following)


def _after_data(
    schedule: Schedule, board: Board, newest: int | None, now: int, settle: Callable[[int], None]
) -> ScheduleWait | None:
    """Decide the one due time that new data makes, where it has come."""
    due = find_due_of_data(schedule, registered=board.new_data(), before=newest)
    if due is not None and due <= now:
        settle(due)
        board.list_submitted()
        due, newest = find_due_of_data(schedule, registered=board.new_data(), before=due), due
    if due is not None:
        return ScheduleWait(at=due)
    earliest = earliest_of_data(schedule, before=newest)
    if max(earliest, now) > from_rfc3339(schedule.ends_at):
        return None
    return ScheduleWait(at=earliest, watch=board.find_watched())


def _look_at(schedule: Schedule, known: Mapping[str, Submitted], *, due: int, now: int) -> _Seen:
    runs = [run for run in known.values() if run.skips is None and run.state != "skipped"]
    return _Seen(
        due=due,
        now=now,
        spent=len(runs) >= schedule.runs,
        running=any(not run.is_over for run in runs),
    )


def _reason(schedule: Schedule, board: Board, seen: _Seen) -> str | None:
    """Why a due time is skipped; the broker is asked only where nothing else decides.

    1. it is long past: the scheduler, or the broker, was down;
    2. so many runs as the schedule has were asked for;
    3. the run before has not ended;
    4. no key would be released: the code that the broker would refuse with.

    Data does not stop being new, so a due time that it makes is never late.
    """
    if schedule.when == "cron" and seen.now - seen.due > LATE_SECONDS:
        return "late"
    if seen.spent:
        return "schedule-spent"
    if seen.running:
        return "still-running"
    return board.objection()


def _decide(board: Board, name: str, code: str | None) -> Submitted:
    try:
        if code is None:
            board.submit(name, board.newest())
            return Submitted(state="waiting")
        board.skip(name, code)
    except SubmissionConflict:
        # Another scheduler decided this due time between our question and our answer.
        return Submitted(state="waiting")
    return Submitted(state="skipped", skips=code)


def describe_decision(decided: Decided) -> str:
    """A decision for people."""
    how = "submitted" if decided.code is None else f"skipped: {decided.code}"
    return f"due {to_rfc3339(decided.due)}  {how}"
