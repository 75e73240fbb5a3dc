"""Mermaid's flowcharts as SVG: the site's drawings are drawn when it is made, not by its pages.

Of Mermaid it reads what our pages use: ``flowchart TD``, nodes ``name[text]`` on a street from the
top down, nodes ``name([text])`` beside it, arrows ``-->`` along the street and ``-.->`` elsewhere.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

_BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NODE = re.compile(r"^(\w+)(\(\[|\[)(.+?)(?:\]\)|\])$")
_ARROW = re.compile(r"^(\w+) (-->|-\.->) (\w+)$")

_STREET, _SIDE, _GAP, _EDGE = 196, 150, 44, 30
_LINE, _PADDING, _STEP = 16, 9, 20
_MOST_LETTERS = 26


class DrawingUnknown(ValueError):
    """A line of a drawing says what is not drawn here."""


@dataclass(slots=True)
class _Box:
    name: str
    lines: list[str]
    beside: bool
    x: float = 0
    y: float = 0

    @property
    def width(self) -> int:
        return _SIDE if self.beside else _STREET

    @property
    def height(self) -> int:
        return 2 * _PADDING + _LINE * len(self.lines)

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(slots=True)
class _Drawing:
    boxes: dict[str, _Box] = field(default_factory=dict)
    arrows: list[tuple[str, str, bool]] = field(default_factory=list)


def with_drawings(page: str) -> str:
    """A page with each of its flowcharts as inline SVG.

    Raises:
        DrawingUnknown: A flowchart has a line that is not drawn here.
    """
    return _BLOCK.sub(lambda found: svg(found[1]), page)


def svg(source: str) -> str:
    """A flowchart as SVG, in the colours of the page around it.

    Args:
        source: Mermaid's text.

    Raises:
        DrawingUnknown: A line says what is not drawn here.
    """
    drawing = _read(source)
    street = [box for box in drawing.boxes.values() if not box.beside]
    beside = [box for box in drawing.boxes.values() if box.beside]
    height = max(_stack(street, 4), _stack(beside, _STREET + 4 + _GAP)) + 4
    width = 4 + _STREET + (_GAP + _SIDE + _EDGE if beside else 0) + 4
    parts = [
        *(
            _arrow(drawing.boxes[first], drawing.boxes[last], dotted)
            for first, last, dotted in drawing.arrows
        ),
        *(_box(box) for box in drawing.boxes.values()),
    ]
    words = "; ".join(" ".join(box.lines) for box in (*street, *beside))
    return "\n".join(
        [
            f'<svg class="drawing" viewBox="0 0 {width} {height:g}" width="{width}" role="img" '
            f'aria-label="{html.escape(words)}">',
            '<defs><marker id="arrow-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
            *parts,
            "</svg>",
        ]
    )


def _read(source: str) -> _Drawing:
    drawing = _Drawing()
    first, *lines = [line.strip() for line in source.strip().splitlines()]
    if first != "flowchart TD":
        raise DrawingUnknown(first)
    for line in filter(None, lines):
        if node := _NODE.match(line):
            drawing.boxes[node[1]] = _Box(node[1], _wrap(node[3]), beside=node[2] == "([")
        elif (arrow := _ARROW.match(line)) is not None:
            drawing.arrows.append((arrow[1], arrow[3], arrow[2] != "-->"))
        else:
            raise DrawingUnknown(line)
    if unknown := [
        name for arrow in drawing.arrows for name in arrow[:2] if name not in drawing.boxes
    ]:
        raise DrawingUnknown(unknown[0])
    return drawing


def _wrap(text: str) -> list[str]:
    """The words between middle dots, as many on a line as fit."""
    lines: list[str] = []
    for word in text.split(" · "):
        if lines and len(f"{lines[-1]} · {word}") <= _MOST_LETTERS:
            lines[-1] += f" · {word}"
        else:
            lines.append(word)
    return lines


def _stack(boxes: list[_Box], x: float) -> float:
    """Place boxes below each other; returns where the last one ends."""
    y = 4.0
    for box in boxes:
        box.x, box.y = x, y
        y += box.height + _STEP
    return y - _STEP


def _box(box: _Box) -> str:
    kind = "beside" if box.beside else "street"
    corner = box.height / 2 if box.beside else 4
    x = box.x + box.width / 2
    lines = [
        f'<text x="{x:g}" y="{box.y + _PADDING + _LINE * (at + 0.75):g}">{html.escape(line)}</text>'
        for at, line in enumerate(box.lines)
    ]
    return (
        f'<g class="{kind}"><rect x="{box.x:g}" y="{box.y:g}" width="{box.width}" '
        f'height="{box.height}" rx="{corner:g}"/>{"".join(lines)}</g>'
    )


def _arrow(first: _Box, last: _Box, dotted: bool) -> str:
    if first.beside or last.beside:
        begin = first.x + (first.width if first.beside == last.beside or not first.beside else 0)
        end = last.x + (last.width if first.beside or not last.beside else 0)
        bend = begin + _EDGE - 6 if first.beside == last.beside else (begin + end) / 2
        curve = [(bend, first.middle), (bend, last.middle), (end, last.middle)]
        path = f"M{begin:g} {first.middle:g}C" + " ".join(f"{x:g} {y:g}" for x, y in curve)
    else:
        x = first.x + first.width / 2
        path = f"M{x:g} {first.y + first.height:g}V{last.y:g}"
    kind = "dotted" if dotted else "solid"
    return f'<path class="{kind}" d="{path}" marker-end="url(#arrow-head)"/>'
