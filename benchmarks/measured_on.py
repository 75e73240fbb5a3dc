"""What the figures of a benchmark hold for."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

LACKING = 77
"""Exit status of a benchmark on a machine that lacks what the benchmark needs."""


def machine(*packages: str, **further: float) -> dict[str, str | int | float | None]:
    """What the numbers were measured on.

    Args:
        packages: Whose versions matter.
        further: What else was found out about it.
    """
    cpu = Path("/proc/cpuinfo")
    models = [
        line.split(":", 1)[1].strip()
        for line in (cpu.read_text() if cpu.exists() else "").splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": models[0] if models else platform.processor(),
        "processors": os.cpu_count(),
        **further,
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
    }


def _version(name: str) -> str | None:
    """Of a package; ``None`` where it is not installed here."""
    try:
        return version(name).split("+")[0]
    except PackageNotFoundError:
        return None


def give_up(needed: str) -> NoReturn:
    """End a benchmark that this machine cannot run: one line, and status ``LACKING``.

    Args:
        needed: What is missing, and how to get it.
    """
    print(f"this needs {needed}", file=sys.stderr)
    raise SystemExit(LACKING)
