"""Play lanes of the test suite, say how each went, and record what passed.

    python tools/lanes/play_lanes.py [LANE …] [--changed] [--record] [--plan]

Without a name, every lane is played; with ``--changed``, the core and each lane whose digest is not
the recorded one. With ``--record``, ``.ci/lanes.json`` learns the digest of each lane that passed.
The exit code is pytest's; 2 where nothing could be played.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lane_digests import digest_of, is_test, tracked_files
from lane_record import RECORD, Passed, add_to_record, is_covered, read_record
from lane_results import FileResult, failed_lanes, lines_of_lanes, read_results, slowest_files
from lane_table import CORE, LANES, SuiteLane, lane_of

ROOT = Path(__file__).resolve().parents[2]
_WORKERS = 5  # for two cores: some tests wait, for a peer or for a time to pass
_REPORT = "dist/tests.xml"  # every test's seconds stay there, to shorten the run by
_SLOWEST = 10
_LONG_SECONDS = 20
_LONG = "pytest.mark.long"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Whether a lane is played.

    Attributes:
        lane: The lane.
        digest: Its digest now.
        played: Whether it is played.
        passed: What the record says of it.
    """

    lane: SuiteLane
    digest: str
    played: bool
    passed: Passed | None


def choose(
    root: Path,
    *,
    names: Sequence[str] = (),
    changed: bool = False,
    missing: Sequence[str] = (),
    lanes: Sequence[SuiteLane] = LANES,
) -> list[Choice]:
    """Say of every lane whether it is played.

    Args:
        root: The repository.
        names: Lanes to play; none for all.
        changed: Play the core, and of the others those whose record does not cover them.
        missing: Programs that are missing on this machine.
        lanes: The table.
    """
    files = tracked_files(root)
    record = read_record(root)
    choices = []
    for lane in (CORE, *lanes):
        digest = digest_of(lane, root, files, lanes)
        passed = record.get(lane.name)
        played = lane.name in names or not names
        if changed and lane is not CORE:
            played = played and not is_covered(passed, digest, missing)
        choices.append(Choice(lane=lane, digest=digest, played=played, passed=passed))
    return choices


def play(
    root: Path,
    choices: Sequence[Choice],
    *,
    options: Sequence[str],
    missing: Sequence[str] = (),
    record: bool = False,
    lanes: Sequence[SuiteLane] = LANES,
) -> int:
    """Play the chosen lanes in one run of pytest, and print how each went.

    Args:
        root: The repository.
        choices: What ``choose`` chose.
        options: Further words for pytest.
        missing: Programs that are missing on this machine, for the record.
        record: Whether the record learns what passed.
        lanes: The table.

    Returns:
        Pytest's exit code; 1 also where a file that is recorded takes long and does not say so.
    """
    played = {choice.lane.name for choice in choices if choice.played}
    tests = [
        path
        for path in tracked_files(root)
        if is_test(path) and lane_of(path.rpartition("/")[2], lanes).name in played
    ]
    # The long ones first, so that none of them is left for one worker at the end.
    tests.sort(key=lambda path: (not _is_long(root / path), path))
    report = root / _REPORT
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)  # what an earlier play left is not this one's
    words = [sys.executable, "-m", "pytest", f"--junitxml={report}"]
    words += ["-o", "junit_family=xunit1", *options, *tests]
    begun = time.monotonic()
    code = subprocess.run(words, cwd=root).returncode  # noqa: S603  # our own tests
    wall = time.monotonic() - begun
    results = read_results(report) if report.exists() else {}
    print(f"\n{len(tests)} files in {wall:.0f} s")
    unmarked = _say_results(root, results, choices, lanes)
    failed = failed_lanes(results, lanes)
    for choice in choices:
        if choice.lane.name in failed and is_covered(choice.passed, choice.digest, missing):
            print(f"the record says that {choice.lane.name} passed: it is wrong, remove that line")
    if record and code in {0, 1}:
        _record(
            root, [choice for choice in choices if choice.lane.name in played - failed], missing
        )
    return code or int(record and bool(unmarked))


def main(words: Sequence[str]) -> int:
    """Parse the command line, play what it names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    names = [CORE.name, *(lane.name for lane in LANES)]
    parser.add_argument("lane", nargs="*", help=f"one of {', '.join(names)}; none for all")
    parser.add_argument("--changed", action="store_true", help="the core, and what changed")
    parser.add_argument("--record", action="store_true", help="record the lanes that pass")
    parser.add_argument("--plan", action="store_true", help="print what would be played, as JSON")
    parser.add_argument("--workers", type=int, default=_WORKERS, help="processes that play")
    asked = parser.parse_args(words)
    if unknown := set(asked.lane) - set(names):
        parser.error(f"no such lane: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    if asked.record and (touched := list_uncommitted(ROOT)):
        parser.error(f"commit first, a record names a commit: {', '.join(touched[:5])}")
    missing = missing_here()
    choices = choose(ROOT, names=asked.lane, changed=asked.changed, missing=missing)
    if asked.plan:
        print(json.dumps({choice.lane.name: choice.played for choice in choices}, indent=1))
        return 0
    if sys.platform == "linux":  # what is imported there may be used after a fork
        options = ["-q", "--forks", str(asked.workers)]
    else:
        options = ["-q", "-n", str(asked.workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    return play(ROOT, choices, options=options, missing=missing, record=asked.record)


def _say_results(
    root: Path,
    results: Mapping[str, FileResult],
    choices: Sequence[Choice],
    lanes: Sequence[SuiteLane],
) -> list[str]:
    """Print the table; return the files that take long and do not say so."""
    for line in lines_of_lanes(results, lanes):
        print(line)
    for choice in choices:
        if not choice.played:
            since = f"passed at {choice.passed.commit[:12]}" if choice.passed else "not asked for"
            print(f"not played: {choice.lane.name}, {since}")
    print("slowest files:")
    for path, seconds in slowest_files(results, _SLOWEST):
        print(f"{seconds:>6.0f} s  {path}")
    unmarked = [
        path
        for path, seconds in slowest_files(results, len(results))
        if seconds > _LONG_SECONDS and not _is_long(root / path)
    ]
    if unmarked:
        print(f"over {_LONG_SECONDS} s, and not marked long: {', '.join(unmarked)}")
    return unmarked


def _record(root: Path, choices: Sequence[Choice], missing: Sequence[str]) -> None:
    commit, without = head_of(root), tuple(sorted(missing))
    news = {
        choice.lane.name: Passed(digest=choice.digest, commit=commit, without=without)
        for choice in choices
        if choice.lane is not CORE  # always played: nobody would read its record
    }
    add_to_record(root, news)


def head_of(root: Path) -> str:
    """The commit that is checked out."""
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"],  # noqa: S607
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return head.stdout.strip()


def list_uncommitted(root: Path) -> list[str]:
    """What differs from the commit that is checked out, but the record."""
    status = subprocess.run(  # noqa: S603  # git, with our own words
        ["git", "status", "--porcelain", "--", ".", f":!{RECORD}"],  # noqa: S607
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return status.stdout.splitlines()


def missing_here() -> tuple[str, ...]:
    """Programs that tests ask for and this machine lacks."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from programs import missing_programs  # type: ignore[import-not-found]  # of the tests

    return tuple(missing_programs())


def _is_long(path: Path) -> bool:
    return path.is_file() and _LONG in path.read_text("utf-8")


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
