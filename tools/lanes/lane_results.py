"""Results by test file, as pytest writes them (``--junitxml``), and the table of lanes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lane_table import CORE, LANES, SuiteLane, lane_of


@dataclass(slots=True)
class FileResult:
    """The tests of one file.

    Attributes:
        tests: How many were played or skipped.
        failed: How many failed or broke.
        skipped: How many were skipped.
        seconds: How long they took, one after the other, with what they set up.
        reasons: Why tests were skipped.
    """

    tests: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reasons: set[str] = field(default_factory=set)


def read_results(report: Path) -> dict[str, FileResult]:
    """Results by the file's path in the repository.

    Args:
        report: What pytest wrote with ``-o junit_family=xunit1``.
    """
    results: dict[str, FileResult] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314  # our own pytest wrote it a moment ago
        result = results.setdefault(case.get("file", ""), FileResult())
        result.tests += 1
        result.seconds += float(case.get("time", "0"))
        result.failed += any(case.find(kind) is not None for kind in ("failure", "error"))
        if (skipped := case.find("skipped")) is not None:
            result.skipped += 1
            result.reasons.add(skipped.get("message", ""))
    return results


def failed_lanes(results: Mapping[str, FileResult], lanes: Sequence[SuiteLane] = LANES) -> set[str]:
    """Names of the lanes in which a test failed."""
    return {_lane_name(path, lanes) for path, result in results.items() if result.failed}


def lines_of_lanes(
    results: Mapping[str, FileResult], lanes: Sequence[SuiteLane] = LANES
) -> Iterable[str]:
    """A table: each lane with its files, tests and seconds, and all of them."""
    rows: dict[str, FileResult] = {}
    files: dict[str, int] = {}
    for path, result in results.items():
        for name in (_lane_name(path, lanes), "all"):
            row = rows.setdefault(name, FileResult())
            files[name] = files.get(name, 0) + 1
            row.tests += result.tests
            row.failed += result.failed
            row.skipped += result.skipped
            row.seconds += result.seconds
    yield f"{'lane':<12}{'files':>7}{'tests':>8}{'skipped':>9}{'failed':>8}{'seconds':>9}"
    for name in (CORE.name, *(lane.name for lane in lanes), "all"):
        if name in rows:
            row = rows[name]
            yield (
                f"{name:<12}{files[name]:>7}{row.tests:>8}{row.skipped:>9}{row.failed:>8}"
                f"{row.seconds:>9.0f}"
            )


def slowest_files(results: Mapping[str, FileResult], count: int) -> list[tuple[str, float]]:
    """The files that took longest, with their seconds."""
    ordered = sorted(results.items(), key=lambda item: item[1].seconds, reverse=True)
    return [(path, result.seconds) for path, result in ordered[:count]]


def _lane_name(path: str, lanes: Sequence[SuiteLane]) -> str:
    return lane_of(path.rpartition("/")[2], lanes).name
