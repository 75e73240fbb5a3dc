"""Rows that come from outside, in parts: training waits between two of them.

A phase trains on a feed as on a stream of its own. Its trainer runs in a thread; each time it has
used all rows that were given, it stands still between two steps, and its feeder may look at
the model and the optimizer, or put others there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch.utils.data

from sealtrain.errors import SealtrainError, TripBroken
from sealtrain.training.data.hugging import Positioned

if TYPE_CHECKING:
    import pyarrow as pa


class Feed(Positioned, torch.utils.data.IterableDataset[dict[str, Any]]):
    """One training's rows. ``begin`` starts it, ``give`` has it use rows, ``end`` ends it.

    Attributes:
        trainer: The trainer that reads; ``None`` until it makes its loader.
    """

    def __init__(self, schema: pa.Schema, sample: Mapping[str, Any]) -> None:
        """Nothing runs yet.

        Args:
            schema: Of the rows.
            sample: A row of that form. A trainer looks at one while it is made.
        """
        described: Any = SimpleNamespace(schema=schema)
        super().__init__(described)
        self.trainer: Any = None
        self._sample = dict(sample)
        self._rows: deque[Mapping[str, Any]] = deque()
        self._changed = threading.Condition()
        self._waits = self._ends = self._over = False
        self._error: BaseException | None = None

    def begin(self, train: Callable[[], None]) -> None:
        """Run a training in a thread until it waits for its first row. Raises as ``give``."""

        def run() -> None:
            try:
                train()
            except BaseException as error:  # raised where rows are given
                self._error = error
            finally:
                with self._changed:
                    self._over = True
                    self._changed.notify_all()

        self._thread = threading.Thread(target=run, name="feed", daemon=True)
        self._thread.start()
        self._stand_still()

    def give(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Have the training use rows; returns when it waits for more, or is over.

        Raises:
            SealtrainError: What the training raised.
            TripBroken: It is over, or another error ended it.
        """
        with self._changed:
            self._refuse_over()
            self._rows.extend(rows)
            self._waits = False
            self._changed.notify_all()
        self._stand_still()

    def end(self) -> None:
        """There are no more rows: wait until the training is over. Raises as ``give``."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()
        self._raise()

    def mark(self) -> dict[str, Any]:
        """As ``Positioned.mark``."""
        return {"row": self.position}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """As ``rows``."""
        return self.rows()

    def rows(self, start: int | None = None) -> Iterator[dict[str, Any]]:
        """Rows as they are given; the sample alone as long as no trainer reads."""
        if self.trainer is None:
            yield dict(self._sample)
            return
        while (row := self._next()) is not None:
            self.position += 1
            yield dict(row)

    def _next(self) -> Mapping[str, Any] | None:
        with self._changed:
            if not self._rows and not self._ends:
                self._waits = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._rows or self._ends)
            return self._rows.popleft() if self._rows else None

    def _stand_still(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waits or self._over)
        self._raise()

    def _refuse_over(self) -> None:
        if self._over:
            self._raise()
            raise TripBroken("the training has done all its steps", check="program")

    def _raise(self) -> None:
        if self._error is None:
            return
        if isinstance(self._error, SealtrainError):
            raise self._error
        # A library's message may quote a value.
        raise TripBroken(
            "the training broke off", check="program", got=type(self._error).__name__
        ) from None
