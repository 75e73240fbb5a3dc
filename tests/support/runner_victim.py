"""Says a secret in every way: python runner_victim.py FOLDER JOB LOGS SECRET.

Hushed, confined and locked down as ``guest.run`` does it. Prints one JSON object at the end: what
was counted, what the job returned, or the typed event in place of its error.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import resource
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sealtrain.cli.output import report_bug
from sealtrain.errors import SealtrainError
from sealtrain.guest.sandbox.border import Ways, enclose
from sealtrain.guest.sandbox.events import run_telling
from sealtrain.guest.sandbox.landlock import KernelBorder
from sealtrain.guest.sandbox.output import OutputTally
from sealtrain.sealing.errors import RecordInvalid

SECRET = sys.argv[4] if len(sys.argv) > 4 else ""
LIBC = ctypes.CDLL(None, use_errno=True)


def prints() -> None:
    print(SECRET)
    print(SECRET, file=sys.stderr)
    sys.stdout.buffer.write(SECRET.encode())
    sys.__stdout__.write(SECRET + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def prints_in_c() -> None:
    LIBC.printf(b"%s\n", SECRET.encode())  # stays in C's buffer until the process ends
    LIBC.perror(SECRET.encode())


def writes_to_descriptors() -> None:
    for descriptor in (1, 2):
        os.write(descriptor, SECRET.encode())
        LIBC.dprintf(descriptor, b"%s", SECRET.encode())


def logs() -> None:
    logging.getLogger("transformers.trainer").error(SECRET)
    logging.warning("%s", SECRET)
    logging.getLogger("x").critical(SECRET)


def logs_with_own_handler() -> None:
    logger = logging.getLogger("library")
    logger.addHandler(logging.StreamHandler())
    logger.addHandler(logging.StreamHandler(sys.__stderr__))
    logger.error(SECRET)


def warns() -> None:
    warnings.warn(SECRET, UserWarning, stacklevel=1)


def fails_in_a_thread() -> None:
    thread = threading.Thread(target=raises)
    thread.start()
    thread.join()


def fails_in_a_destructor() -> None:
    class Falling:
        def __del__(self) -> None:
            raise ValueError(SECRET)

    Falling()


def fails_in_a_child() -> None:
    import multiprocessing

    child = multiprocessing.get_context("fork").Process(target=raises)
    child.start()
    child.join()


def raises() -> None:
    raise ValueError(SECRET)


def raises_in_a_collator() -> None:
    from torch.utils.data import DataLoader

    def collate(rows: list[str]) -> Any:
        raise TypeError(f"cannot batch {rows}")

    next(iter(DataLoader([SECRET], collate_fn=collate)))  # type: ignore[arg-type]


def raises_a_record_error() -> None:
    raise RecordInvalid(SECRET, got=SECRET, expected=SECRET, hint=SECRET, check=SECRET)


def exits_with_text() -> None:
    sys.exit(SECRET)


def chains() -> None:
    try:
        raises()
    except ValueError as error:
        error.add_note(SECRET)
        raise RuntimeError(SECRET) from error


def looks_a_name_up() -> None:
    socket.getaddrinfo(f"{SECRET}.invalid", 443)


def writes_a_file() -> None:
    Path(f"{SECRET}.txt").write_text(SECRET)


def crashes() -> None:
    kept = SECRET * 10
    ctypes.string_at(0)
    print(kept)


def aborts_in_c() -> None:
    LIBC.fputs(SECRET.encode(), ctypes.c_void_p.in_dll(LIBC, "stderr"))
    LIBC.abort()


def looks_at_itself() -> dict[str, object]:
    return {"core": resource.getrlimit(resource.RLIMIT_CORE), "dumpable": LIBC.prctl(3, 0, 0, 0, 0)}


def goes_around_python() -> dict[str, object]:
    """Straight to the C library, where no audit hook hears it."""
    flags = os.O_CREAT | os.O_WRONLY
    address = bytes([socket.AF_INET, 0]) + (9).to_bytes(2, "big") + bytes([127, 0, 0, 1]) + bytes(8)
    caller = LIBC.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    server = LIBC.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    connected = LIBC.connect(caller, address, 16)
    refused = ctypes.get_errno() == 13
    child = LIBC.fork()
    if child == 0:
        LIBC.execv(b"/bin/true", (ctypes.c_char_p * 2)(b"true", None))
        os._exit(99)
    _, status = os.waitpid(child, 0)
    return {
        "inside": LIBC.open(str(FOLDER / "native").encode(), flags, 0o600),
        "outside": LIBC.open(b"native", flags, 0o600),
        "executed": -1 if os.waitstatus_to_exitcode(status) == 99 else 0,
        "connected": -1 if connected == -1 and refused else 0,
        "listening": LIBC.bind(server, address[:2] + bytes(2) + address[4:], 16),
    }


FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
HELD = KernelBorder(landlock=0, seccomp=False, unbound=0, memory="folder")


def main() -> int:
    global HELD
    job: Callable[[], Any] = globals()[sys.argv[2]]
    tally = OutputTally()
    ways = Ways(urls=["http://127.0.0.1:1"], folders=[FOLDER])
    try:
        with enclose(tally, alone=True) as room, room.confine(ways):
            HELD = room.lock(ways)
            answer = run_telling(job, sys.argv[3], lambda: tally.counts)  # type: ignore[arg-type]
    except SealtrainError as error:
        print(json.dumps(error.to_dict()))
        if os.environ.get("SEALTRAIN_DEBUG_TRACEBACK"):
            report_bug(error)
        return error.exit_code
    print(json.dumps({"counts": tally.counts, **HELD.to_dict(), **(answer or {})}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
