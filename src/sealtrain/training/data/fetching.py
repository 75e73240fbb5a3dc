"""Record batches from a store elsewhere, several requests at a time, answered in order.

One request after the other would wait for the network once a group; these wait together. The
threads spend their time waiting, and never more than ``AT_A_TIME`` batches are asked for beyond
the one that is handed over, so memory does not grow with the data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from sealtrain.training.data.sources import BatchedRecords

AT_A_TIME = 8
Question = TypeVar("Question")
Answer = TypeVar("Answer")


def far(datasets: Sequence[BatchedRecords]) -> bool:
    """Whether any of them lies elsewhere: a sealed dataset says so of itself."""
    return any(getattr(dataset, "local", True) is False for dataset in datasets)


class Fetching(Generic[Question, Answer]):
    """Opens record batches in threads. One reader; not thread-safe."""

    def __init__(self, fetch: Callable[[Question], Answer]) -> None:
        """Say how a batch is opened; a thread begins with the first question."""
        self._fetch = fetch
        self._threads = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="sealtrain-fetching")
        self._asked: deque[Future[Answer]] = deque()

    def ask(self, question: Question) -> None:
        """Have a record batch opened; ``answer`` gives batches in the order of questions."""
        self._asked.append(self._threads.submit(self._fetch, question))

    def answer(self) -> Answer:
        """The batch asked for first of those not answered yet; raises what opening it raised."""
        return self._asked.popleft().result()

    def close(self) -> None:
        """Take back what is not begun, and wait for what is. Idempotent."""
        self._asked.clear()
        self._threads.shutdown(cancel_futures=True)


def fetch_ahead(
    fetch: Callable[[Question], Answer], questions: Iterable[Question]
) -> Generator[Answer]:
    """The answers to questions in order, with ``AT_A_TIME`` more under way."""
    asked = 0
    with closing(Fetching(fetch)) as fetching:
        for question in questions:
            fetching.ask(question)
            asked += 1
            if asked > AT_A_TIME:
                yield fetching.answer()
                asked -= 1
        for _ in range(asked):
            yield fetching.answer()
