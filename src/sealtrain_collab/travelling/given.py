"""What a holder gave to a run: counted before it leaves, and remembered beyond its process.

Spec: travelling §6, *Memory*. Each line of the file proves itself, and those before it, by a key of
the holder's for the run; the brokers' anchor proves that no older file lies in its place.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

from pydantic import Field

from sealtrain.base.files import read_bounded, sync
from sealtrain.base.models import Hex64, StrictModel, load_json
from sealtrain.errors import CheckpointRefused, DataInvalid, LimitExceeded

if TYPE_CHECKING:
    from sealtrain.consortium.receipts import Anchor
    from sealtrain.sealing.datakey import DataKey

__all__ = ["GivenFile", "GivenTrips", "GivingBounds", "Write"]

_MAX_FILE_BYTES, _MAX_LINE_BYTES = 1 << 28, 256
_Count = Annotated[int, Field(ge=0, le=1 << 53)]


class Write(StrictModel):
    """A write that a holder began.

    Attributes:
        trip: Number of the trip.
        after: One above the trip before it that counts; those between them were forgiven.
        start, end: Which of its bytes, ``end`` excluded.
    """

    trip: _Count
    after: _Count
    start: _Count
    end: _Count


class _Line(Write):
    mac: Hex64


@dataclass(frozen=True, slots=True, kw_only=True)
class GivingBounds:
    """How much a holder gives, and how long it waits.

    Attributes:
        max_bytes: Most it gives to one run, whatever it is asked.
        timeout: Seconds the accelerator may take for a write.
        patience: Seconds an orchestrator may be silent.
        forgives: Most trips of a run that may be lost with an orchestrator.
    """

    max_bytes: int
    timeout: float
    patience: float
    forgives: int = 8


class GivenTrips:
    """Counts what one run gets, whatever an orchestrator says.

    Args:
        run_id: The run, 32 hex digits.
        bounds: How much it gets, and how long its holder waits.
        remember: Keeps a write before it begins; raises to keep it from beginning.
        before: Writes of earlier processes of this holder, in their order.
    """

    def __init__(
        self,
        run_id: str,
        bounds: GivingBounds,
        *,
        remember: Callable[[Write], None] = lambda _write: None,
        before: Iterable[Write] = (),
    ) -> None:
        self.bounds = bounds
        self._run_id, self._remember = run_id, remember
        self._reached = 0
        self._trips: dict[int, int] = {}
        self._ranges: list[tuple[int, int]] = []
        for write in before:
            self._forgive(write.after)
            self._count(write, _merged([*self._ranges, (write.start, write.end)]))
            self._trips[write.trip] = write.end - write.start

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each chunk that it gave and that was not forgiven."""
        return tuple(size for size in self._trips.values() if size)

    def goes_on(self, run_id: str, trip: int) -> None:
        """An orchestrator begins at a trip, or takes over: from it on nothing given counts.

        Raises:
            DataInvalid: It is of another run.
            CheckpointRefused: More came to nothing than can be lost with an orchestrator, by the
                highest trip that was ever given.
        """
        self._expect(run_id)
        missing = self._reached - trip
        if missing > self.bounds.forgives:
            raise CheckpointRefused(
                "the orchestrator goes on from an older state than can be the newest",
                check="trips",
                got=f"{missing} trips unknown to it",
                expected=f"at most {self.bounds.forgives}",
                hint="the store holds newer sealed states back; use the newest",
            )
        self._forgive(trip)

    def begins(self, run_id: str, trip: int, start: int, end: int) -> None:
        """Count a write of the holder's bytes ``start`` to ``end``, and remember it.

        Whatever becomes of it, this trip is used up.

        Raises:
            DataInvalid: A trip that it served before, or one before that, or of another run.
            LimitExceeded: More than this holder gives.
        """
        self._expect(run_id)
        after = max(self._trips, default=-1) + 1
        if trip < after:
            raise DataInvalid(
                "this trip was served before, or one after it",
                got=trip,
                expected=f"{after} or later",
            )
        size, left = end - start, self.bounds.max_bytes - sum(self._trips.values())
        if size > left:
            raise LimitExceeded(
                "the orchestrator asks for more than this holder gives",
                got=f"{size} bytes",
                expected=f"at most {left}",
            )
        # A write that failed gave its bytes all the same, to an accelerator that says otherwise.
        leaving = _merged([*self._ranges, (start, end)])
        if sum(last - first for first, last in leaving) > self.bounds.max_bytes:
            raise LimitExceeded(
                "the orchestrator asks for other bytes than those that this holder has given",
                got=f"{size} bytes from {start}",
                expected=f"at most {self.bounds.max_bytes} different bytes",
            )
        write = Write(trip=trip, after=after, start=start, end=end)
        self._count(write, leaving)
        self._remember(write)

    def wrote(self, trip: int, size: int) -> None:
        """The accelerator has a receipt for so many bytes."""
        self._trips[trip] = size

    def _count(self, write: Write, leaving: list[tuple[int, int]]) -> None:
        self._ranges = leaving
        self._reached = max(self._reached, write.trip + 1)
        self._trips[write.trip] = 0

    def _forgive(self, trip: int) -> None:
        for number in [one for one in self._trips if one >= trip]:
            del self._trips[number]

    def _expect(self, run_id: str) -> None:
        if run_id != self._run_id:
            raise DataInvalid(
                "the orchestrator speaks of another run",
                check="run",
                got=run_id,
                expected=self._run_id,
            )


