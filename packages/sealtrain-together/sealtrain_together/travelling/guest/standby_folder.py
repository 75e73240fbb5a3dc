"""The folder of a run's sealed states, and which orchestrator leads it.

The orchestrator that leads holds a lock on a file in it, which the system takes away with the
process. Nothing rests on that but order: an accelerator serves the newest orchestrator only, and a
state opens under the joint key of the holders only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.files import atomic_write, read_bounded, try_lock
from sealtrain.base.models import Hex32, StrictModel, load_model
from sealtrain.errors import AlreadyExists, UsageError
from sealtrain.recipe.errors import LockInvalid
from sealtrain.training.errors import PeerUnreachable

_POLL_S: Final = 0.2
_MAX_BYTES: Final = 4096


class StandbyStatus(StrictModel):
    """Which run the states are of, and whether it is over."""

    version: Literal[1] = 1
    run_id: Hex32
    finished: bool = False

    @classmethod
    def read(cls, folder: Path) -> StandbyStatus | None:
        """What lies in a folder; ``None`` where no run began.

        Raises:
            LockInvalid: It is malformed.
        """
        path = folder / "run.json"
        if not path.is_file():
            return None
        return load_model(cls, parse_json(read_bounded(path, _MAX_BYTES)), LockInvalid, "run.json")

    def write(self, folder: Path) -> None:
        """Keep it in a folder."""
        atomic_write(folder / "run.json", canonical_json(self.to_dict()), overwrite=True)


def await_run(folder: Path, *, wait: float, waiting: Callable[[], None]) -> None:
    """Wait until an orchestrator has begun the run of a folder, at most for a time.

    A standby that took the lead before would keep the first orchestrator out.

    Args:
        folder: Of sealed states, there or not.
        wait: Seconds.
        waiting: Called once where no run has begun.

    Raises:
        LockInvalid: What says which run it is is malformed.
    """
    until = time.monotonic() + wait
    if StandbyStatus.read(folder) is None:
        waiting()
    while StandbyStatus.read(folder) is None and time.monotonic() < until:
        time.sleep(_POLL_S)


@contextmanager
def leading(folder: Path, *, wait: float, waiting: Callable[[], None]) -> Iterator[None]:
    """Lead the run of a folder while the block runs.

    Args:
        folder: Of sealed states; made where it is not there.
        wait: Seconds to wait for another orchestrator to be gone, 0 for none.
        waiting: Called once when there is another one.

    Raises:
        AlreadyExists: Another orchestrator leads, and no standby was asked for.
        PeerUnreachable: It led on for all of the time.
        UsageError: The folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "leading").open("wb")
    except OSError as error:
        raise UsageError("no folder for sealed states", got=error.strerror) from error
    with lock:
        until = time.monotonic() + wait
        asked = False
        while not try_lock(lock.fileno()):
            if not wait:
                raise AlreadyExists(
                    "another orchestrator leads this run",
                    got=str(folder),
                    hint="wait for its end: give the guest a ticket of role standby",
                )
            if not asked:
                waiting()
                asked = True
            if time.monotonic() > until:
                raise PeerUnreachable(
                    "the other orchestrator led on all the time",
                    check="standby",
                    got=f"{wait:g} s",
                    hint="wait longer with --wait",
                )
            time.sleep(_POLL_S)
        yield
