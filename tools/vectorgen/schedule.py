"""Vectors of schedules and of chains of runs, made without sealtrain.

Writes ``vectors/schedule/due-times.json`` (schedules with all their due times and names, and
schedules that are refused) and ``vectors/schedule/continues.json`` (the field of a manifest). Cron
is evaluated here minute by minute, by the definition of its fields, and by no library.
Run: ``python tools/vectorgen/schedule.py [FOLDER]``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Json = Any
OUT = Path(__file__).resolve().parents[2] / "vectors" / "schedule"
RECIPE_HASH = hashlib.sha256(b"a lock").hexdigest()
LIMITS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


def schedule(**fields: Json) -> Json:
    """A daily schedule, with other fields where they are named."""
    return {
        "when": "cron",
        "cron": "0 3 * * *",
        "least_seconds": None,
        "continue": "base",
        "runs": 10,
        "starts_at": "2027-01-04T00:00:00Z",
        "ends_at": "2027-01-13T23:59:59Z",
    } | fields


def fresh(seconds: int, **fields: Json) -> Json:
    """A schedule that waits for data."""
    return schedule(when="new-data", cron=None, least_seconds=seconds) | fields


def moment(text: str) -> datetime:
    """RFC 3339 as a time."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def list_allowed(field: str, lowest: int, highest: int) -> set[int]:
    """Values of one field of cron."""
    found: set[int] = set()
    for item in field.split(","):
        part, _, step = item.partition("/")
        first, _, last = part.partition("-")
        if part == "*":
            first, last = str(lowest), str(highest)
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def dues(one: Json) -> list[datetime]:
    """Every due time of cron."""
    begin, end = moment(one["starts_at"]), moment(one["ends_at"])
    fields = [
        list_allowed(field, *limits)
        for field, limits in zip(one["cron"].split(" "), LIMITS, strict=True)
    ]
    at = begin.replace(second=0)
    at += timedelta(minutes=at < begin)
    found = []
    while at <= end:
        values = (at.minute, at.hour, at.day, at.month, at.isoweekday() % 7)
        if all(value in field for value, field in zip(values, fields, strict=True)):
            found.append(at)
        at += timedelta(minutes=1)
    return found


def read() -> Json:
    """Schedules that a reader accepts, with what follows from them."""
    schedules = {
        "ten days": schedule(),
        "working hours": schedule(cron="30 8-18/2 * * 1-5", runs=1000),
        "the first and the fifteenth": schedule(
            cron="59 23 1,15 * *", ends_at="2027-12-31T23:59:59Z"
        ),
        "the end of months": schedule(cron="0 0 31 * *", ends_at="2028-01-04T00:00:00Z"),
        "a leap day": schedule(
            cron="0 0 29 2 *", starts_at="2028-01-01T00:00:00Z", ends_at="2028-12-31T00:00:00Z"
        ),
        "never": schedule(cron="0 0 31 2 *"),
        "one moment": schedule(starts_at="2027-01-04T03:00:00Z", ends_at="2027-01-04T03:00:00Z"),
        "a second after it": schedule(
            starts_at="2027-01-04T03:00:01Z", ends_at="2027-01-05T03:00:00Z"
        ),
    }
    return [
        {
            "name": name,
            "outcome": "ok",
            "schedule": schedule,
            "due": [due.strftime("%Y-%m-%dT%H:%M:%SZ") for due in dues(schedule)],
            "names": [
                f"schedule-{RECIPE_HASH[:32]}-{due.strftime('%Y%m%dt%H%M%Sz')}"
                for due in dues(schedule)[:3]
            ],
        }
        for name, schedule in schedules.items()
    ]


