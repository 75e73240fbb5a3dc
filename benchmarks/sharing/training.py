"""Training on data that come to the model: turns, buffer and steps of the travelling way.

The same rotation, the same buffer in two halves, the same program: what differs is the feed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from sealtrain_together.travelling.parties import Progress
from sealtrain_together.travelling.schedule import TravelPlan, Trip, TripRotation

if TYPE_CHECKING:
    from sealtrain_together.travelling.program import TravellingModel


class Feed(Protocol):
    """Brings chunks, in the order in which they were asked for. Of one thread."""

    def ask(self, trip: Trip) -> None:
        """Send for the chunk of a trip; does not wait for it."""

    def take(self, trip: Trip, into: memoryview) -> None:
        """Wait for the oldest chunk that was asked for and not taken yet; ``into`` is as long."""


def turns(plan: TravelPlan) -> Iterator[Trip]:
    """The trips of a run in which no holder is refused, in their order."""
    rotation, half = TripRotation(plan), 0
    while (trip := rotation.next(half)) is not None:
        yield trip
        half = 1 - half


def train_fed(
    program: TravellingModel,
    plan: TravelPlan,
    feed: Feed,
    *,
    buffer: memoryview | None = None,
    timer: Callable[[], float] = time.perf_counter,
) -> Progress:
    """Train until every holder has given what it may.

    While the program learns from one half of the buffer the other is filled, and the chunk after
    that has been sent for.

    Args:
        program: Learns.
        plan: Turns, limits and the size of the buffer.
        feed: Where chunks come from.
        buffer: Of the plan's size, and touched before where its first use must cost nothing.
        timer: Seconds.

    Returns:
        ``transfer`` is what training waited for; ``timers["receive"]`` what the chunks took.

    Raises:
        DataInvalid: A chunk is nothing to train on.
        SealtrainError: As the feed raises.
    """
    progress = Progress()
    if buffer is None:
        buffer = memoryview(bytearray(plan.buffer_bytes))
    coming = turns(plan)
    asked: Trip | None = None

    def receive() -> Trip | None:
        nonlocal asked
        trip, began = asked, timer()
        asked = next(coming, None)
        if asked is not None:
            feed.ask(asked)
        if trip is not None:
            feed.take(trip, buffer[trip.start : trip.end])
            progress.add("receive", timer() - began)
        return trip

    with ThreadPoolExecutor(max_workers=1) as ahead:
        ahead.submit(receive).result()  # sends for the first chunk
        began = timer()
        waiting: Future[Trip | None] = ahead.submit(receive)
        while (trip := waiting.result()) is not None:
            progress.transfer += timer() - began
            waiting = ahead.submit(receive)
            began = timer()
            _, loss = program.train(buffer[trip.start : trip.end])
            progress.training += timer() - began
            progress.losses.append(loss)
            began = timer()
    return progress
