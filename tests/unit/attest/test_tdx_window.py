"""When collateral holds: half-open, and never where its parts were never current together."""

from __future__ import annotations

import pytest

from sealtrain.attest.errors import CollateralExpired
from sealtrain.attest.tdx.window import Window, check_window
from sealtrain.base.clock import to_rfc3339

DAY = 24 * 3600
BEGIN = 1_790_000_000


def test_it_holds_from_its_start_to_before_its_end() -> None:
    window = Window(start=BEGIN, end=BEGIN + DAY, issued=BEGIN)
    check_window(window, BEGIN)
    check_window(window, BEGIN + DAY - 1)
    for outside in (BEGIN - 1, BEGIN + DAY):
        with pytest.raises(CollateralExpired) as refused:
            check_window(window, outside)
        assert refused.value.got == to_rfc3339(outside)


@pytest.mark.parametrize("now", [BEGIN - DAY, BEGIN, BEGIN + DAY])
def test_parts_that_were_never_current_together_are_named_and_not_the_time(now: int) -> None:
    window = Window(start=BEGIN + DAY, end=BEGIN, issued=BEGIN)
    with pytest.raises(CollateralExpired) as refused:
        check_window(window, now)
    got = str(refused.value.got)
    assert to_rfc3339(BEGIN) in got
    assert to_rfc3339(BEGIN + DAY) in got