def data() -> Json:
    """When data is due, by when it was registered and the due time before it."""
    start, end = "2027-01-04T00:00:00Z", "2027-01-13T23:59:59Z"
    cases = {
        "none is registered": (None, None, None),
        "none is registered since": (None, start, None),
        "before the start": ("2026-12-24T18:00:00Z", None, start),
        "at the start": (start, None, start),
        "later": ("2027-01-06T11:12:13Z", None, "2027-01-06T11:12:13Z"),
        "long after the due time before": (
            "2027-01-06T11:12:13Z",
            start,
            "2027-01-06T11:12:13Z",
        ),
        "soon after it": ("2027-01-04T00:00:01Z", start, "2027-01-04T01:00:01Z"),
        "an interval after it": ("2027-01-04T01:00:01Z", start, "2027-01-04T01:00:01Z"),
        "in the last second": (end, None, end),
        "after the end": ("2027-01-14T00:00:00Z", None, None),
        "too soon before the end": ("2027-01-13T23:30:00Z", "2027-01-13T23:00:00Z", None),
    }
    return [
        {
            "name": name,
            "schedule": fresh(3601),
            "registered": registered,
            "before": before,
            "due": due,
        }
        for name, (registered, before, due) in cases.items()
    ]


def list_refused() -> Json:
    """Schedules that a reader refuses."""
    crons = {
        "every minute": "* 3 * * *",
        "twice an hour": "0,30 * * * *",
        "a step of minutes": "*/30 * * * *",
        "minute 60": "60 3 * * *",
        "hour 24": "0 24 * * *",
        "a range backwards": "0 5-3 * * *",
        "day 0": "0 3 0 * *",
        "month 13": "0 3 * 13 *",
        "weekday 7": "0 3 * * 7",
        "a name": "0 3 * * mon",
        "day and weekday": "0 3 1 * 1",
        "a step of 0": "0 */0 * * *",
        "a step after a number": "0 3/2 * * *",
        "four fields": "0 3 * *",
        "six fields": "0 0 3 * * *",
        "two spaces": "0  3 * * *",
        "a macro": "@daily",
        "the last day": "0 3 L * *",
        "an empty item": "0 3, * * *",
    }
    changed = {
        **{name: schedule(cron=cron) for name, cron in crons.items()},
        "cron without cron": schedule(cron=None),
        "cron with an interval": schedule(least_seconds=3600),
        "new data without an interval": schedule(when="new-data", cron=None),
        "new data with cron": fresh(3600, cron="0 3 * * *"),
        "an interval below an hour": fresh(3599),
        "an interval above a month": fresh(2_678_401),
        "the best model": schedule(**{"continue": "best"}),
        "no runs": schedule(runs=0),
        "too many runs": schedule(runs=1001),
        "runs as text": schedule(runs="10"),
        "an end before the start": schedule(ends_at="2027-01-03T23:59:59Z"),
        "more than 366 days": schedule(ends_at="2028-01-05T00:00:01Z"),
        "no such day": schedule(ends_at="2027-02-30T00:00:00Z"),
        "another zone": schedule(ends_at="2027-01-13T23:59:59+01:00"),
        "an unknown field": schedule(zone="Europe/Berlin"),
    }
    return [
        {"name": name, "schedule": value, "outcome": "data-invalid"}
        for name, value in changed.items()
    ]


def continues() -> Json:
    """The field of a manifest."""
    digest = hashlib.sha256(b"a manifest").hexdigest()
    fields = {
        "the second run": {"manifest_digest": digest, "number": 2},
        "the last run": {"manifest_digest": digest, "number": 10_000},
        "the first run": {"manifest_digest": digest, "number": 1},
        "a run too many": {"manifest_digest": digest, "number": 10_001},
        "a number as text": {"manifest_digest": digest, "number": "2"},
        "a digest in capitals": {"manifest_digest": digest.upper(), "number": 2},
        "a digest too short": {"manifest_digest": digest[:-1], "number": 2},
        "no number": {"manifest_digest": digest},
        "no digest": {"number": 2},
        "an unknown field": {"manifest_digest": digest, "number": 2, "run_id": "00" * 16},
    }
    read = ("the second run", "the last run")
    return {
        "cases": [
            {"name": name, "continues": value, "outcome": "ok" if name in read else "data-invalid"}
            for name, value in fields.items()
        ]
    }


def main() -> None:
    """Write the vectors."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "due-times.json": {
            "recipe_hash": RECIPE_HASH,
            "cases": {"schedules": [*read(), *list_refused()], "data": data()},
        },
        "continues.json": continues(),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
