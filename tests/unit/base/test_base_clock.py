"""Times in documents: one spelling."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.base.clock import from_rfc3339, system_clock, to_rfc3339
from sealtrain.errors import DataInvalid

YEAR_1000 = -30_610_224_000
YEAR_9999_END = 253_402_300_799


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(YEAR_1000, YEAR_9999_END))
def test_seconds_survive_the_round_trip(seconds: int) -> None:
    assert from_rfc3339(to_rfc3339(seconds)) == seconds


def test_a_known_time_has_its_known_text() -> None:
    assert to_rfc3339(1_760_000_000) == "2025-10-09T08:53:20Z"
    assert to_rfc3339(0) == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "text",
    [
        "2025-10-09T08:53:20+00:00",
        "2025-10-09T08:53:20.0Z",
        "2025-10-09t08:53:20z",
        "2025-10-09 08:53:20Z",
        "2025-10-9T8:53:20Z",
        "2025-02-30T00:00:00Z",
        "2025-10-09T24:00:00Z",
        "2025-10-09T08:53:60Z",
        " 2025-10-09T08:53:20Z",
        "٢٠٢٥-10-09T08:53:20Z",
        "",
    ],
)
def test_any_other_spelling_is_refused(text: str) -> None:
    with pytest.raises(DataInvalid):
        from_rfc3339(text)


def test_the_system_clock_gives_whole_seconds_of_this_era() -> None:
    now = system_clock()
    assert isinstance(now, int)
    assert now > 1_700_000_000
