"""Play the tests that meet the real Flower, in an environment of its own.

Usage: ``python tools/flower/play.py FOLDER [WORDS …]``

Flower pins fastapi, starlette, uvicorn, typer, packaging, protobuf and rich to older versions than
ours, so it is not installed with what ``constraints.txt`` names.

1. FOLDER becomes an environment with what ``pins.txt`` names; it is kept until that file changes.
2. Behind these, the libraries of the environment that runs this program are lent to it: torch is
   installed once.
3. The test files with the mark ``flower`` are played there, with WORDS for pytest, such as
   ``-m flower`` for those of the night too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINS = Path(__file__).with_name("pins.txt")
MARK = "mark.flower"
_EACH_TIME = ["-m", "flower and not nightly"]


def prepare(folder: Path) -> str:
    """Make the environment, where it is not there already; its interpreter."""
    python = str(folder / "bin" / "python")
    installed = folder / "pins.txt"
    if installed.is_file() and installed.read_bytes() == PINS.read_bytes():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False, symlinks=True)  # this environment's pip is there
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile"]
    # What else Flower needs is lent: pip sees only this folder, and would bring all of it again.
    install += ["--disable-pip-version-check", "--no-deps", "-r", str(PINS)]
    subprocess.run(install, check=True)  # noqa: S603  # pip, with our own words
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    lent = [path for path in sys.path if path.endswith("site-packages")]
    # Read last of all, with the .pth files there, of which one is our editable installation.
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in lent)
    (own / "zz-lent.pth").write_text(lines, "utf-8")
    # What is lent has every version that Flower asks for, or this ends with what is missing.
    check = [sys.executable, "-m", "pip", "--python", python, "check"]
    told = subprocess.run(check, capture_output=True, text=True).stdout  # noqa: S603  # the same
    if wrong := [line for line in told.splitlines() if line.startswith("flwr ")]:
        raise SystemExit("\n".join(wrong))
    installed.write_bytes(PINS.read_bytes())
    return python


def test_files() -> list[str]:
    """The test files in which a test meets Flower."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if MARK in path.read_text("utf-8")]


def main(folder: Path, words: Sequence[str]) -> int:
    """Prepare the environment and play."""
    python = prepare(folder)
    play = [python, "-m", "pytest", "-q", *(words or _EACH_TIME), *test_files()]
    return subprocess.run(play, cwd=ROOT).returncode  # noqa: S603  # our own tests


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
