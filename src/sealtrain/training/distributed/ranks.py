"""Several processes of one guest that train together, forked from the run itself.

A launcher would start programs, which a run forbids. So the run forks ranks before it loads any
training library, and they inherit opened datasets, keys, silence and the network's confinement;
none of it is ever serialised. Rank 0 is the run: it collects evidence and writes journal,
checkpoints and manifest; the other ranks train and release nothing.

1. Ranks meet over an anonymous file in memory and connect to each other over loopback (``Alone``),
   or to the ranks of other guests too (``Company``). Only then does the sandbox close around each;
   from then on no rank can listen or connect.
2. Every rank but 0 waits until the run names the checkpoint to begin from.
3. When a rank fails, the run fails with that rank's error; when a rank is lost, with ``RankLost``.
   The other ranks end with the run, whatever ended it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final, Protocol

from sealtrain.base.processes import answer_of, end_with_parent, pack, pack_error
from sealtrain.errors import LeaseStale, SealtrainError, UsageError
from sealtrain.training.errors import RankLost
from sealtrain.training.silence import silence

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

MEETING_SECONDS: Final = 120.0
ANSWER_SECONDS: Final = 30 * 60.0
GRACE_SECONDS: Final = 5.0
_LOOPBACK: Final = "lo"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPosition:
    """This process's rank, and the number of ranks."""

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process is rank 0, the run itself."""
        return self.rank == 0


class Company(Protocol):
    """All ranks of a training, of which this guest has some.

    Attributes:
        first: Global number of this guest's first rank.
        world: Number of all ranks, in all guests.
    """

    first: int
    world: int

    def connect(self, rank: int) -> None:
        """Make the default group of ``torch.distributed``, as the rank with this global number.

        Raises:
            SealtrainError: The other ranks cannot be reached, or are not the expected ones.
        """

    def leave(self) -> None:
        """Give up what the connections held, once the group is destroyed."""


def place() -> RankPosition:
    """The place of this process; alone when no ranks were gathered."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return RankPosition()
    return RankPosition(rank=distributed.get_rank(), world=distributed.get_world_size())


def count_guests() -> int:
    """Number of guests whose ranks train together; each has as many ranks."""
    world = place().world
    return world // int(os.environ.get("LOCAL_WORLD_SIZE", world))


@dataclass(slots=True)
class _Other:
    """A rank that is not this process."""

    process: BaseProcess
    answers: Connection
    answer: Any = None
    ended: bool = False


