"""Play tests in another environment, or say that the record covers them.

Usage: ``python tools/lanes/play_beside.py NAME [--changed] [--record] -- COMMAND …``

1. NAME is an environment of ``lane_table.ENVIRONMENTS``. Its digest is compared with the record.
2. With ``--changed`` COMMAND is run only if the two differ, or a program that was missing is here.
3. With ``--record`` the record learns the digest, if COMMAND passed.

The exit code is COMMAND's; 0 where it is not run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lane_digests import digest_of_environment, tracked_files
from lane_record import Passed, add_to_record, is_covered, read_record
from lane_table import ENVIRONMENTS, OtherEnvironment
from play_lanes import ROOT, head_of, list_uncommitted, missing_here


def play_beside(
    environment: OtherEnvironment,
    root: Path,
    command: Sequence[str],
    *,
    changed: bool = False,
    record: bool = False,
    missing: Sequence[str] = (),
) -> int:
    """Run the command that plays an environment, unless the record covers it; its exit code.

    Args:
        environment: What it plays.
        root: The repository.
        changed: Whether the record is believed.
        record: Whether the record learns what passed.
        missing: Programs that are missing on this machine.
    """
    digest = digest_of_environment(environment, root, tracked_files(root))
    passed = read_record(root).get(environment.name)
    covered = is_covered(passed, digest, missing)
    if changed and covered and passed is not None:
        print(f"not played: {environment.name}, passed at {passed.commit[:12]}")
        return 0
    code = subprocess.run(command, cwd=root).returncode  # noqa: S603  # from the Makefile
    if code and covered:
        print(f"the record says that {environment.name} passed: it is wrong, remove that line")
    if record and not code:
        done = Passed(digest=digest, commit=head_of(root), without=tuple(sorted(missing)))
        add_to_record(root, {environment.name: done})
    return code


def main(words: Sequence[str]) -> int:
    """Parse the command line, play what it names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("name", choices=[environment.name for environment in ENVIRONMENTS])
    parser.add_argument("--changed", action="store_true", help="only if it changed")
    parser.add_argument("--record", action="store_true", help="record that it passed")
    if "--" not in words:
        parser.error("which command? -- COMMAND …")
    place = list(words).index("--")
    asked = parser.parse_args(words[:place])
    if asked.record and (touched := list_uncommitted(ROOT)):
        parser.error(f"commit first, a record names a commit: {', '.join(touched[:5])}")
    (environment,) = (each for each in ENVIRONMENTS if each.name == asked.name)
    return play_beside(
        environment,
        ROOT,
        words[place + 1 :],
        changed=asked.changed,
        record=asked.record,
        missing=missing_here(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
