"""How a call of the table is played, and what it left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bad_input_cases import ELSEWHERE, Call
from bad_inputs import FOREIGN
from stage import Stage

WITHIN_S = 240
_POLL_S = 0.02
_CODE = re.compile(r"^[a-z ]+ \[([a-z0-9-]+)\]: ", re.MULTILINE)

SERVERS = ("broker", "other", "home", "tmp", "root", "part-", "bad", "status.json", FOREIGN)
"""Where servers, supervisors and libraries write, and where the bad files lie."""


@dataclass(frozen=True)
class Played:
    """How a call ended.

    Attributes:
        code: Its exit code; 0 where it was ended because it served.
        error: Code of its error.
        said: All that it printed.
        ready: It served or waited, and was ended.
        hung: It neither ended nor served in time.
    """

    code: int
    error: str
    said: str
    ready: bool
    hung: bool

    @property
    def told(self) -> str:
        return f"{'serves' if self.ready else self.code} | {self.error}"

    @property
    def refused(self) -> bool:
        return self.code != 0 and not self.ready


def play(at: Stage, words: tuple[str, ...], call: Call, *, elsewhere: bool = False) -> Played:
    """Start a call and wait until it ends or serves."""
    asked = [*words, *(["--json"] if call.answers else [])]
    cwd = at.folder / ELSEWHERE if elsewhere else None
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = at.start(asked, out, err, cwd)
        until = time.monotonic() + WITHIN_S
        ready = hung = False
        while process.poll() is None and not ready and not hung:
            ready = bool(call.ready) and call.ready in _text(err)
            hung = time.monotonic() > until
            time.sleep(_POLL_S)
        if ready or hung:
            process.send_signal(signal.SIGKILL if hung else signal.SIGTERM)
        ended = process.wait(WITHIN_S)
        printed, talk = _text(out), _text(err)
    ready = ready or (bool(call.ready) and call.ready in talk and ended == 0)
    if ended == 0 and call.undo:
        at.run(*call.undo)
    return Played(
        code=0 if ready else ended,
        error="-" if ready else _error(printed, talk),
        said=printed + talk,
        ready=ready,
        hung=hung,
    )


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), 1 << 22, 0).decode("utf-8", "replace")


def _error(printed: str, talk: str) -> str:
    try:
        told = json.loads(printed).get("error") or {}
    except (ValueError, AttributeError):
        told = {}
    found = _CODE.findall(talk)
    return str(told.get("code") or (found[-1] if found else "-"))


def lost_by(folder: Path, before: set[tuple[str, int]]) -> list[str]:
    """What lay there and is gone."""
    return sorted({name for name, _ in before} - {name for name, _ in listing(folder)})


def listing(folder: Path) -> set[tuple[str, int]]:
    """Every file below a folder with its size, but those of servers."""
    found = set()
    for place, folders, names in os.walk(folder):
        if Path(place) == folder:
            folders[:] = [name for name in folders if not name.startswith(SERVERS)]
            names = [name for name in names if not name.startswith(SERVERS)]
        for name in (*folders, *names):
            if name.endswith(".lock"):
                continue  # a lock stays: two could hold one that is removed
            path = Path(place, name)
            found.add((str(path.relative_to(folder)), path.lstat().st_size))
    return found


def left_by(folder: Path, before: set[tuple[str, int]]) -> list[str]:
    """What lies there now and did not, or has another size."""
    return sorted(path for path, _ in listing(folder) ^ before)[:5]


def remove(folder: Path, before: set[tuple[str, int]]) -> None:
    """Remove what was made since."""
    for made in {path for path, _ in listing(folder)} - {path for path, _ in before}:
        path = folder / made
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
