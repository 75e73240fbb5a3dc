"""Programs that some tests need and a machine may lack: such a test asks here, or is skipped.

A test carries ``@pytest.mark.needs("node")``; a fixture or a helper calls ``need``, which returns
where the program's commands are. ``SEALTRAIN_WITHOUT=postgresql,node`` has this machine play one
without these. At the end of a run of tests one line says what was skipped for want of programs.

As a plugin of pytest, this module reads the marker and writes that line.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

VARIABLE: Final = "SEALTRAIN_WITHOUT"


@dataclass(frozen=True, kw_only=True)
class Program:
    """How a program is found on this machine.

    Attributes:
        packages: Debian's packages that bring it.
        commands: Its commands; without one of them it is missing.
        folders: Pattern of further folders in which all of its commands may be.
        files: Libraries that it brings; without one of them it is missing.
        oldest: Oldest major version that will do, as its first command tells it.
        version: The word by which that command tells its version.
    """

    packages: tuple[str, ...]
    commands: tuple[str, ...]
    folders: str | None = None
    files: tuple[Path, ...] = ()
    oldest: int | None = None
    version: str = "--version"


PROGRAMS: Final[Mapping[str, Program]] = {
    "bubblewrap": Program(packages=("bubblewrap",), commands=("bwrap",)),
    "chromium": Program(packages=("chromium",), commands=("chromium",)),
    "compiler": Program(packages=("gcc", "libc6-dev"), commands=("gcc", "cc")),
    "git": Program(packages=("git",), commands=("git",)),
    "iproute2": Program(packages=("iproute2",), commands=("ip", "tc")),
    "ldconfig": Program(packages=("libc-bin",), commands=("ldconfig",), folders="/sbin"),
    "mount": Program(packages=("mount",), commands=("mount", "umount")),
    "nginx": Program(packages=("nginx",), commands=("nginx",), folders="/usr/sbin", version="-v"),
    "node": Program(packages=("nodejs",), commands=("node",), oldest=20),
    "npm": Program(packages=("npm",), commands=("npm",)),
    "openssl": Program(packages=("openssl",), commands=("openssl",), oldest=3, version="version"),
    "postgresql": Program(
        packages=("postgresql",),
        commands=("initdb", "postgres", "pg_dump", "pg_restore"),
        folders="/usr/lib/postgresql/*/bin",
        oldest=14,
    ),
    "softhsm": Program(
        packages=("softhsm2",),
        commands=("softhsm2-util",),
        files=(Path("/usr/lib/softhsm/libsofthsm2.so"),),
    ),
    "spin": Program(packages=("spin",), commands=("spin",), version="-V"),
    "systemd": Program(packages=("systemd",), commands=("systemd-analyze",), oldest=252),
    "strace": Program(packages=("strace",), commands=("strace",)),
    "util-linux": Program(packages=("util-linux",), commands=("nsenter", "unshare")),
}

_REASON = re.compile(r"needs ([a-z0-9-]+(?:, [a-z0-9-]+)*) \(apt-get install [a-z0-9. -]+\)")


def need(*names: str) -> dict[str, Path]:
    """Where the commands and files of some programs are, by their names; skips without one."""
    paths: dict[str, Path] = {}
    missing = []
    for name in names:
        here = found(name)
        if here is None:
            missing.append(name)
        else:
            paths |= here
    if missing:
        pytest.skip(f"needs {', '.join(sorted(missing))} ({_advice(missing)})")
    return paths


def found(name: str) -> dict[str, Path] | None:
    """Where a program's commands and files are, by their names; ``None`` where it is missing."""
    program = PROGRAMS[name]
    return None if name in _hidden() else _look_for(program)


def missing_programs() -> tuple[str, ...]:
    """Names of the programs that this machine lacks, or plays to lack, in the table's order."""
    return tuple(name for name in PROGRAMS if found(name) is None)


def need_namespaces() -> None:
    """Skip the test where this process may make no namespaces of users and networks."""
    words = [need("util-linux")["unshare"], "--map-root-user", "--net", "true"]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("this system lets its users make no namespaces")


def _hidden() -> frozenset[str]:
    names = frozenset(filter(None, re.split(r"[\s,]+", os.environ.get(VARIABLE, ""))))
    if unknown := sorted(names - PROGRAMS.keys()):
        raise pytest.UsageError(
            f"{VARIABLE} names {', '.join(unknown)}; known are {', '.join(PROGRAMS)}"
        )
    return names


@cache
def _look_for(program: Program) -> dict[str, Path] | None:
    places: list[str | None] = [None]  # PATH
    if program.folders is not None:
        folders = Path("/").glob(program.folders.removeprefix("/"))
        places = [*map(str, sorted(folders, key=_number_in, reverse=True)), None]
    for place in places:
        paths = {name: shutil.which(name, path=place) for name in program.commands}
        here = {name: Path(path) for name, path in paths.items() if path is not None}
        whole = len(here) == len(paths) and all(file.is_file() for file in program.files)
        if whole and _new_enough(program, here):
            return here | {file.name: file for file in program.files}
    return None


def _number_in(folder: Path) -> int:
    """The version in a folder's name: 15 comes after 9."""
    numbers = re.findall(r"\d+", str(folder))
    return int(numbers[0]) if numbers else 0


def _new_enough(program: Program, paths: Mapping[str, Path]) -> bool:
    if program.oldest is None:
        return True
    asked = [paths[program.commands[0]], program.version]
    told = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    version = re.search(r"\d+", told.stdout)
    return version is not None and int(version[0]) >= program.oldest


def _advice(names: list[str] | tuple[str, ...]) -> str:
    packages = [package for name in sorted(names) for package in PROGRAMS[name].packages]
    return f"apt-get install {' '.join(packages)}"


# --- The plugin ----------------------------------------------------------------------------------


def pytest_configure() -> None:
    """Refuse a name that is not in the table, before any test runs."""
    _hidden()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marker names a program that is missing."""
    names = [name for marker in item.iter_markers("needs") for name in marker.args]
    if names:
        need(*dict.fromkeys(names))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Any:
    """Give these skips one place, wherever a test asked: pytest lists those of one place once."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if _REASON.search(reason):
            report.longrepr = (__file__, 1, reason)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Any:
    """Say in one line, after everything else, what was skipped for want of which programs."""
    result = yield
    names: set[str] = set()
    tests = 0
    for report in terminalreporter.stats.get("skipped", []):
        if matched := _REASON.search(report.longrepr[2]):
            names |= set(matched[1].split(", "))
            tests += 1
    if tests:
        noun = "test" if tests == 1 else "tests"
        terminalreporter.write_line(
            f"skipped without {', '.join(sorted(names))}: {tests} {noun} ({_advice(sorted(names))})"
        )
    return result
