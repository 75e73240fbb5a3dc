"""The record of lanes: which digest of each passed, at which commit, and without which programs.

``play_lanes.py --record`` and ``play_beside.py --record`` alone write ``.ci/lanes.json``. A record
is believed until the night: ``make nightly`` plays everything, whatever its record says.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

RECORD = Path(".ci/lanes.json")
"""Its place in the repository; no lane covers it."""
_LOCK = Path("dist/lanes.lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A lane that passed.

    Attributes:
        digest: What it covered (``lane_digests.digest_of``).
        commit: The commit that was checked out.
        without: Programs that were missing, so that tests which need them were skipped.
    """

    digest: str
    commit: str
    without: tuple[str, ...] = ()


def read_record(root: Path) -> dict[str, Passed]:
    """What passed, by the lane's name; nothing where there is no record.

    Raises:
        SystemExit: The file is not a record.
    """
    try:
        text = (root / RECORD).read_text("utf-8")
    except FileNotFoundError:
        return {}
    try:
        return {
            str(name): Passed(
                digest=str(passed["digest"]),
                commit=str(passed["commit"]),
                without=tuple(str(program) for program in passed["without"]),
            )
            for name, passed in json.loads(text).items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as fault:
        raise SystemExit(f"{RECORD} is not a record of lanes: remove it, or make lanes") from fault


def write_record(root: Path, record: Mapping[str, Passed]) -> None:
    """Write what passed, one lane after the other by name."""
    text = json.dumps({name: asdict(record[name]) for name in sorted(record)}, indent=1)
    (root / RECORD).write_text(text + "\n", "utf-8")


def add_to_record(root: Path, news: Mapping[str, Passed]) -> None:
    """Write what passed now; what the record says of others stays, whoever writes beside."""
    (root / _LOCK).parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root / _LOCK):
        write_record(root, {**read_record(root), **news})


def is_covered(passed: Passed | None, digest: str, missing: Collection[str]) -> bool:
    """Whether playing a lane would tell nothing that its record does not.

    Args:
        passed: The lane's record.
        digest: Its digest now.
        missing: Programs that are missing on this machine.
    """
    return passed is not None and passed.digest == digest and set(passed.without) <= set(missing)
