"""Due times of a schedule, and the one name under which each is submitted (spec/schedule.md §1).

Due times of cron follow from the lock alone, those of new data from the lock and a ledger: no state
is kept, so that a scheduler that starts again, or a second one beside it, finds the same due times
and the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from sealtrain.base.clock import from_rfc3339
from sealtrain.errors import ExtraMissing
from sealtrain.recipe.schedule import Schedule

SKIPPED: Final = "/skipped/"
"""Beginning of the place that the ticket of a skipped due time names in place of data."""
_HASH_DIGITS: Final = 32
_FORM: Final = "%Y%m%dt%H%M%Sz"
_STAMP: Final = re.compile(r"[0-9]{8}t[0-9]{6}z")


def iterate_due_times(schedule: Schedule, *, until: int) -> Iterator[int]:
    """Every due time of ``when: cron`` up to ``until``, oldest first; seconds since the epoch.

    Raises:
        ExtraMissing: cron is asked for and the library that reads it is missing.
    """
    last = min(until, from_rfc3339(schedule.ends_at))
    first = from_rfc3339(schedule.starts_at)
    for due in _cron(schedule.cron or "", first):
        if due > last:
            return
        if due >= first:
            yield due


def find_due_of_data(
    schedule: Schedule, *, registered: int | None, before: int | None
) -> int | None:
    """The due time that data makes with ``when: new-data``; ``None`` where there is none.

    Args:
        schedule: Of the lock.
        registered: When the first data was registered that no run was asked for; ``None`` where
            there is no such data.
        before: The newest due time that was decided, if any.
    """
    if registered is None:
        return None
    due = max(registered, earliest_of_data(schedule, before=before))
    return due if due <= from_rfc3339(schedule.ends_at) else None


def earliest_of_data(schedule: Schedule, *, before: int | None) -> int:
    """The earliest due time that data may make after the one before. Arguments as above."""
    first = from_rfc3339(schedule.starts_at)
    return first if before is None else max(first, before + (schedule.least_seconds or 0))


def _cron(expression: str, first: int) -> Iterator[int]:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise ExtraMissing(
            "a schedule of cron needs the library cronsim",
            check="cronsim",
            hint="pip install 'sealtrain[schedule]'",
        ) from error
    try:
        moments = CronSim(expression, datetime.fromtimestamp(first - 60, UTC))
    except CronSimError:
        return  # the form is right, so there is no such day: 31 February
    for found in moments:
        yield int(found.timestamp())


def prefix_of(recipe_hash: str) -> str:
    """What the names of a recipe's scheduled submissions begin with."""
    return f"schedule-{recipe_hash[:_HASH_DIGITS]}-"


def name_of(recipe_hash: str, due: int) -> str:
    """Name of the submission for a due time: the same for every scheduler."""
    return prefix_of(recipe_hash) + datetime.fromtimestamp(due, UTC).strftime(_FORM)


def read_due_name(name: str, recipe_hash: str) -> int | None:
    """The due time that a name means; ``None`` for a name that no schedule of the recipe gives."""
    prefix = prefix_of(recipe_hash)
    stamp = name.removeprefix(prefix)
    if not name.startswith(prefix) or not _STAMP.fullmatch(stamp):
        return None
    try:
        due = int(datetime.strptime(stamp, _FORM).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None
    return due if name_of(recipe_hash, due) == name else None
