"""Where data, keys and the model went in a run, drawn as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sealtrain.manifest.markup import Html, join, tag
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.sections import missing
from sealtrain.manifest.verify import Facts

_WIDTH, _BOX, _STEP, _TOP = 640, 34, 44, 12
_LEFT, _MIDDLE, _RIGHT = 8, 236, 464
_SIDE = 168
_NARROW, _GAP = 356, 22
_MAX_DRAWN = 8
_MAX_TEXT = 24

Item = tuple[str, str]
"""A name, and what it is."""


def draw_flow(predicate: Predicate, facts: Facts) -> Html:
    """Owners' sealed data and the brokers' keys on the left, the guest, the recipients."""
    heading = tag("h2", "Where the data went")
    if facts.datasets is None or facts.brokers is None:
        return tag("section", heading, missing())
    sources = [(f"{dataset.owner}/{dataset.name}", "sealed data") for dataset in facts.datasets]
    sources += [(f"broker {broker[:8]}", "keys") for broker in sorted(set(facts.brokers))]
    stated = predicate.outputs
    targets = [(name, "sealed model") for name in stated.recipients]
    if stated.dataset is not None:
        targets = [(f"guests of {stated.dataset.compose_hash[:8]}", "sealed model")]
    targets.append(("the release policy", f"{len(predicate.run.metrics)} metrics"))
    left, right = _shorten_items(sources), _shorten_items(targets)
    rows = max(len(left), len(right))
    height = 2 * _TOP + rows * _STEP
    middle = height / 2
    parts = [
        *(_place(_LEFT, i, len(left), height, box, from_left=True) for i, box in enumerate(left)),
        *(
            _place(_RIGHT, i, len(right), height, box, from_left=False)
            for i, box in enumerate(right)
        ),
        *_guest(_MIDDLE, middle - 30, predicate.deployment.platform),
    ]
    pictures = [
        _picture(parts, "wide", _WIDTH, height),
        _stack(left, right, predicate.deployment.platform),
    ]
    return tag("section", heading, tag("figure", *pictures))


def _picture(parts: Sequence[Html], shape: str, width: float, height: float) -> Html:
    return tag(
        "svg",
        *parts,
        class_=f"flow {shape}",
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label="Sealed data and keys go into the guest; sealed models and metrics leave it.",
    )


def _stack(above: list[Item], below: list[Item], platform: str) -> Html:
    """The same from top to bottom, in two columns: for a phone."""
    middle = _TOP + math.ceil(len(above) / 2) * _STEP + _GAP
    under = middle + 60 + _GAP
    centre = _NARROW / 2
    parts = [
        *_in_two_columns(above, _TOP),
        tag("path", class_="arrow", d=f"M{centre} {middle - _GAP}V{middle}"),
        *_guest(centre - _SIDE / 2, middle, platform),
        tag("path", class_="arrow", d=f"M{centre} {middle + 60}V{under}"),
        *_in_two_columns(below, under),
    ]
    return _picture(parts, "narrow", _NARROW, under + math.ceil(len(below) / 2) * _STEP + _TOP)


def _in_two_columns(items: list[Item], top: float) -> list[Html]:
    found: list[Html] = []
    for index, item in enumerate(items):
        alone = index == len(items) - 1 and index % 2 == 0
        left = (_NARROW - _SIDE) / 2 if alone else (index % 2) * (_NARROW - _SIDE)
        found += _box(left, top + (index // 2) * _STEP + _STEP / 2, item)
    return found


def _guest(left: float, top: float, platform: str) -> list[Html]:
    return [
        tag("rect", class_="guest", x=left, y=top, width=_SIDE, height=60, rx=6),
        _text(left + _SIDE / 2, top + 24, f"guest on {platform}"),
        _text(left + _SIDE / 2, top + 42, "data is in the clear here only", note=True),
    ]


def _box(left: float, y: float, item: Item) -> list[Html]:
    name, note = item
    return [
        tag("rect", class_="box", x=left, y=y - _BOX / 2, width=_SIDE, height=_BOX, rx=4),
        _text(left + _SIDE / 2, y - 2, name),
        _text(left + _SIDE / 2, y + 12, note, note=True),
    ]


def _shorten_items(items: list[Item]) -> list[Item]:
    if len(items) <= _MAX_DRAWN:
        return items
    kept = items[: _MAX_DRAWN - 1]
    return [*kept, (f"{len(items) - len(kept)} more", "listed below")]


def _place(
    left: float, index: int, count: int, height: float, item: Item, *, from_left: bool
) -> Html:
    y = height / 2 + (index - (count - 1) / 2) * _STEP
    start, end = (left + _SIDE, _MIDDLE) if from_left else (_MIDDLE + _SIDE, left)
    first, last = (y, height / 2) if from_left else (height / 2, y)
    bend = (start + end) / 2
    return join(
        (
            tag(
                "path",
                class_="arrow",
                d=f"M{start} {first:.1f}C{bend} {first:.1f} {bend} {last:.1f} {end} {last:.1f}",
            ),
            *_box(left, y, item),
        )
    )


def _text(x: float, y: float, text: str, *, note: bool = False) -> Html:
    shown = text if note or len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
    return tag(
        "text", shown, x=x, y=f"{y:.1f}", text_anchor="middle", class_="note" if note else None
    )
