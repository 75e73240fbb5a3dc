"""Pads that are made ahead of their use: they depend on no data (spec/one-time-pads.md §4).

A model asks for its streams in the same order at every step. So a thread makes rows of the streams
that followed last time, while the guest does something else.

1. Rows come from a stream in its order, whoever asks first, and each is given out once. A wrong
   guess costs room, never a row.
2. A process that was forked gets none of the rows that wait.
3. That a supplier has no rows left is an error only once they are needed. Whatever else went wrong
   ends all: the next answer may be the one to that request.
4. Rows that wait take no more room than given.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import torch

from sealtrain.base.process_state import OneProcess
from sealtrain.errors import PadsRefused
from sealtrain_together.pads.masks import Masks, OnePlace
from sealtrain_together.pads.matrix import Direction, PublicMatrix
from sealtrain_together.pads.supplier import Supplier

PREFETCH_BYTES: Final = 256 << 20
"""Of rows that wait, by default."""
_IDLE_SECONDS: Final = 2.0
_LAST_SECONDS: Final = 5.0
_REMEMBERED: Final = 4

_Name = tuple[bytes, Direction]


@dataclass(slots=True, eq=False)
class _PrefetchedStream:
    """One stream: its rows that wait, and how many were asked for lately."""

    matrix: PublicMatrix
    direction: Direction
    waiting: deque[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=deque)
    ready: int = 0
    drawn: tuple[int, torch.Tensor] | None = None
    asked: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    ended: bool = False

    @property
    def row_bytes(self) -> int:
        return 4 * sum(self.matrix.widths(self.direction))

    @property
    def missing(self) -> int:
        """Rows that the next request may need and that do not wait yet."""
        return 0 if self.ended else max(0, max(self.asked, default=0) - self.ready)

    def give(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Take rows out, masks and products: as they were made, where their number is the same."""
        parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        left = rows
        while left:
            mask, product = self.waiting.popleft()
            if len(mask) > left:
                self.waiting.appendleft((mask[left:], product[left:]))
                mask, product = mask[:left], product[:left]
            parts.append((mask, product))
            left -= len(mask)
        self.ready -= rows
        if len(parts) == 1:
            return parts[0]
        masks, products = zip(*parts, strict=True)
        return torch.cat(masks), torch.cat(products)


class Prefetch(OnePlace):
    """Gives out the rows of all streams of one beginning, made ahead where there was time.

    Args:
        masks: Of the beginning. Nothing else reads them.
        supplier: Makes their products. It is asked by one thread at a time.
        room: Bytes of rows that may wait.
    """

    def __init__(self, masks: Masks, supplier: Supplier, room: int = PREFETCH_BYTES) -> None:
        self._masks, self._supplier, self._room = masks, supplier, room
        self._process = OneProcess("pads", refusal=PadsRefused)
        self._lines: dict[_Name, _PrefetchedStream] = {}
        self._follows: dict[_Name, _Name] = {}
        self._last: _Name | None = None
        self._held = 0
        self._needed = False
        self._closed = False
        self._failed: BaseException | None = None
        self._taking, self._making = threading.Lock(), threading.Lock()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def admit(self, matrix: PublicMatrix) -> None:
        """Have the supplier know a matrix, while the thread asks it for nothing."""
        with self._making:
            self._supplier.admit(matrix)

    def take(
        self, matrix: PublicMatrix, direction: Direction, rows: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The next rows of a stream and their products, each (rows, columns).

        Raises:
            PadsRefused: There are none, or this process may not have any.
            SealtrainError: As the supplier, also of an earlier request.
        """
        self._process.require()  # (2)
        with self._taking:
            return self._take((matrix.digest, direction), matrix, rows)

    def _take(
        self, name: _Name, matrix: PublicMatrix, rows: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with self._changed:
            line = self._lines.setdefault(name, _PrefetchedStream(matrix, name[1]))
            needed = line.ready < rows
            self._needed = needed
        try:
            if needed:
                with self._making:
                    if line.ready < rows:
                        self._make(line, rows - line.ready)
        finally:
            self._needed = False
        with self._changed:
            given = line.give(rows)
            self._held -= rows * line.row_bytes
            line.asked.append(rows)
            if self._last is not None:
                self._follows[self._last] = name
            self._last = name
            self._wake()
        return given

    def close(self) -> None:
        """Make nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LAST_SECONDS)  # it may wait for a machine that does not answer

    def _make(self, line: _PrefetchedStream, rows: int) -> None:
        """Have some rows of a stream more. The caller holds ``_making``."""
        if self._failed is not None:
            raise self._failed
        if self._closed:
            raise PadsRefused("the pads of this beginning were given up", check="pads")
        try:
            first, mask = self._draw(line, rows)
            product = self._supplier.product(line.matrix, line.direction, first, mask[:rows])()
        except PadsRefused:
            line.ended = True
            raise
        except BaseException as error:
            self._failed = error  # (3)
            raise
        line.drawn = (first + rows, mask[rows:]) if len(mask) > rows else None
        with self._changed:
            line.waiting.append((mask[:rows], product))
            line.ended = False
            line.ready += rows
            self._held += rows * line.row_bytes

    def _draw(self, line: _PrefetchedStream, rows: int) -> tuple[int, torch.Tensor]:
        """Masks of rows that have no product yet, at least so many; kept until they have."""
        kept = line.drawn
        if kept is None:
            kept = self._masks.rows(line.matrix, line.direction, rows)
        elif len(kept[1]) < rows:
            _, more = self._masks.rows(line.matrix, line.direction, rows - len(kept[1]))
            kept = kept[0], torch.cat([kept[1], more])
        line.drawn = kept
        return kept

    def _next_wanted(self) -> tuple[_PrefetchedStream, int] | None:
        """The first stream in the order of last time that has too few rows, and how many."""
        name = self._last
        for _ in range(len(self._lines)):
            name = None if name is None else self._follows.get(name)
            if name is None:
                return None
            line = self._lines[name]
            if line.missing:
                fits = self._held + line.missing * line.row_bytes <= self._room  # (4)
                return (line, line.missing) if fits else None
        return None

    def _wake(self) -> None:
        """Have the thread look again; it is begun when there is work. Under ``_changed``."""
        if self._thread is not None:
            self._changed.notify_all()
        elif not self._closed and self._failed is None and self._next_wanted() is not None:
            self._thread = threading.Thread(target=self._work, name="pads", daemon=True)
            self._thread.start()

    def _next(self) -> tuple[_PrefetchedStream, int] | None:
        """Wait for work; ``None`` when there is none for a while, and the thread ends."""
        with self._changed:
            while not self._closed and self._failed is None:
                found = None if self._needed else self._next_wanted()
                if found is not None:
                    return found
                if not self._changed.wait(_IDLE_SECONDS) and not self._needed:
                    break
            self._thread = None
            return None

    def _work(self) -> None:
        """The thread. An error waits in the stream, or in all of them, until rows are needed."""
        while (found := self._next()) is not None:
            line, _ = found
            with self._making:
                missing = line.missing  # some may have been made since
                if missing:
                    try:
                        self._make(line, missing)
                    except BaseException:  # noqa: S112  # (3) kept by _make
                        continue
