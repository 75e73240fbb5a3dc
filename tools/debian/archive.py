"""Packages of a suite of Debian, fetched, checked by apt and unpacked into a folder of one's own.

Nothing is installed: the machine keeps its packages, and what is unpacked goes with its folder.
Needs Debian or a relative: apt, dpkg-deb and the keyring of Debian's archive.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_ARCHIVE = "http://deb.debian.org/debian"
_PROGRAMS = ("apt-get", "apt-cache", "dpkg-deb")


def missing_for_debian() -> str | None:
    """What this machine lacks to read Debian's archive; ``None`` where it has all of it."""
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            return f"this needs {program}: run it on Debian or a relative"
    if not _KEYRING.is_file():
        return f"{_KEYRING} is missing: apt-get install debian-archive-keyring"
    return None


def lists_of(suite: str, folder: Path, kind: str = "deb") -> None:
    """Fetch the lists of a suite's packages into an empty folder; its name is the suite's.

    Args:
        suite: As Debian calls it.
        folder: Empty.
        kind: ``deb``, or ``deb-src`` for source packages.

    Raises:
        subprocess.CalledProcessError: The archive is out of reach, or a signature is wrong.
    """
    for inner in ("lists/partial", "archives/partial", "files"):
        (folder / inner).mkdir(parents=True)
    suites = dict.fromkeys([suite, suite.removesuffix("-backports")])
    (folder / "sources.list").write_text(
        "".join(f"{kind} [signed-by={_KEYRING}] {_ARCHIVE} {suite} main\n" for suite in suites)
    )
    # A list that apt cannot fetch is a warning to it, unless it is told otherwise.
    apt(folder, "update", "-qq", "--error-on=any")


def unpack(folder: Path, packages: Iterable[str]) -> Path:
    """Download packages of the lists in a folder, and unpack them into ``files`` below it.

    Raises:
        subprocess.CalledProcessError: There is no such package, or it is not what the list says.
    """
    apt(folder, "download", "-qq", *packages)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, folder / "files"], check=True)  # noqa: S603, S607
        package.unlink()
    return folder / "files"


def apt(folder: Path, *words: str, program: str = "apt-get") -> str:
    """Run apt on lists of our own; signatures are checked as ever."""
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache::archives": folder / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Default-Release": folder.name,
        "APT::Sandbox::User": "root",  # the folder may be root's alone
    }
    flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    done = subprocess.run(  # noqa: S603  # our own words
        [program, *flags, *words], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout
