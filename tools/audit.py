"""Ask pip-audit for known faults of the libraries that we pin: ``constraints.txt`` and Flower's.

Usage: ``python tools/audit.py FOLDER``

pip-audit gets an environment of its own in FOLDER. It asks the advisories of the package index, so
it needs a network. The exit code is 0 where nothing is known, 1 where something is, and 3 where the
audit did not run: one line says why, and nothing is known then.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
AUDITED = ("constraints.txt", "tools/flower/pins.txt")
NOT_RUN = 3
_PROGRAM = "pip-audit>=2.9,<3"
_SECONDS = 600

Done = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a program to its end."""


def audit(folder: Path, *, run: Done) -> int:
    """Audit every list, and print what is known.

    Args:
        folder: Environment of pip-audit; made where it is missing.
        run: Starts programs.
    """
    program = folder / "bin" / "pip-audit"
    try:
        if not program.exists():
            venv.create(folder, with_pip=False)
            python = str(folder / "bin" / "python")
            words = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
            made = run([*words, "--disable-pip-version-check", _PROGRAM])
            if made.returncode:
                return _not_run("pip could not install pip-audit")
        faults: set[str] = set()
        for name in AUDITED:
            words = [str(program), "--no-deps", "--disable-pip", "--format", "json"]
            words += ["--progress-spinner", "off", "-r", str(ROOT / name)]
            # Of the answer alone, not of the exit code: it is 1 for a fault, and for no network.
            found = _faults_in(name, run(words).stdout)
            if found is None:
                return _not_run(f"pip-audit has no answer about {name}")
            faults |= found
    except (OSError, subprocess.TimeoutExpired) as error:
        return _not_run(type(error).__name__)
    for line in sorted(faults):
        print(line)
    print(f"{len(faults)} known faults")
    return 1 if faults else 0


def _faults_in(name: str, text: str) -> set[str] | None:
    """One line for each fault; ``None`` where the answer does not cover the whole list."""
    try:
        answer: Any = json.loads(text)
        told = {dependency["name"].lower(): dependency for dependency in answer["dependencies"]}
        skipped = [answer for answer in told.values() if "skip_reason" in answer]
        lines = (ROOT / name).read_text("utf-8").splitlines()
        wanted = [line for line in lines if line and not line.startswith("#")]
        if skipped or len(told) != len(wanted):
            return None
        return {
            f"{answer['name']} {answer['version']}: {fault['id']}, mended in "
            f"{', '.join(fault['fix_versions']) or 'no release'}"
            for answer in told.values()
            for fault in answer["vulns"]
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _not_run(why: str) -> int:
    print(f"the audit did not run: {why}", file=sys.stderr)
    return NOT_RUN


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS)  # noqa: S603


def main(words: Sequence[str]) -> int:
    """Audit with the environment that is named."""
    return audit(Path(words[0]), run=_run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
