"""What becomes of each due time, under a clock that tests set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sealtrain.base.clock import from_rfc3339
from sealtrain.client.errors import SubmissionConflict
from sealtrain.owner.scheduling import LATE_SECONDS, Decided, ScheduleWait, Submitted, advance
from sealtrain.recipe.duetimes import name_of
from sealtrain.recipe.schedule import Schedule
from sealtrain.signing.continues import Continues

pytestmark = pytest.mark.claim("C194", "C232")
DAY = 86_400
HASH = "ab" * 32
FIRST = from_rfc3339("2027-01-04T03:00:00Z")
CRON: dict[str, Any] = {
    "when": "cron",
    "cron": "0 3 * * *",
    "continue": "base",
    "runs": 10,
    "starts_at": "2027-01-04T00:00:00Z",
    "ends_at": "2027-01-13T23:59:59Z",
}


@dataclass
class Ledger:
    """Submissions by name, recorded once, as a broker does."""

    names: dict[str, Submitted] = field(default_factory=dict)
    tickets: list[tuple[str, Continues | None]] = field(default_factory=list)
    manifests: int = 0
    registered: list[tuple[int, int]] = field(default_factory=list)
    """Index and time of each entry that registers data."""
    entries: dict[str, int] = field(default_factory=dict)
    sealed: str | None = None
    on_submit: Callable[[], None] = lambda: None

    def list_submitted(self) -> dict[str, Submitted]:
        return dict(self.names)

    def newest(self) -> Continues | None:
        if not self.manifests:
            return None
        return Continues(manifest_digest=f"{self.manifests:064x}", number=self.manifests + 1)

    def register(self, at: int) -> None:
        self.registered.append((len(self.entries) + len(self.registered), at))

    def new_data(self) -> int | None:
        return next((at for index, at in self.registered if index >= self.find_watched()), None)

    def find_watched(self) -> int:
        runs = [self.entries[name] for name, there in self.names.items() if there.skips is None]
        return max(runs, default=-1) + 1

    def objection(self) -> str | None:
        return self.sealed

    def submit(self, name: str, continues: Continues | None) -> None:
        self.on_submit()
        self._record(name, Submitted(state="waiting"))
        self.tickets.append((name, continues))

    def skip(self, name: str, code: str) -> None:
        there = self.names.get(name)
        if there is None or there.skips is None:
            self._record(name, Submitted(state="waiting", skips=code))
        self.names[name] = Submitted(state="skipped", skips=code)

    def _record(self, name: str, submitted: Submitted) -> None:
        if name in self.names:
            raise SubmissionConflict("the name is taken", check="name")
        self.names[name] = submitted
        self.entries[name] = len(self.entries) + len(self.registered)

    def finish(self, *, state: str = "completed") -> None:
        for name, there in self.names.items():
            if not there.is_over:
                self.names[name] = Submitted(state=state)
                self.manifests += state == "completed"


@dataclass
class Seen:
    decided: list[Decided] = field(default_factory=list)
    back: list[int] = field(default_factory=list)

    @property
    def codes(self) -> list[str | None]:
        return [decision.code for decision in self.decided]


def step(ledger: Ledger, now: int, seen: Seen | None = None, **changed: Any) -> int | None:
    """The next due time."""
    found = following(ledger, now, seen, **changed)
    return None if found is None else found.at


def following(
    ledger: Ledger, now: int, seen: Seen | None = None, **changed: Any
) -> ScheduleWait | None:
    seen = seen or Seen()
    return advance(
        Schedule.model_validate(CRON | changed),
        HASH,
        ledger,
        now=now,
        on_decided=seen.decided.append,
        on_clock_back=seen.back.append,
    )


def test_a_due_time_is_submitted_once_by_its_name() -> None:
    ledger, seen = Ledger(), Seen()
    assert step(ledger, FIRST - 1, seen) == FIRST
    assert seen.decided == []
    assert step(ledger, FIRST, seen) == FIRST + DAY
    assert step(ledger, FIRST + 5, seen) == FIRST + DAY
    assert [(decision.name, decision.code) for decision in seen.decided] == [
        (name_of(HASH, FIRST), None)
    ]
    assert ledger.tickets == [(name_of(HASH, FIRST), None)]


def test_each_run_names_the_manifest_before_it() -> None:
    ledger = Ledger()
    for day in range(3):
        step(ledger, FIRST + day * DAY)
        ledger.finish()
    assert [continues and continues.number for _, continues in ledger.tickets] == [None, 2, 3]


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (lambda ledger: setattr(ledger, "sealed", "approvals-missing"), "approvals-missing"),
        (lambda ledger: setattr(ledger, "sealed", "budget-spent"), "budget-spent"),
        (lambda ledger: step(ledger, FIRST - DAY), "still-running"),
    ],
)
def test_a_due_time_is_skipped_for_a_reason(prepare: Callable[[Ledger], None], code: str) -> None:
    ledger, seen = Ledger(), Seen()
    early = {"starts_at": "2027-01-03T00:00:00Z"}
    if code == "still-running":
        step(ledger, FIRST - DAY, **early)
    else:
        prepare(ledger)
        step(ledger, FIRST - DAY, **early)
    step(ledger, FIRST, seen, **early)
    assert seen.codes == [code]
    assert ledger.names[name_of(HASH, FIRST)] == Submitted(state="skipped", skips=code)


def test_downtime_is_skipped_day_by_day_and_the_newest_day_runs() -> None:
    ledger, seen = Ledger(), Seen()
    step(ledger, FIRST + 4 * DAY + LATE_SECONDS, seen)
    assert seen.codes == ["late"] * 4 + [None]
    assert len(ledger.names) == 5


def test_the_most_runs_are_not_passed() -> None:
    ledger, seen = Ledger(), Seen()
    for day in range(4):
        step(ledger, FIRST + day * DAY, seen, runs=2)
        ledger.finish()
    assert seen.codes == [None, None, "schedule-spent", "schedule-spent"]


WAITS: dict[str, Any] = {"when": "new-data", "cron": None, "least_seconds": DAY}
START = from_rfc3339(CRON["starts_at"])


def test_data_is_due_when_it_is_registered_and_nothing_is_without_it() -> None:
    ledger, seen = Ledger(), Seen()
    assert following(ledger, START + 60, seen, **WAITS) == ScheduleWait(at=START, watch=0)
    assert seen.decided == []
    ledger.register(START + 1000)
    found = following(ledger, START + 1010, seen, **WAITS)
    assert [(decision.due, decision.code) for decision in seen.decided] == [(START + 1000, None)]
    assert found == ScheduleWait(at=START + 1000 + DAY, watch=2)
    ledger.finish()
    assert following(ledger, START + 3 * DAY, seen, **WAITS) == found
    assert len(seen.decided) == 1


def test_data_of_before_the_schedule_is_due_at_its_start() -> None:
    ledger, seen = Ledger(), Seen()
    ledger.register(START - 5 * DAY)
    assert following(ledger, START - 1, seen, **WAITS) == ScheduleWait(at=START)
    step(ledger, START + 7, seen, **WAITS)
    assert [(decision.due, decision.code) for decision in seen.decided] == [(START, None)]


def test_data_that_comes_soon_after_a_run_waits_for_the_least_interval() -> None:
    ledger, seen = Ledger(), Seen()
    ledger.register(START)
    step(ledger, START, seen, **WAITS)
    ledger.finish()
    ledger.register(START + 60)
    assert following(ledger, START + 90, seen, **WAITS) == ScheduleWait(at=START + DAY)
    step(ledger, START + DAY + 5, seen, **WAITS)
    assert [decision.due for decision in seen.decided] == [START, START + DAY]


def test_data_for_which_no_run_could_be_asked_stays_new() -> None:
    """Each try is recorded with its reason, and the scheduler's downtime passes nothing over."""
    ledger, seen = Ledger(sealed="dataset-withdrawn"), Seen()
    ledger.register(START)
    step(ledger, START, seen, **WAITS)
    ledger.sealed = None
    step(ledger, START + 3 * DAY, seen, **WAITS)
    assert [(decision.due, decision.code) for decision in seen.decided] == [
        (START, "dataset-withdrawn"),
        (START + DAY, None),
    ]


