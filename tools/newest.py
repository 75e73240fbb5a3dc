"""Try the command line as a stranger gets it: our wheel, and the newest libraries that it admits.

Usage: ``python tools/newest.py FOLDER [TESTS …]``

1. FOLDER becomes an environment of its own, into which pip installs this checkout's wheels without
   ``constraints.txt``.
2. What only tests need is lent to it from the environment that runs this program.
3. The named tests are run there, ``tests/cli`` where none is named.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WATCHED = ("click", "rich", "typer")


def main(folder: Path, tests: Sequence[str]) -> int:
    """Make the environment anew and run the tests in it."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False)  # this environment's pip is new enough, and there
    python = str(folder / ("Scripts" if sys.platform == "win32" else "bin") / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile"]
    rooms = sorted(str(file.parent) for file in ROOT.glob("packages/*/pyproject.toml"))
    install += ["--disable-pip-version-check", str(ROOT), *rooms]
    subprocess.run(install, check=True)  # noqa: S603  # pip, with our own words
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    found = {
        distribution.name: distribution.version for distribution in distributions(path=[str(own)])
    }
    print(", ".join(f"{name} {found[name]}" for name in WATCHED), flush=True)
    # Read last of all: what the wheel brought comes first.
    lent = [path for path in sys.path if path.endswith("site-packages")]
    (own / "zz-tests.pth").write_text("".join(f"{path}\n" for path in lent), "utf-8")
    words = [python, "-m", "pytest", "-q", *(tests or ["tests/cli"])]
    return subprocess.run(words, cwd=ROOT).returncode  # noqa: S603  # our own tests


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
