"""Released metrics of a run as curves, kept at a bounded size however long the run is.

A curve is a row of buckets of equally many points, each with its smallest and largest value, so
that no spike is lost. When there are too many buckets, neighbours become one: a further point costs
the same at the millionth as at the first, and an update reads only what was appended.
See ``spec/console.md`` §2.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sealtrain.errors import DataInvalid, StorageFailed

_MOST_BUCKETS: Final = 600
_MOST_METRICS: Final = 64
_MAX_LINE_BYTES: Final = 16 << 10
_MAX_READ_BYTES: Final = 64 << 20
"""Of one update; the next goes on from there."""
_MOST_FILES: Final = 32

_Bucket = tuple[int, float, int, float]
"""Step and value of the smallest, then of the largest."""


@dataclass(slots=True)
class Curve:
    """One metric over the steps.

    Attributes:
        count: Finite points so far.
        last: Newest value; ``None`` where it was not finite.
    """

    count: int = 0
    last: float | None = None
    _stride: int = 1
    _full: list[_Bucket] = field(default_factory=list)
    _open: _Bucket | None = None
    _in_open: int = 0

    def add(self, step: int, value: float | None) -> None:
        """Take the next point."""
        self.last = value
        if value is None:
            return
        self.count += 1
        point = (step, value, step, value)
        self._open = point if self._open is None else _join_buckets(self._open, point)
        self._in_open += 1
        if self._in_open < self._stride:
            return
        self._full.append(self._open)
        self._open, self._in_open = None, 0
        if len(self._full) >= _MOST_BUCKETS:
            pairs = zip(self._full[::2], self._full[1::2], strict=True)
            self._full = [_join_buckets(first, second) for first, second in pairs]
            self._stride *= 2

    def points(self) -> tuple[list[int], list[float]]:
        """At most about twice as many points as buckets: steps that rise, and their values."""
        steps: list[int] = []
        values: list[float] = []
        for low_step, low, high_step, high in self._buckets():
            pair = sorted({(low_step, low), (high_step, high)})
            steps += [step for step, _ in pair]
            values += [value for _, value in pair]
        return steps, values

    def to_dict(self) -> dict[str, Any]:
        """What a chart draws."""
        steps, values = self.points()
        return {"steps": steps, "values": values, "last": self.last, "count": self.count}

    def _buckets(self) -> Iterator[_Bucket]:
        yield from self._full
        if self._open is not None:
            yield self._open


def _join_buckets(first: _Bucket, second: _Bucket) -> _Bucket:
    low = first[:2] if first[1] <= second[1] else second[:2]
    high = first[2:] if first[3] >= second[3] else second[2:]
    return (*low, *high)


@dataclass(slots=True)
class CurveFile:
    """A file of released metrics that grows.

    Attributes:
        path: Of the file.
        curves: By metric.
        step: Newest step; 0 before the first.
        left_out: Lines that say no metrics.
    """

    path: Path
    curves: dict[str, Curve] = field(default_factory=dict)
    step: int = 0
    left_out: int = 0
    _identity: tuple[int, int] | None = None
    _offset: int = 0
    _rest: bytes = b""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def update(self) -> None:
        """Read what was appended since the last time; another file is read from its beginning.

        Raises:
            StorageFailed: The file cannot be read.
        """
        with self._lock:
            try:
                with self.path.open("rb") as file:
                    self._follow(file)
            except FileNotFoundError:
                self._begin(None)
            except OSError as error:
                raise StorageFailed(
                    f"{self.path.name} cannot be read",
                    check="file",
                    got=error.strerror or type(error).__name__,
                ) from error

    def to_dict(self) -> dict[str, Any]:
        """What a page draws of it."""
        with self._lock:
            drawn = {name: curve.to_dict() for name, curve in sorted(self.curves.items())}
            return {"step": self.step, "left_out": self.left_out, "curves": drawn}

    def _begin(self, identity: tuple[int, int] | None) -> None:
        self.curves, self.step, self.left_out = {}, 0, 0
        self._identity, self._offset, self._rest = identity, 0, b""

    def _follow(self, file: Any) -> None:
        there = os.fstat(file.fileno())
        identity = (there.st_dev, there.st_ino)
        if identity != self._identity or there.st_size < self._offset:
            self._begin(identity)
        file.seek(self._offset)
        data = file.read(_MAX_READ_BYTES)
        self._offset += len(data)
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        if len(rest) > _MAX_LINE_BYTES:
            self.left_out += 1
            rest = rest[:1]  # what follows up to the next end of line is left out too
        self._rest = rest

    def _take(self, line: bytes) -> None:
        try:
            step, values = _parse_line(line)
        except DataInvalid:
            self.left_out += 1
            return
        if step <= self.step and self.curves:
            return  # measured again after a resume
        self.step = step
        for name, value in values.items():
            if name in self.curves or len(self.curves) < _MOST_METRICS:
                self.curves.setdefault(name, Curve()).add(step, value)


def _parse_line(line: bytes) -> tuple[int, Mapping[str, float | None]]:
    """Step and values of a line.

    Raises:
        DataInvalid: It says no metrics.
    """
    try:
        found = json.loads(line) if len(line) <= _MAX_LINE_BYTES else None
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"step": int(step), "values": dict(values), **rest} if (
            not rest and 0 <= step < 1 << 53
        ):
            if len(values) <= _MOST_METRICS and all(map(_is_value, values.values())):
                return step, values
    raise DataInvalid("a line of released metrics is none", check="metrics")


def _is_value(value: object) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 1 << 1000
    return value is None or (isinstance(value, float) and math.isfinite(value))


class Curves:
    """The files of released metrics that pages show, the ones shown last."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, CurveFile] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, path: Path) -> CurveFile:
        """The curves of a file, up to date.

        Raises:
            StorageFailed: The file cannot be read.
        """
        with self._lock:
            found = self._files.setdefault(path, CurveFile(path))
            self._files.move_to_end(path)
            if len(self._files) > _MOST_FILES:
                self._files.popitem(last=False)
        found.update()
        return found
