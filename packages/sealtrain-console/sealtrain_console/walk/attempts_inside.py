"""What code in a run tries: ``-m sealtrain_console.walk.attempts_inside JOB FOLDER ARGUMENT``.

The process closes the sandbox of a run around itself, with the kernel's help, as the guest does
before it opens a record; then it takes the one step that the walk switched on. It prints one JSON
object: what passed, or the event that leaves a run in place of an exception.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sealtrain.errors import SealtrainError
from sealtrain.guest.sandbox.border import Ways, enclose
from sealtrain.guest.sandbox.events import run_telling
from sealtrain.guest.sandbox.output import OutputTally

_RECORD: Final = '{"prompt": "a record in the clear"}\n'


def _nothing(folder: Path, _argument: str) -> str:
    (folder / "scratch").write_text("in the run's own folder\n")
    return "The run writes to its own folder and goes on."


def _network(_folder: Path, argument: str) -> str:
    with socket.create_connection(("127.0.0.1", int(argument)), timeout=5) as out:
        out.sendall(_RECORD.encode())
    return "A record left over the network."


def _disk(_folder: Path, argument: str) -> str:
    Path(argument).write_text(_RECORD)
    return "A record lies on the operator's disk."


def _program(_folder: Path, argument: str) -> str:
    subprocess.run([argument, "-c", "pass"], check=True)  # noqa: S603  # what is to be refused
    return "Another program ran."


JOBS: Final[dict[str, Callable[[Path, str], str]]] = {
    "nothing": _nothing,
    "network": _network,
    "disk": _disk,
    "program": _program,
}
"""What may be tried, by name."""


def main(words: list[str]) -> None:
    """Close the sandbox, try one thing, print what came of it.

    Args:
        words: Name of a job, the run's folder, the job's argument.
    """
    job, folder, argument = words
    tally = OutputTally()
    ways = Ways(urls=["http://127.0.0.1:1"], folders=[Path(folder)])
    answer: dict[str, object]
    with enclose(tally, alone=True, accelerated=False) as room, room.confine(ways):
        room.lock(ways)
        try:
            passed = run_telling(
                lambda: JOBS[job](Path(folder), argument), "structured", lambda: tally.counts
            )
            answer = {"passed": passed}
        except SealtrainError as error:
            answer = {"error": error.to_dict()}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
