"""Run an iterator in a thread, a few items ahead of its consumer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
_POLL_SECONDS = 0.1


class _End:
    """Last item of a queue: the iterator is over, or failed with ``error``."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Producer(Generic[Item]):
    def __init__(self, make: Callable[[], Iterator[Item]], depth: int) -> None:
        self._make = make
        self.items: queue.Queue[Item | _End] = queue.Queue(depth)
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sealtrain-prefetch", daemon=True)
        self._thread.start()

    def _put(self, item: Item | _End) -> bool:
        while not self.stopped.is_set():
            try:
                self.items.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def _run(self) -> None:
        end = _End(None)
        try:
            for item in self._make():
                if not self._put(item):
                    return
        except BaseException as error:
            end = _End(error)  # the consumer raises it
        self._put(end)

    def stop(self) -> None:
        self.stopped.set()
        while not self.items.empty():
            self.items.get_nowait()
        self._thread.join()


def prefetch(make: Callable[[], Iterator[Item]], depth: int) -> Iterator[Item]:
    """Items of ``make()``, computed up to ``depth`` ahead in a thread; 0 computes them in place.

    The thread ends when the consumer closes this generator, and its errors are raised here.
    """
    if depth == 0:
        yield from make()
        return
    producer = _Producer(make, depth)
    try:
        while True:
            item = producer.items.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        producer.stop()
