"""The workload's process: forked before any key, stripped of what it inherited, ended whole.

What a fork copies is the keeper's image before the brokers are asked; ``guest.life`` begins anew in
the interpreter. Before, the workload gives up what would stay:

1. every descriptor but its channel and the copies that the lock pins: each other number leads to
   nowhere, so that no object that still owns it closes another's;
2. the environment, but for settings of libraries.

Every capability of the kernel's goes too, once it has its memory (``give_up_capabilities``). On a
guest's disk of our own it becomes another user without a network first (``sandbox.users``).

It ends with the keeper, and all that it forked ends with it: it is a group of processes that the
kernel's filter lets none of them leave, and one signal reaches a whole group, also processes that
fork and end faster than any list of them is read. Beyond that the keeper adopts what lost its
parent and kills what the filter marks as the workload's. Where the keeper is killed, a guard in the
group sends it that signal (``Guard``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from sealtrain.base.processes import fork
from sealtrain.guest.sandbox.landlock import leave_no_memory
from sealtrain.guest.sandbox.seccomp import refuse_calls
from sealtrain.guest.sandbox.users import MAY_SIGNAL, become_user, give_up_capabilities
from sealtrain.guest.workload.channel import ChannelEnds, connections

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SETTINGS: Final = re.compile(
    r"(ACCELERATE|ARROW|ATEN|AXOLOTL|CUBLAS|CUDA|CUDNN|FLASH|GLOO|JE_ARROW|KMP|LC|MKL|NCCL|NUMBA"
    r"|NUMEXPR|NVIDIA|OMP|OPENBLAS|PYTORCH|TOKENIZERS|TORCH|TORCHINDUCTOR|TRANSFORMERS|TRITON|TRL"
    r"|UNSLOTH|XLA)_\w+"
    r"|HF_(DATASETS|HUB)_(OFFLINE|DISABLE_\w+)|(COMET|WANDB)_(MODE|DISABLED)|DISABLE_MLFLOW\w+"
    r"|CC|CXX|DO_NOT_TRACK|LANG|LANGUAGE|LD_LIBRARY_PATH|PATH|SEALTRAIN_INSECURE_SHOW|TZ"
)
"""Variables that libraries read."""
_CREDENTIALS: Final = re.compile(r"\w+_(\w*KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)(_\w+)?")
"""Those of services among them, such as ``NVIDIA_API_KEY``."""
_FILTERED: Final = "Seccomp:\t2"
_GROUP: Final = "NSpgid:\t"
_LOOK_SECONDS: Final = 0.002
_ENDING_SECONDS: Final = 10.0


class WorkloadProcess:
    """A forked workload, as its keeper sees it.

    Attributes:
        pid: Its process id.
        ends: The keeper's ends of each rank's connections.
    """

    def __init__(
        self,
        live: Callable[[Sequence[ChannelEnds]], None],
        *,
        ranks: int,
        kept: Collection[int],
        shown: bool = False,
        user: int | None = None,
    ) -> None:
        """Fork it.

        Args:
            live: All that it does; called with its ends, one for each rank.
            ranks: How many ranks it will have.
            kept: Descriptors that it keeps.
            shown: Standard output and error stay, for a rehearsal.
            user: That it becomes, without a network (``sandbox.users``); ``None`` for this one's.
        """
        pairs = [connections() for _ in range(ranks)]
        ours, theirs = [own for own, _ in pairs], [other for _, other in pairs]
        keep_orphans()
        keeper = os.getpid()
        self.pid = fork()
        if self.pid == 0:
            _live(keeper, live, ours, theirs, {*kept, *((1, 2) if shown else ())}, user)
        join_group(self.pid)
        self.ends = tuple(ours)
        self._status: int | None = None
        self._over = False
        self._looking = threading.Lock()
        for end in theirs:
            for each in end.all:
                each.close()
        self._guard = Guard(self.pid, other_user=user is not None)

    @property
    def status(self) -> int | None:
        """Its exit status as ``Popen.returncode``; ``None`` while it lives."""
        with self._looking:
            if self._status is None:
                self._status = exit_status(self.pid)
            return self._status

    def end(self) -> None:
        """Kill it and all that it forked; no answer of the channel is waited for. Idempotent."""
        with self._looking:
            if not self._over:
                self._over, self._status = True, end_group(self.pid)
                self._guard.end()
        end_orphans()
        for end in self.ends:
            for each in end.all:
                with contextlib.suppress(OSError):  # closed already
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the channel, which no thread uses any more. Idempotent."""
        for end in self.ends:
            for each in end.all:
                each.close()


