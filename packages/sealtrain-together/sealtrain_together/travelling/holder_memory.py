"""What a holder gave to a run: counted before it leaves, and remembered beyond its process.

Spec: travelling §6, *Memory*. Each line of the file proves itself, and those before it, by a key of
the holder's for the run; the brokers' anchor proves that no older file lies in its place.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Protocol

from pydantic import Field

from sealtrain.base.files import read_bounded, sync, system_failure, try_lock
from sealtrain.base.models import Hex64, StrictModel, load_json
from sealtrain.base.process_state import OneProcess
from sealtrain.errors import AlreadyExists, DataInvalid, LimitExceeded, UsageError
from sealtrain.sealing.errors import CheckpointRefused

if TYPE_CHECKING:
    from sealtrain.consortium.receipts import Anchor
    from sealtrain.sealing.datakey import DataKey

_MAX_FILE_BYTES, _MAX_LINE_BYTES = 1 << 28, 256
_Count = Annotated[int, Field(ge=0, le=1 << 53)]


class Write(StrictModel):
    """A write that a holder began; one of no bytes stands where a process of it began.

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
        self._process = OneProcess("what a holder gave")
        self._run_id, self._remember = run_id, remember
        self._reached = 0
        self._trips: dict[int, int] = {}
        self._ranges: list[tuple[int, int]] = []
        self._unsure: dict[int, tuple[int, int]] = {}
        """Ranges of trips of earlier processes: whether they went well, only the next ones tell."""
        for write in before:
            if write.start < write.end:
                self._forgive(write.after)
                self._came_to_nothing(write.start, write.end)
                self._count(write, _merge_ranges([*self._ranges, (write.start, write.end)]))
                self._trips[write.trip] = write.end - write.start
                self._unsure[write.trip] = (write.start, write.end)

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
            ForkRefused: Another process counts it.
        """
        self._process.require()
        self._expect(run_id)
        after = self._next_trip()
        if trip < after:
            raise DataInvalid(
                "this trip was served before, or one after it",
                got=trip,
                expected=f"{after} or later",
            )
        self._came_to_nothing(start, end)
        size, left = end - start, self.bounds.max_bytes - sum(self._trips.values())
        if size > left:
            raise LimitExceeded(
                "the orchestrator asks for more than this holder gives",
                got=f"{size} bytes",
                expected=f"at most {left}",
            )
        # A write that failed gave its bytes all the same, to an accelerator that says otherwise.
        leaving = _merge_ranges([*self._ranges, (start, end)])
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
        while self._next_trip() > trip:
            number, _ = self._trips.popitem()
            self._unsure.pop(number, None)

    def _next_trip(self) -> int:
        """One above the highest trip that counts: they are kept in their order."""
        return next(reversed(self._trips), -1) + 1

    def _came_to_nothing(self, start: int, end: int) -> None:
        """Bytes that are asked for again were not trained on, as far as an earlier process knew."""
        if not any(first < end and start < last for first, last in self._ranges):
            return  # as nearly always, and those are few
        for number, (first, last) in list(self._unsure.items()):
            if first < end and start < last:
                del self._unsure[number]
                self._trips[number] = 0

    def _expect(self, run_id: str) -> None:
        if run_id != self._run_id:
            raise DataInvalid(
                "the orchestrator speaks of another run",
                check="run",
                got=run_id,
                expected=self._run_id,
            )


class Anchoring(Protocol):
    """Has the brokers anchor a counter, of a trip, with a digest.

    Raises what they refused; where it waits, also ``BrokerUnreachable`` if they do not answer.
    """

    def __call__(self, counter: int, trip: int, digest: str, *, wait: bool) -> None:
        """Do it now, or behind what the caller does next."""


class GivenFile:
    """Keeps a holder's writes in its folder, and has the brokers anchor them.

    Args:
        path: Of the file.
        key: Of the holder for the run; the file's is derived from it.
        run_id: Of the run, 32 hex digits.
        every: Trips after which it is anchored anew.
        anchor: Has the brokers anchor.
    """

    def __init__(
        self,
        path: Path,
        key: DataKey,
        run_id: str,
        *,
        every: int,
        anchor: Anchoring,
    ) -> None:
        self._path, self._every, self._anchor = path, every, anchor
        self._key = key.derive("travel-given", run_id)
        self._lines, self._mac = 0, bytes(32)
        self._asked_line = self._asked_trip = 0
        self._file: BinaryIO | None = None
        self._process = OneProcess("the file of what a holder gave")

    def read(self, anchored: Anchor | None) -> list[Write]:
        """Writes of earlier processes of this holder, in their order.

        What was being written when a process or its machine died is dropped.

        Args:
            anchored: What the brokers have; ``None`` before the first write.

        Raises:
            CheckpointRefused: The file is gone, was altered, or an older one lies in its place.
            AlreadyExists: Another process of this holder has it.
        """
        self._file = self._path.open("ab")
        if not try_lock(self._file.fileno()):
            raise AlreadyExists(
                "another process of this holder runs in its folder",
                got=str(self._path.parent),
                hint="end that one first",
            )
        known, whole = 0 if anchored is None else anchored.counter, 0
        digest = ""
        writes: list[Write] = []
        there = read_bounded(self._path, _MAX_FILE_BYTES)
        for line in there.splitlines(keepends=True):
            write = self._prove(line)
            if write is None:
                break
            writes.append(write)
            whole += len(line)
            self._lines += 1
            if self._lines == known:
                digest = self._mac.hex()
        if anchored is not None and digest != anchored.digest:
            raise CheckpointRefused(
                "this holder does not know what it gave to the run",
                check="memory",
                got=f"{len(writes)} writes in {self._path.name}"
                if len(writes) < known
                else f"digest {digest}",
                expected=f"{known} writes or more, digest {anchored.digest}",
                hint="resume it in its folder, as it was left",
            )
        if whole < len(there):
            self._file.truncate(whole)
        return writes

    def begin(self) -> None:
        """Have the brokers know that this process begins. Once ``read``, and before any ``keep``.

        Raises:
            SealtrainError: They refuse it, or do not answer.
        """
        with _name_refusals():
            self._add(Write(trip=0, after=0, start=0, end=0), durable=True)
            sync(self._path.parent)
        self._asked_line = self._lines
        self._anchor(self._lines, 0, self._mac.hex(), wait=True)

    def keep(self, write: Write) -> None:
        """Add one, and have it anchored behind the next ones if that is due.

        Raises:
            StorageFailed: It cannot be written.
            SealtrainError: The brokers refused an earlier one.
        """
        lines, trips = self._lines + 1 - self._asked_line, write.trip - self._asked_trip
        due = max(lines, trips) >= self._every
        with _name_refusals():
            self._add(write, durable=due)
        if due:
            self._asked_line, self._asked_trip = self._lines, write.trip
            self._anchor(self._lines, write.trip, self._mac.hex(), wait=False)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _add(self, write: Write, *, durable: bool) -> None:
        self._process.require()  # a lock of a file is its children's too
        if self._file is None:
            raise UsageError("the file of what was given is not open", hint="read it first")
        self._mac = self._next(write)
        self._lines += 1
        line = _Line(**write.to_dict(), mac=self._mac.hex())
        self._file.write(line.to_bytes() + b"\n")
        self._file.flush()  # outlives the process; what is anchored outlives the machine
        if durable:
            os.fsync(self._file.fileno())

    def _prove(self, line: bytes) -> Write | None:
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


@contextmanager
def _name_refusals() -> Iterator[None]:
    """Name what the system refuses."""
    try:
        yield
    except OSError as fault:
        raise (system_failure(fault) or fault) from fault


def _merge_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in as few ranges as there can be, in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
