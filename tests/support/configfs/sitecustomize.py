"""Lets whoever opens a file of ``served``'s folder wait for it, as the kernel would."""

import os
import sys
import time
from pathlib import Path

FOLDER = os.environ.get("SERVED_CONFIGFS", "")
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


if FOLDER:
    sys.addaudithook(wait)
