"""Worker threads of a broker, apart for each class of callers, so that none waits for another.

A lane has threads of its own and shares them among callers in turn: a caller with a hundred
requests waits for itself, not others for it. A request that would wait too long is refused at once.
In a lane that gives way, it takes the place of one whose caller was served more in this minute: a
caller with many names waits for itself there too.
Only the event loop's thread uses lanes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from sealtrain.errors import TooManyRequests

Result = TypeVar("Result")


class Lane:
    """Threads for one class of callers.

    Args:
        name: Of the threads.
        threads: How many work at a time.
        each: How many of them for one caller.
        waiting: How many requests wait for a thread at most.
        waiting_each: How many of them of one caller.
        gives_way: Whether a full lane refuses the caller that was served most, in place of one that
            comes.
    """

    def __init__(
        self,
        name: str,
        *,
        threads: int,
        each: int,
        waiting: int,
        waiting_each: int,
        gives_way: bool = False,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = threads
        self._each = each
        self._most_waiting = waiting
        self._most_waiting_each = waiting_each
        self._busy: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}  # in the order of their turns
        self._waiting = 0
        self._gives_way = gives_way
        self._minute = -1.0
        self._served: Counter[str] = Counter()

    async def run(self, caller: str, act: Callable[[], Result]) -> Result:
        """Do ``act`` in a thread of the lane, when it is the caller's turn.

        Args:
            caller: The caller's owner, lease or address group.
            act: The work.

        Raises:
            TooManyRequests: Too many wait already, of this caller or of all.
        """
        await self._turn(caller)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, act)
        finally:
            self._free += 1
            self._busy[caller] -= 1
            if not self._busy[caller]:
                del self._busy[caller]
            self._next()

    async def _turn(self, caller: str) -> None:
        queue = self._queues.setdefault(caller, deque())
        full = self._waiting >= self._most_waiting and not self._makes_room(caller)
        if full or len(queue) >= self._most_waiting_each:
            if not queue:
                del self._queues[caller]
            raise _busy()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._waiting += 1
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had its turn already
                self._free += 1
                self._busy[caller] -= 1
                self._next()
            raise

    def _makes_room(self, caller: str) -> bool:
        """Refuse the last request of the caller that was served most, if it was served more."""
        if not self._gives_way:
            return False
        served = self._count_served()
        waiting = (name for name, queue in self._queues.items() if queue)
        most = max(waiting, key=served.__getitem__)
        if served[most] <= served[caller]:
            return False
        queue = self._queues[most]
        turn = queue.pop()
        if not queue:
            del self._queues[most]
        self._waiting -= 1
        if not turn.done():
            turn.set_exception(_busy())
        return True

    def _count_served(self) -> Counter[str]:
        """How often each caller had its turn in this minute."""
        minute = asyncio.get_running_loop().time() // 60
        if minute != self._minute:
            self._minute, self._served = minute, Counter()
        return self._served

    def _next(self) -> None:
        """Give free threads to callers in turn."""
        while self._free:
            caller = next((name for name in self._queues if self._busy[name] < self._each), None)
            if caller is None:
                return
            queue = self._queues.pop(caller)
            turn = queue.popleft()
            self._waiting -= 1
            if queue:
                self._queues[caller] = queue  # behind the others
            if turn.cancelled():
                continue
            self._free -= 1
            self._busy[caller] += 1
            if self._gives_way:
                self._count_served()[caller] += 1
            turn.set_result(None)


def _busy() -> TooManyRequests:
    return TooManyRequests(
        "the broker is busy",
        check="rate",
        expected="fewer requests at a time",
        hint="ask again in a moment",
    )


def _lane(name: str, *, gives_way: bool = False, **sizes: int) -> Callable[[], Lane]:
    return lambda: Lane(name, gives_way=gives_way, **sizes)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Every lane of a broker.

    Fewer requests wait than there are connections: one can always give way to a new caller
    (``base.connections``).

    Attributes:
        owners: Requests that owners signed; a caller is an owner.
        controllers: Requests that submitters and runners signed who are no owners.
        holders: Renewals that the holder of a live lease signed; a caller is a lease.
        guests: Everything else that asks for a decision; a caller is an address.
        manifests: Run manifests, which cost most to verify; a caller is a run.
        reads: Answers to unauthenticated callers.
    """

    owners: Lane = field(
        default_factory=_lane("owners", threads=16, each=2, waiting=1024, waiting_each=16)
    )
    controllers: Lane = field(
        default_factory=_lane("controllers", threads=4, each=2, waiting=256, waiting_each=16)
    )
    holders: Lane = field(
        default_factory=_lane("holders", threads=16, each=2, waiting=256, waiting_each=4)
    )
    guests: Lane = field(
        default_factory=_lane("guests", threads=32, each=24, waiting=96, waiting_each=64)
    )
    manifests: Lane = field(
        default_factory=_lane(
            "manifests", threads=1, each=1, waiting=4, waiting_each=2, gives_way=True
        )
    )
    reads: Lane = field(
        default_factory=_lane("reads", threads=4, each=2, waiting=48, waiting_each=24)
    )
