"""The field ``schedule`` of a recipe: what it may say, and the due times that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.recipe.diff import diff
from sealtrain.recipe.duetimes import iterate_due_times, name_of, read_due_name
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.lockfile import parse_lock
from sealtrain.recipe.schedule import Schedule
from sealtrain.recipe.schema import parse_recipe

pytestmark = pytest.mark.claim("C192")
START = "2027-01-04T00:00:00Z"
DAILY: dict[str, Any] = {
    "when": "cron",
    "cron": "0 3 * * *",
    "continue": "base",
    "runs": 10,
    "starts_at": START,
    "ends_at": "2027-01-13T23:59:59Z",
}
FRESH: dict[str, Any] = {
    "when": "new-data",
    "least_seconds": 86_400,
    "continue": "base",
    "runs": 3,
    "starts_at": START,
    "ends_at": "2027-01-07T00:00:00Z",
}
HASH = "ab" * 32


def read(sft: dict[str, Any], schedule: Any) -> Any:
    return parse_recipe(sft | {"schedule": schedule}).schedule


def test_ten_days_have_ten_due_times() -> None:
    found = list(iterate_due_times(Schedule.model_validate(DAILY), until=2**40))
    first = from_rfc3339("2027-01-04T03:00:00Z")
    assert found == [first + day * 86_400 for day in range(10)]


def test_a_due_time_at_the_start_and_at_the_end_counts() -> None:
    edge = DAILY | {"starts_at": "2027-01-04T03:00:00Z", "ends_at": "2027-01-05T03:00:00Z"}
    assert len(list(iterate_due_times(Schedule.model_validate(edge), until=2**40))) == 2


def test_a_year_of_hours_is_the_most() -> None:
    hourly = DAILY | {"cron": "0 * * * *", "ends_at": "2028-01-05T00:00:00Z"}
    assert (
        len(list(iterate_due_times(Schedule.model_validate(hourly), until=2**40))) == 366 * 24 + 1
    )


@settings(deadline=None, max_examples=examples(50))
@given(
    minute=st.integers(0, 59),
    hours=st.sets(st.integers(0, 23), min_size=1, max_size=4),
    weekdays=st.sets(st.integers(0, 6), min_size=1, max_size=7),
)
def test_cron_means_what_it_says(minute: int, hours: set[int], weekdays: set[int]) -> None:
    """Against every minute of two weeks, compared field by field."""
    cron = f"{minute} {','.join(map(str, hours))} * * {','.join(map(str, weekdays))}"
    begin = datetime(2027, 1, 4, tzinfo=UTC)
    ends = begin + timedelta(days=14)
    schedule = Schedule.model_validate(
        DAILY | {"cron": cron, "ends_at": to_rfc3339(int(ends.timestamp()))}
    )
    expected = [
        int(moment.timestamp())
        for moment in (begin + timedelta(minutes=n) for n in range(14 * 24 * 60 + 1))
        if (moment.minute, moment.hour in hours) == (minute, True)
        and moment.isoweekday() % 7 in weekdays
    ]
    assert list(iterate_due_times(schedule, until=2**40)) == expected


def test_the_name_of_a_due_time_leads_back_to_it() -> None:
    due = from_rfc3339("2027-01-04T03:00:00Z")
    name = name_of(HASH, due)
    assert name == f"schedule-{HASH[:32]}-20270104t030000z"
    assert read_due_name(name, HASH) == due
    for other in ("schedule", name + "0", name.replace("2027", "2O27"), name.replace("03", "33")):
        assert read_due_name(other, HASH) is None
    assert read_due_name(name, "cd" * 32) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"cron": "* 3 * * *"},
        {"cron": "0,30 3 * * *"},
        {"cron": "60 3 * * *"},
        {"cron": "0 24 * * *"},
        {"cron": "0 5-3 * * *"},
        {"cron": "0 3 0 * *"},
        {"cron": "0 3 * 13 *"},
        {"cron": "0 3 * * 7"},
        {"cron": "0 3 * * mon"},
        {"cron": "0 3 1 * 1"},
        {"cron": "0 */0 * * *"},
        {"cron": "0 3/2 * * *"},
        {"cron": "0 3 * *"},
        {"cron": "0  3 * * *"},
        {"cron": "@daily"},
        {"cron": None},
        {"least_seconds": 3600},
        {"runs": 0},
        {"runs": 1001},
        {"ends_at": "2027-01-03T00:00:00Z"},
        {"ends_at": "2028-01-06T00:00:00Z"},
        {"ends_at": "2027-02-30T00:00:00Z"},
        {"when": "always"},
        {"zone": "UTC"},
    ],
)
def test_what_a_schedule_may_not_say(sft: dict[str, Any], changed: dict[str, Any]) -> None:
    assert read(sft, DAILY) is not None
    with pytest.raises(RecipeInvalid):
        read(sft, DAILY | changed)


@pytest.mark.parametrize("seconds", [0, 60, 3599, 2_678_401, None])
def test_new_data_has_a_least_interval(sft: dict[str, Any], seconds: int | None) -> None:
    assert read(sft, FRESH) is not None
    with pytest.raises(RecipeInvalid):
        read(sft, FRESH | {"least_seconds": seconds})


LAST = DAILY | {"continue": "last"}
LORA = {"method": "lora", "target_modules": ["q_proj"]}


@pytest.mark.claim("C204")
@pytest.mark.parametrize("peft", [None, LORA | {"merge": True}])
def test_runs_begin_with_the_model_before(sft: dict[str, Any], peft: Any) -> None:
    recipe = parse_recipe(sft | {"peft": peft, "schedule": LAST})
    assert recipe.schedule is not None
    assert recipe.schedule.continues == "last"


@pytest.mark.claim("C204")
@pytest.mark.parametrize(
    "changed",
    [
        {"peft": LORA},
        {"backend": {"name": "fsdp"}},
        {"phase": "cpt", "columns": {"text": "prompt"}},
        {"scripts": ["train.py"]},
        {
            "release_policy": {
                "metrics": ["loss"],
                "round_to": 4,
                "model": {"handed_on": {"deployment": "b/app-compose.json", "threshold": None}},
            }
        },
    ],
    ids=["adapter", "backend", "phase", "script", "handed on"],
)
def test_a_recipe_that_cannot_open_the_model_before_is_refused(
    sft: dict[str, Any], changed: dict[str, Any]
) -> None:
    whole = sft | {"peft": None}
    assert parse_recipe(whole | changed | {"schedule": DAILY}) is not None
    with pytest.raises(RecipeInvalid):
        parse_recipe(whole | changed | {"schedule": LAST})


def test_a_recipe_of_several_parties_has_no_schedule(sft: dict[str, Any]) -> None:
    together = {"kind": "nodes", "policy": "policy.yaml", "nodes": 2}
    with pytest.raises(RecipeInvalid, match="schedule"):
        read(sft | {"collaboration": together}, DAILY)


def test_owners_are_asked_about_each_field(
    sft: dict[str, Any], lock_of: Callable[..., LockedRecipe]
) -> None:
    without, with_one = lock_of(sft).lock, lock_of(sft | {"schedule": DAILY}).lock
    assert "schedule" not in without.to_dict()["recipe"]
    assert parse_lock(with_one.to_bytes()) == with_one
    changes = diff(without, with_one)
    assert {change.severity for change in changes} == {"critical"}
    assert {change.path.rpartition(".")[2] for change in changes} >= set(DAILY)
    more = lock_of(sft | {"schedule": DAILY | {"runs": 11}}).lock
    (change,) = diff(with_one, more)
    assert (change.path, change.before, change.after) == ("recipe.schedule.runs", 10, 11)
