"""What a process gives up while it holds what others own: output, other hosts, other files.

For guests that lead, hold or compute for a run of several parties; a run of one guest does the same
(``runner.run``). Listening sockets are bound before: no port is opened inside.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

from sealtrain.errors import SealtrainError
from sealtrain.runner.egress import address_of, confined_to
from sealtrain.runner.hush import hushed
from sealtrain.runner.lockdown import leave_no_memory, restrict
from sealtrain.runner.telling import told

if TYPE_CHECKING:
    from sealtrain.runner.guest import AttestedGuest

__all__ = ["DRIVER", "kernels", "lock_down", "saying", "secluded", "telling"]

DRIVER: Final = Path("/dev/nvidiactl")
"""There where the machine has an accelerator."""

Done = TypeVar("Done")


def secluded(
    guest: AttestedGuest,
    work: Callable[[TextIO], Done],
    *,
    peers: Sequence[str] = (),
    sockets: Sequence[Path] = (),
    writable: Sequence[Path] = (),
    alone: bool = False,
) -> Done:
    """Do ``work`` with nothing to be said, reached or written but what is named.

    Args:
        guest: Its brokers, stores and services stay reachable, its folder writable.
        work: Given the terminal, for progress.
        peers: Addresses of other parties, as ``tcp://host:port``.
        sockets: Further unix sockets that are connected to.
        writable: Further folders that are written in.
        alone: This process is for the work only: lock it down for good (``runner.lockdown``).

    Raises:
        SealtrainError: In place of whatever ``work`` raised: a typed event, as far as the recipe's
            release policy goes.
    """
    accelerated = DRIVER.exists()
    tempfile.gettempdir()  # Python tries once whether it may write there, and remembers
    platform = guest.admitted.guest
    folders = [guest.settings.out, *platform.writable, *writable]
    folders += [kernels()] if accelerated else []
    urls = [*guest.urls, *peers]
    with (
        hushed(guest.tally, for_good=alone) as terminal,
        confined_to(
            *urls,
            unix=[*platform.sockets, *sockets],
            writable=folders,
            compilers=accelerated,
            noted=guest.tally.note,
        ),
    ):
        guest.tell(telling(terminal))
        if alone:
            lock_down(folders, urls)
        return told(
            lambda: work(terminal), guest.recipe.release_policy.logs, lambda: guest.tally.counts
        )


def lock_down(writable: Sequence[Path], urls: Sequence[str]) -> None:
    """Bind native code, too: files in these folders, TCP to the ports of these URLs, no memory."""
    leave_no_memory()
    ports = [address_of(url)[1] for url in urls]
    restrict(writable, connect=ports, programs=DRIVER.exists())


def saying(terminal: TextIO) -> Callable[[str], None]:
    """Say a line where output is hushed. It holds names and codes alone."""

    def say(line: str) -> None:
        terminal.write(f"{line}\n")
        terminal.flush()

    return say


def telling(terminal: TextIO) -> Callable[[str, SealtrainError], None]:
    """Tell of brokers where output is hushed: which one and the kind of reason, no words of it."""
    say = saying(terminal)
    return lambda url, error: say(f"broker {url}: {error.code}")


def kernels() -> Path:
    """Where compilers of kernels keep what they built: code, never data."""
    folder = Path(tempfile.gettempdir()) / "sealtrain-kernels"
    folder.mkdir(exist_ok=True)
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"):
        os.environ[name] = str(folder)
    return folder
