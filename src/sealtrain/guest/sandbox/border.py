"""The sandbox around a process that holds keys or records: output, network, files, programs.

``enclose`` is the same sandbox for every role of a run. The guest opens and starts everything it
needs before it: listening sockets, the answers of programs, the process that compiles kernels, the
accelerator's driver.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from sealtrain.base.outbound import outbound
from sealtrain.base.processes import fork
from sealtrain.errors import SealtrainError
from sealtrain.guest.sandbox.compilers import workshop
from sealtrain.guest.sandbox.landlock import (
    KernelBorder,
    leave_no_memory,
    other_threads,
    restrict,
    unbound,
)
from sealtrain.guest.sandbox.network import address_of, confine_to, is_number
from sealtrain.guest.sandbox.output import hush
from sealtrain.guest.sandbox.programs import Programs, questions
from sealtrain.guest.sandbox.rehearsal import insecure_loud
from sealtrain.guest.sandbox.scratch import Scratch, scratch
from sealtrain.guest.sandbox.seccomp import refuse_calls
from sealtrain.guest.sandbox.users import MAY_SIGNAL, give_up_capabilities, workload_user

if TYPE_CHECKING:
    from sealtrain.guest.sandbox.output import OutputTally

_DRIVER: Final = Path("/dev/nvidiactl")
_CUDA: Final = "libcuda.so.1"
_DRIVER_SECONDS: Final = 60
_LOADED: Final = Path("/proc/driver/nvidia/version")
"""There as soon as the kernel has the driver, also where device files are still to be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The exceptions that the sandbox allows.

    Attributes:
        urls: Reachable services, or the proxy on the way to them; ``tcp://host:port`` for other
            parties.
        folders: Folders to write in, beside the run's folder in memory.
        sockets: Unix sockets that may be connected to.
        readable: Files and folders to read, beside those to write in; all when ``None``.
        network: Sockets may be made at all.
        signals: Signals may be sent to processes outside.
        devices: Device files of evidence, for a process that proves what it is.
    """

    urls: Sequence[str] = ()
    folders: Sequence[Path] = ()
    sockets: Sequence[Path] = ()
    readable: Sequence[Path] | None = None
    network: bool = True
    signals: bool = False
    devices: Sequence[Path] = ()


class Room:
    """The sandbox that ``enclose`` prepared, which a process then closes for good.

    Attributes:
        terminal: For sealtrain's own progress.
        scratch: The run's folder in memory.
    """

    def __init__(
        self,
        terminal: TextIO,
        scratch: Scratch,
        programs: Programs,
        tally: OutputTally,
        *,
        alone: bool,
        accelerated: bool,
    ) -> None:
        self.terminal = terminal
        self.scratch = scratch
        self._programs = programs
        self._tally = tally
        self._alone = alone
        self._accelerated = accelerated

    def confine(self, ways: Ways) -> AbstractContextManager[object]:
        """Confine this process to ``ways`` as Python can: see ``sandbox.network.confine_to``."""
        return confine_to(
            *outbound().places(ways.urls),
            unix=ways.sockets,
            writable=[*ways.folders, *self.scratch.writable, *ways.devices],
            programs=self._programs,
            noted=self._tally.note,
        )

    def lock(self, ways: Ways) -> KernelBorder:
        """Have the kernel enforce it on native code too, for good, in a process of the run only.

        Threads start afterwards, so that it binds them too; older threads are counted.
        """
        landlock, seccomp, older = 0, False, other_threads()
        if self._alone:
            leave_no_memory()
            if workload_user() is not None:  # a keeper, which was lent more than it needs now
                give_up_capabilities(MAY_SIGNAL)
            places = [address_of(url) for url in outbound().places(ways.urls)]
            names = not all(is_number(host) for host, _port in places)
            landlock = restrict(
                [*ways.folders, *self.scratch.writable, *ways.devices],
                connect=[port for _host, port in places],
                sockets=ways.sockets,
                names=names,
                passing=self.scratch.folder,
                readable=ways.readable,
                signals=ways.signals,
            )
            if self._accelerated:
                _start_driver()
            seccomp = refuse_calls(datagrams=names, network=ways.network, unix=bool(ways.sockets))
        memory = "private" if self.scratch.private else "folder"
        return KernelBorder(
            landlock=landlock, seccomp=seccomp, unbound=unbound(landlock, older), memory=memory
        )


@contextmanager
def enclose(
    tally: OutputTally,
    *,
    alone: bool,
    accelerated: bool | None = None,
    compiles: bool = False,
    insecure_shown: bool = False,
) -> Iterator[Room]:
    """Silence this process and prepare what it needs inside the sandbox.

    Args:
        tally: Counts dropped output and refused calls.
        alone: This process serves only the run: the sandbox lasts until it ends.
        accelerated: There is an accelerator to build kernels for; looked up when ``None``.
        compiles: The recipe has a compiler build code as it trains, also without an accelerator.
        insecure_shown: Do not silence it: a rehearsal (``sandbox.rehearsed``).
    """
    if accelerated is None:
        accelerated = has_accelerator()
    with ExitStack() as stack:
        memory = stack.enter_context(scratch(alone=alone))
        terminal = stack.enter_context(
            insecure_loud() if insecure_shown else hush(tally, for_good=alone)
        )
        if accelerated:
            _wake_driver()
        building = accelerated or compiles
        shop = stack.enter_context(workshop(memory.folder)) if building else None
        programs = Programs(answers=questions(), workshop=shop)
        yield Room(terminal, memory, programs, tally, alone=alone, accelerated=accelerated)


def has_accelerator() -> bool:
    """Whether this machine has an accelerator, as its kernel says."""
    return _DRIVER.exists() or _LOADED.exists()


def saying(terminal: TextIO) -> Callable[[str], None]:
    """Print a line past the silence. The caller passes names and codes only."""

    def say(line: str) -> None:
        terminal.write(f"{line}\n")
        terminal.flush()

    return say


def telling(terminal: TextIO) -> Callable[[str, SealtrainError], None]:
    """Report a broker's failure past the silence: its URL and the error's code, not the message."""
    say = saying(terminal)
    return lambda url, error: say(f"broker {url}: {error.code}")


def _wake_driver() -> None:
    """Have the accelerator's driver run its once-per-machine start in a child process.

    Where device files are missing it executes a program that makes them. A process that has used
    the driver cannot fork ranks any more, so a child does it.
    """
    child = fork()
    if child == 0:
        try:
            signal.alarm(_DRIVER_SECONDS)
            ctypes.CDLL(_CUDA).cuInit(0)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _start_driver() -> None:
    """Have the driver start in this process, between the files' rules and the calls' filter.

    As it starts it listens at a unix socket of its own, for processes that share memory of a GPU,
    and does not start where it may not. The filter lets nothing listen. Ranks that met each other
    have started it before. Whether it did is asked where a device is chosen (``training.devices``):
    not every role computes on one.
    """
    with suppress(OSError):  # no library of it: nothing here can use it
        ctypes.CDLL(_CUDA).cuInit(0)