class Guard:
    """A process that ends a group when its maker is gone, however that ended.

    It is of the group: so the group's number is no other's while it waits. It holds a descriptor of
    its maker's process and nothing else, and no other process has a word for it. Where the kernel
    keeps signals of a sandbox inside (Linux 6.12), the group cannot end it alone.
    """

    def __init__(self, group: int, *, other_user: bool = False) -> None:
        """Start it.

        Args:
            group: Begun by a child of this process, which was not waited for yet.
            other_user: The group is another user's: the guard keeps the capability to end it.
        """
        maker = os.pidfd_open(os.getpid())
        self._pid = fork()
        if self._pid == 0:
            _guard(maker, group, MAY_SIGNAL if other_user else 0)
        os.close(maker)
        join_group(self._pid, group)

    def end(self) -> None:
        """End it, where the end of its group did not."""
        with contextlib.suppress(ChildProcessError):  # it was ended with what another one left
            exit_status(self._pid)
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _guard(maker: int, group: int, capability: int) -> NoReturn:
    """The guard's whole life."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        join_group(0, group)
        strip({maker})
        give_up_capabilities(capability)
        refuse_calls(network=False, unix=False)
        if os.getpgrp() == group:  # or there is no such group any more
            select.select([maker], [], [])
            os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)


def join_group(pid: int = 0, group: int | None = None) -> None:
    """Put a process into a group. Parent and child both ask for it.

    Args:
        pid: Child of this process; 0 for this process itself.
        group: Number of the group; ``None`` for a new one, of which the process is the first.
    """
    with contextlib.suppress(OSError):  # it is already, and has another program or has ended
        os.setpgid(pid, pid if group is None else group)


def exit_status(pid: int) -> int | None:
    """The status of a child as ``Popen.returncode``; ``None`` while it lives.

    It is not waited for, so its number and that of its group are no other's until ``end_group``.

    Raises:
        ChildProcessError: It was waited for.
    """
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def end_group(pid: int) -> int:
    """Kill a child and the group that it began, and wait for the child; returns its status."""
    try:
        exit_status(pid)
    except ChildProcessError:  # it was ended with what another one left
        return -signal.SIGKILL
    for kill in (os.killpg, os.kill):  # where the child has not begun, there is no group yet
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def keep_orphans(*, kept: bool = True) -> None:
    """Have the kernel give this process what its children leave behind, or no longer."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(kept), 0, 0, 0)


@contextlib.contextmanager
def run_without_orphans() -> Iterator[None]:
    """Around the process of a run: what it forked does not live longer than the block."""
    keep_orphans()
    try:
        yield
    finally:
        end_orphans()
        keep_orphans(kept=False)


def end_orphans() -> None:
    """Kill the children of this process that a run's filter binds, until there are none."""
    until = time.monotonic() + _ENDING_SECONDS
    while (found := list(_list_bound_children())) and time.monotonic() < until:
        for pid, group in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if group > 1 and group != os.getpgrp():
                    os.killpg(group, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_LOOK_SECONDS)


def _list_bound_children() -> Iterator[tuple[int, int]]:
    """Children that a filter binds, each with its group; 0 where the kernel does not tell it."""
    parent = f"PPid:\t{os.getpid()}"
    for place in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = place.read_text("ascii", "replace").splitlines()
        except OSError:  # it ended
            continue
        if parent in lines and _FILTERED in lines:
            groups = [line.split("\t")[1] for line in lines if line.startswith(_GROUP)]
            yield int(place.parent.name), int(groups[0]) if groups else 0


def _live(
    keeper: int,
    live: Callable[[Sequence[ChannelEnds]], None],
    others: Sequence[ChannelEnds],
    ends: Sequence[ChannelEnds],
    kept: Collection[int],
    user: int | None,
) -> None:
    """The workload's whole life."""
    status = 1
    try:
        join_group()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the keeper decides when to stop
        signal.set_wakeup_fd(-1)
        for end in others:
            for each in end.all:
                each.detach()
        strip({*kept, *(each.fileno() for end in ends for each in end.all)})
        if user is not None:
            become_user(user)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == keeper:  # or it ended before the kernel was asked
            live(ends)
            status = 0
    finally:
        os._exit(status)


def strip(kept: Collection[int]) -> None:
    """Give up what this process inherited.

    Args:
        kept: Descriptors that stay.
    """
    leave_no_memory()
    _forget_environment()
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in [int(place.name) for place in Path("/proc/self/fd").iterdir()]:
        if number not in kept and number != nowhere:
            with contextlib.suppress(OSError):  # of the listing itself
                os.fstat(number)
                os.dup2(nowhere, number, inheritable=False)
    os.close(nowhere)


def _forget_environment() -> None:
    """Keep the settings of libraries, and no secret of any service."""
    settings = {
        name: text
        for name, text in os.environ.items()
        if _SETTINGS.fullmatch(name) and not _CREDENTIALS.fullmatch(name)
    }
    os.environ.clear()
    os.environ.update(settings)
