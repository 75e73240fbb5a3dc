"""The page of both verifiers says medians, worst times and what missed the aim."""

from __future__ import annotations

from typing import Any

import verifiers


def found(**slow: float) -> dict[str, Any]:
    times = {name: [100.0, 120.0, 140.0] for name in WAYS}
    return {
        "command": "python benchmarks/verifiers.py --rounds 3 --write",
        "seconds": 9.0,
        "machine": {"processor": "P", "processors": 2, "python": "3.11.7", "load": 0.5},
        "manifest": {"bytes": 60_000, "files": 3, "output_bytes": 36_000},
        "rounds": 3,
        "network": "offline",
        "milliseconds": times | {name: [100.0, value] for name, value in slow.items()},
    }


WAYS = (
    "chromium", "report", "node", "node first", "node again", "node outputs",
    "python", "python first", "python again", "python outputs",
)  # fmt: skip


def test_each_way_has_a_row_with_median_and_worst() -> None:
    text = verifiers.page(found())
    assert text.count("| 3 | 120 | 140 |") == len(WAYS)
    assert text.rstrip().endswith("Missed: nothing.")


def test_one_slow_time_in_a_browser_or_node_misses_the_aim_and_is_named() -> None:
    for name in ("chromium", "report", "node"):
        text = verifiers.page(found(**{name: 500.0}))
        assert "Missed: nothing" not in text
    assert "Missed: nothing" in verifiers.page(found(python=900.0))
