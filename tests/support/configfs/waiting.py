"""``python waiting.py WORDS…`` is ``sealtrain WORDS…`` that waits for the files of ``served``.

A kernel has whoever opens such a file wait. What runs in a process for one run is given to it by
``cli.alone``; this file is put before that.
"""

import os
import sys
import time
from pathlib import Path

FOLDER = os.environ["SERVED_CONFIGFS"]
AWAITED = ("provider", "generation", "inblob", "outblob")
SECONDS = 20


def wait(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open" or not isinstance(arguments[0], (str, os.PathLike)):
        return
    path = os.fspath(arguments[0])
    if path.startswith(FOLDER) and path.endswith(AWAITED):
        until = time.monotonic() + SECONDS
        while not Path(path).exists() and time.monotonic() < until:
            time.sleep(0.002)


if sys.flags.isolated:  # in the process for one run
    sys.addaudithook(wait)
elif __name__ == "__main__":
    from sealtrain.cli.run_process import BEGIN, alone

    alone(Path(__file__).read_text() + BEGIN)
