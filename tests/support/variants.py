"""Variants of one test, and examples of a property: some for each change, the others at night."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

NIGHT = "SEALTRAIN_NIGHT" in os.environ
"""Whether the night plays."""
_FEWEST = 10


def examples(most: int) -> int:
    """How many examples hypothesis draws: for each change a third, and all at night.

    Args:
        most: All.
    """
    return most if NIGHT else min(most, max(_FEWEST, most // 3))


def variants(
    values: Iterable[Any],
    *,
    each_time: Collection[Any],
    marks: Mapping[Any, pytest.MarkDecorator] = MappingProxyType({}),
) -> list[Any]:
    """Parameters of a test, those outside ``each_time`` marked ``nightly``.

    Args:
        values: Every value, in its order; a tuple is one value for several names.
        each_time: Those that are played for each change.
        marks: A further mark of some.

    Raises:
        ValueError: ``each_time`` has a value that is none of the test's.
    """
    values = list(values)
    if unknown := [value for value in each_time if value not in values]:
        raise ValueError(f"no such variant: {unknown}")
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[
                *([] if value in each_time else [pytest.mark.nightly]),
                *([marks[value]] if value in marks else []),
            ],
        )
        for value in values
    ]
