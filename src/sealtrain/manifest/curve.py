"""A metric over the steps of a run, or of several, as inline SVG: no script, image or font."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sealtrain.manifest.markup import Html, join, tag

Points = Sequence[tuple[int, float | None]]
_WIDTH, _HEIGHT = 640, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 12, 28
_MAX_DRAWN = 600
COLOURS = 8
"""Lines of so many runs look different; the next begin anew."""
_LARGEST = 1e300
"""Largest size of a value that is drawn: the difference of two stays a number."""
_SMALLEST = 1e-300
"""Smallest difference of two values that is still drawn: a quarter of less may be zero."""


def draw_curve(points: Points, *, label: str, marks: Sequence[int] = ()) -> Html | None:
    """Line chart of one metric.

    Args:
        points: (step, value) with rising steps; ``None`` is a value that was not finite and
            interrupts the line.
        label: Name of the metric, for screen readers.
        marks: Steps to mark with a vertical line (resumes).

    Returns:
        An ``svg`` element, ``None`` when fewer than two values are finite.
    """
    points = _drawable(points)
    finite = _finite(points)
    if len(finite) < 2:
        return None
    frame = _frame_around(finite)
    resumed = [
        tag(
            "line",
            class_="mark",
            x1=_n(frame.across(s)),
            x2=_n(frame.across(s)),
            y1=_TOP,
            y2=_HEIGHT - _BOTTOM,
        )
        for s in marks
        if frame.first <= s <= frame.last
    ]
    description = (
        f"{label} from {_short(finite[0][1])} at step {frame.first} to {_short(finite[-1][1])} "
        f"at step {frame.last}"
    )
    return _chart(description, frame, resumed, [_draw(points, finite, frame, "")])


def draw_curves(runs: Sequence[Points], *, label: str) -> Html | None:
    """Line chart of one metric of several runs, on the same axes.

    Args:
        runs: The points of each run, as of ``draw_curve``; a run without two finite values has no
            line. The line of number n has the class ``run-n``, counted from 0 and modulo
            ``COLOURS``.
        label: Name of the metric, for screen readers.

    Returns:
        An ``svg`` element, ``None`` when no run has two finite values.
    """
    shown = [
        (number, points, finite)
        for number, points in enumerate(map(_drawable, runs))
        if len(finite := _finite(points)) > 1
    ]
    if not shown:
        return None
    frame = _frame_around([point for _, _, finite in shown for point in finite])
    lines = [
        _draw(points, finite, frame, f" run-{number % COLOURS}") for number, points, finite in shown
    ]
    described = f"{label} of {len(shown)} runs, step {frame.first} to {frame.last}"
    return _chart(described, frame, [], lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The axes of a chart."""

    first: int
    last: int
    low: float
    high: float
    ticks: Sequence[float]

    def across(self, step: float) -> float:
        part = (step - self.first) / max(self.last - self.first, 1)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def up(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)


def _finite(points: Points) -> list[tuple[int, float]]:
    return [(step, value) for step, value in points if value is not None]


def _drawable(points: Points) -> Points:
    """The points, with a gap where a value is too large to be drawn."""
    return [
        (step, value if value is not None and abs(value) <= _LARGEST else None)
        for step, value in points
    ]


def _frame_around(finite: Sequence[tuple[int, float]]) -> _Frame:
    low, high = min(value for _, value in finite), max(value for _, value in finite)
    ticks = _ticks(low, high)
    return _Frame(
        first=min(step for step, _ in finite),
        last=max(step for step, _ in finite),
        low=min(low, ticks[0]),
        high=max(high, ticks[-1]),
        ticks=ticks,
    )


def _draw(
    points: Points, finite: Sequence[tuple[int, float]], frame: _Frame, run: str
) -> tuple[Html, Html]:
    """The line of one run and its end."""
    end_step, end = finite[-1]
    return (
        tag("path", class_=f"curve{run}", d=_path(points, frame.across, frame.up)),
        tag(
            "circle", class_=f"end{run}", cx=_n(frame.across(end_step)), cy=_n(frame.up(end)), r=3.5
        ),
    )


def _chart(
    description: str, frame: _Frame, marks: Sequence[Html], lines: Sequence[tuple[Html, Html]]
) -> Html:
    grid = [
        join(
            (
                tag(
                    "line",
                    class_="grid",
                    x1=_LEFT,
                    x2=_WIDTH - _RIGHT,
                    y1=_n(frame.up(t)),
                    y2=_n(frame.up(t)),
                ),
                tag(
                    "text",
                    _short(t),
                    class_="tick",
                    x=_LEFT - 8,
                    y=_n(frame.up(t) + 4),
                    text_anchor="end",
                ),
            )
        )
        for t in frame.ticks
    ]
    steps = [
        tag(
            "text",
            f"{s:,}",
            class_="tick",
            x=_n(frame.across(s)),
            y=_HEIGHT - 8,
            text_anchor=anchor,
        )
        for s, anchor in _step_labels(frame.first, frame.last)
    ]
    return tag(
        "svg",
        tag("title", description),
        *grid,
        *steps,
        *marks,
        *(part for line in lines for part in line),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        class_="chart",
    )


def _path(points: Points, across: Callable[[float], float], up: Callable[[float], float]) -> str:
    commands, pen_down = [], False
    for step, value in _thin_out(points):
        if value is None:
            pen_down = False
            continue
        commands.append(f"{'L' if pen_down else 'M'}{_n(across(step))} {_n(up(value))}")
        pen_down = True
    return "".join(commands)


def _thin_out(points: Points) -> Points:
    """At most about ``_MAX_DRAWN`` points; extremes of every bucket stay, so no spike is lost."""
    if len(points) <= _MAX_DRAWN:
        return points
    size = math.ceil(len(points) * 2 / _MAX_DRAWN)
    kept: list[tuple[int, float | None]] = [points[0]]
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        finite = [(step, value) for step, value in bucket if value is not None]
        if not finite:
            kept.append(bucket[0])
            continue
        extremes = {
            min(finite, key=lambda point: point[1]),
            max(finite, key=lambda point: point[1]),
        }
        kept.extend(sorted(extremes))
    kept.append(points[-1])
    return kept


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round values that enclose ``low`` to ``high``."""
    if not high - low > max(abs(high) * 1e-9, _SMALLEST):
        low, high = low - max(abs(low), 1.0) * 0.5, high + max(abs(high), 1.0) * 0.5
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [index * step for index in range(first, last + 1)]


def _step_labels(first: int, last: int) -> list[tuple[int, str]]:
    middle = (first + last) // 2
    labels = [(first, "start"), (middle, "middle"), (last, "end")]
    return [labels[0], labels[2]] if middle in {first, last} else labels


def _short(value: float) -> str:
    return f"{value:.4g}"


def _n(value: float) -> str:
    return f"{value:.1f}"