class Ranks:
    """The ranks of a run as rank 0 sees them. Made by ``gather_ranks``."""

    def __init__(self) -> None:
        self._others: list[_Other] = []
        # Closed, it ends the others: once both sides are locked down, no signal reaches them.
        self._ends, self._lifeline = multiprocessing.Pipe(duplex=False)

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of all ranks but this one."""
        return tuple(other.process.pid or 0 for other in self._others)

    @contextmanager
    def lead(self, order: Any) -> Iterator[None]:
        """Let the other ranks work while this rank runs the block.

        Args:
            order: Argument of their work.

        Raises:
            RankLost: A rank ended without a report.
            SealtrainError: The first error of a rank or of the block.
        """
        for other in self._others:
            try:
                other.answers.send(order)
            except OSError:
                raise self._lose(other) from None
        try:
            yield
        except SealtrainError:
            raise
        except Exception:
            # A lost rank breaks the connection: blame the rank, not the connection.
            cause = self._cause()
            if cause is not None:
                raise cause from None
            raise
        self._finish()

    def _finish(self) -> None:
        until = time.monotonic() + ANSWER_SECONDS
        while waiting := [other for other in self._others if not other.ended]:
            self._listen(waiting, until - time.monotonic())
            for other in waiting:
                if isinstance(other.answer, BaseException):
                    raise other.answer
                if other.ended and other.answer is None:
                    raise self._lose(other)
            if time.monotonic() > until:
                raise self._lose(waiting[0])

    def _cause(self) -> BaseException | None:
        """The error of another rank, if it reports within the grace period."""
        until = time.monotonic() + GRACE_SECONDS
        while True:
            for other in self._others:
                # A RuntimeError may itself come from a connection to a lost rank.
                if isinstance(other.answer, Exception) and not isinstance(
                    other.answer, RuntimeError
                ):
                    return other.answer
            for other in self._others:
                if other.ended and other.answer is None:
                    return self._lose(other)
            waiting = [other for other in self._others if not other.ended]
            if not waiting or time.monotonic() > until:
                return None
            self._listen(waiting, until - time.monotonic())

    @staticmethod
    def _listen(waiting: list[_Other], seconds: float) -> None:
        """Receive reports until a rank has reported or the time is over."""
        handles = [each for other in waiting for each in (other.answers, other.process.sentinel)]
        ready = wait(handles, timeout=max(0.0, seconds))
        for other in waiting:
            if other.answers in ready or other.process.sentinel in ready:
                with contextlib.suppress(EOFError, OSError):
                    if other.answers.poll(0):
                        other.answer = answer_of(other.answers.recv_bytes())
                other.ended = True

    @staticmethod
    def _lose(other: _Other) -> RankLost:
        other.process.join(GRACE_SECONDS)
        code = other.process.exitcode
        return RankLost(
            "a rank of this training ended without a report",
            check="ranks",
            got=f"signal {signal.Signals(-code).name}" if code and code < 0 else f"status {code}",
            hint="check whether the machine ran out of memory, then: sealtrain resume",
        )

    def fork(self, mine: _Local, company: Company, first: Any, work: Any) -> None:
        """Add a rank. See ``gather_ranks``."""
        here, there = multiprocessing.Pipe()
        inherited = [self._lifeline, here, *(other.answers for other in self._others)]
        process = multiprocessing.get_context("fork").Process(
            target=_serve,
            args=(
                mine,
                company,
                there,
                self._ends,
                inherited,
                first,
                work,
            ),
            name=f"sealtrain-rank-{mine.rank}",
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside threads; the child uses nothing that they hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        there.close()
        self._others.append(_Other(process=process, answers=here))

    def end(self) -> None:
        """End every other rank."""
        self._lifeline.close()
        self._ends.close()
        for other in self._others:
            other.process.join(GRACE_SECONDS)
            if other.process.is_alive():
                with contextlib.suppress(PermissionError):  # then it ends with this process
                    other.process.kill()
                    other.process.join()
            other.answers.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Local:
    """The number of a rank within its guest, and the number of ranks that the guest has."""

    rank: int
    count: int


class _Alone:
    """``Company`` of a guest that trains by itself: its ranks meet over loopback."""

    first = 0

    def __init__(self, world: int) -> None:
        self.world = world
        self._memory = os.memfd_create("sealtrain-ranks")

    def connect(self, rank: int) -> None:
        import torch
        import torch.distributed as dist

        device = torch.device("cuda", rank) if torch.cuda.is_available() else None
        store: Any = dist.FileStore(  # type: ignore[attr-defined]  # exported all the same
            f"/proc/self/fd/{self._memory}", self.world
        )
        store.set_timeout(timedelta(seconds=MEETING_SECONDS))
        dist.init_process_group(
            "gloo" if device is None else "cpu:gloo,cuda:nccl",
            store=store,
            rank=rank,
            world_size=self.world,
            timeout=timedelta(seconds=ANSWER_SECONDS),
            device_id=device,  # connects now: the sandbox refuses to listen later
        )

    def leave(self) -> None:
        os.close(self._memory)


@contextmanager
def gather_ranks(
    count: int,
    *,
    group: bool,
    prepare: Callable[[], None],
    secure: Callable[[], None],
    work: Callable[[Any], None],
    company: Company | None = None,
) -> Iterator[Ranks]:
    """Fork the other ranks of this guest and connect all of them. This process is its first.

    Args:
        count: Number of this guest's ranks, this one included.
        group: Build a process group for a single rank too, which sharding backends need.
        prepare: Called in every rank once it is connected, before the sandbox closes.
        secure: Called in each other rank after that: closes the sandbox around it.
        work: Called in each other rank with the order of ``Ranks.lead``.
        company: All ranks of the training; ``None`` where this guest has them all.

    Raises:
        UsageError: PyTorch is loaded already, so its threads would be missing in a fork.
        RankLost: A rank ended before all ranks were connected.
        SealtrainError: As ``Company.connect``.
    """
    ranks = Ranks()
    if count == 1 and not group and company is None:
        try:
            yield ranks
        finally:
            ranks.end()
        return
    if count > 1 and "torch" in sys.modules:
        raise UsageError(
            "ranks must be forked before PyTorch is loaded",
            check="ranks",
            hint="start the run with: sealtrain train",
        )
    kept = dict(os.environ)
    company = _Alone(count) if company is None else company
    try:
        for rank in range(1, count):
            ranks.fork(_Local(rank=rank, count=count), company, (prepare, secure), work)
        try:
            _join(_Local(rank=0, count=count), company)
            prepare()
        except RuntimeError:
            raise ranks._cause() or RankLost(  # its own
                "the ranks did not connect to each other", check="ranks"
            ) from None
        yield ranks
    finally:
        ranks.end()
        _leave()
        company.leave()
        os.environ.clear()
        os.environ.update(kept)


def _join(mine: _Local, company: Company) -> None:
    """Meet the other ranks and connect to each of them."""
    os.environ.update(
        {
            "RANK": str(company.first + mine.rank),
            "LOCAL_RANK": str(mine.rank),
            "WORLD_SIZE": str(company.world),
            "LOCAL_WORLD_SIZE": str(mine.count),
            "GROUP_RANK": str(company.first // mine.count),
            # Only this machine, whatever its name resolves to.
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
            "GLOO_SOCKET_IFNAME": _LOOPBACK,
            "NCCL_SOCKET_IFNAME": _LOOPBACK,
            "NCCL_IB_DISABLE": "1",
        }
    )
    if mine.count > 1:
        threads = max(1, len(os.sched_getaffinity(0)) // mine.count)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    silence()
    import torch

    if torch.cuda.is_available():
        if torch.cuda.device_count() < mine.count:
            raise UsageError(
                "the machine has fewer accelerators than the recipe has ranks",
                check="backend.ranks",
                got=torch.cuda.device_count(),
                expected=f"at least {mine.count}",
            )
        torch.cuda.set_device(torch.device("cuda", mine.rank))
    company.connect(company.first + mine.rank)


def _leave() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()


def _serve(
    mine: _Local,
    company: Company,
    answers: Connection,
    ends: Connection,
    inherited: list[Connection],
    first: Sequence[Callable[[], None]],
    work: Callable[[Any], None],
) -> None:
    """Another rank's whole life."""
    if not end_with_parent():
        return
    for number in (signal.SIGTERM, signal.SIGINT):  # a whole process group gets them
        signal.signal(number, signal.SIG_IGN)  # the run decides when to stop
    for connection in inherited:
        connection.close()
    lifeline = threading.Thread(target=_end_with, args=(ends,), name="lifeline", daemon=True)
    lifeline.start()
    try:
        _join(mine, company)
        for one_by_one in first:
            one_by_one()
        work(answers.recv())
    except EOFError:
        return
    except BaseException as error:
        answers.send_bytes(pack_error(error))
        if type(error) is LeaseStale:  # all ranks stop together: what it sent last is under way
            lifeline.join()
    else:
        company.leave()
        answers.send_bytes(pack("done"))
    # Gloo's connections close with the process: here it would look like a loss to the others.


def _end_with(ends: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        ends.recv_bytes()
    os._exit(1)