class GivenFile:
    """Keeps a holder's writes in its folder, and has the brokers anchor them.

    Args:
        path: Of the file.
        key: Of the holder for the run; the file's is derived from it.
        run_id: Of the run, 32 hex digits.
        every: Trips after which it is anchored anew.
        anchor: Has the brokers anchor a counter, of a trip, with a digest; raises if they refuse.
    """

    def __init__(
        self,
        path: Path,
        key: DataKey,
        run_id: str,
        *,
        every: int,
        anchor: Callable[[int, int, str], None],
    ) -> None:
        self._path, self._every, self._anchor = path, every, anchor
        self._key = key.derive("travel-given", run_id)
        self._lines, self._mac = 0, bytes(32)
        self._anchored: int | None = None
        self._file: BinaryIO | None = None

    def read(self, anchored: Anchor | None) -> list[Write]:
        """Writes of earlier processes of this holder, in their order.

        What was being written when a process or its machine died is dropped.

        Args:
            anchored: What the brokers have; ``None`` before the first write.

        Raises:
            CheckpointRefused: The file is gone, was altered, or an older one lies in its place.
        """
        known, whole = 0 if anchored is None else anchored.counter, 0
        digests = {0: "00" * 32}
        writes: list[Write] = []
        there = read_bounded(self._path, _MAX_FILE_BYTES) if self._path.is_file() else b""
        for line in there.splitlines(keepends=True):
            write = self._proven(line)
            if write is None:
                break
            writes.append(write)
            whole += len(line)
            self._lines += 1
            if self._lines == known:
                digests[known] = self._mac.hex()
        if anchored is not None and digests.get(known) != anchored.digest:
            raise CheckpointRefused(
                "this holder does not know what it gave to the run",
                check="memory",
                got=f"{len(writes)} writes in {self._path.name}"
                if len(writes) < known
                else f"digest {digests[known]}",
                expected=f"{known} writes or more, digest {anchored.digest}",
                hint="resume it in the folder it began in, as it was left; others go on without it",
            )
        if whole < len(there):
            os.truncate(self._path, whole)
        return writes

    def keep(self, write: Write) -> None:
        """Add one, and have it anchored if that is due.

        Raises:
            SealtrainError: The brokers refuse it.
        """
        if self._file is None:
            self._file = self._path.open("ab")
        self._lines += 1
        self._mac = self._next(write)
        line = _Line(**write.to_dict(), mac=self._mac.hex())
        self._file.write(line.to_bytes() + b"\n")
        self._file.flush()  # outlives the process; what is anchored outlives the machine
        if self._anchored is None or write.trip - self._anchored >= self._every:
            os.fsync(self._file.fileno())
            if self._anchored is None:
                sync(self._path.parent)
            self._anchor(self._lines, write.trip, self._mac.hex())
            self._anchored = write.trip

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _proven(self, line: bytes) -> Write | None:
        """A line that follows those before it; ``None`` if it does not."""
        if len(line) > _MAX_LINE_BYTES or not line.endswith(b"\n"):
            return None
        try:
            found = load_json(
                _Line, line[:-1], DataInvalid, self._path.name, max_bytes=_MAX_LINE_BYTES
            )
        except DataInvalid:
            return None
        write = Write.model_validate(found.model_dump(exclude={"mac"}))
        mac = self._next(write)
        if not hmac.compare_digest(mac.hex(), found.mac):
            return None
        self._mac = mac
        return write

    def _next(self, write: Write) -> bytes:
        return self._key.mac(self._mac + write.to_bytes())


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in as few ranges as there can be, in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