def test_two_schedulers_name_the_due_time_of_data_alike() -> None:
    ledger, first, second = Ledger(), Seen(), Seen()
    ledger.register(START + 11)

    def other() -> None:
        ledger.on_submit = lambda: None
        step(ledger, START + 40, second, **WAITS)

    ledger.on_submit = other
    step(ledger, START + 30, first, **WAITS)
    assert list(ledger.names) == [name_of(HASH, START + 11)]
    assert len(ledger.tickets) == 1


def test_a_schedule_of_data_ends() -> None:
    ends = from_rfc3339(CRON["ends_at"])
    ledger, seen = Ledger(), Seen()
    assert following(ledger, ends, seen, **WAITS) is not None
    assert following(ledger, ends + 1, seen, **WAITS) is None
    ledger.register(ends + 1)
    assert following(ledger, ends + 5, seen, **WAITS) is None
    assert seen.decided == []


def test_a_clock_that_is_set_back_submits_nothing_twice_and_is_named() -> None:
    ledger, seen = Ledger(), Seen()
    for day in range(3):
        step(ledger, FIRST + day * DAY, seen)
        ledger.finish()
    assert seen.back == []
    assert step(ledger, FIRST + DAY + 60, seen) == FIRST + 2 * DAY
    assert seen.back == [FIRST + 2 * DAY]
    assert len(seen.decided) == len(ledger.names) == 3


def test_two_schedulers_at_once_submit_once() -> None:
    """The other one decides while this one has read and not written yet."""
    ledger, first, second = Ledger(), Seen(), Seen()

    def other() -> None:
        ledger.on_submit = lambda: None
        step(ledger, FIRST, second)

    ledger.on_submit = other
    step(ledger, FIRST, first)
    assert len(ledger.tickets) == len(ledger.names) == 1
    assert second.codes == [None]


def test_a_skip_that_was_begun_is_completed_after_a_crash() -> None:
    name = name_of(HASH, FIRST)
    ledger, seen = Ledger({name: Submitted(state="waiting", skips="nothing-new")}), Seen()
    step(ledger, FIRST + 60, seen)
    assert ledger.names[name] == Submitted(state="skipped", skips="nothing-new")
    assert seen.decided == []


def test_a_schedule_ends() -> None:
    last = FIRST + 9 * DAY
    assert step(Ledger(), last - 1) == last
    assert step(Ledger(), last) is None
