"""Runs side by side as HTML: a table, curves on shared axes, differences.

``render`` makes one self-contained page, which loads nothing and has no script; the console puts
the same sections on a page of its own. All text passes through ``markup.tag``. Each run stands
there with the word for whether its manifest was verified.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Final

from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.base.files import atomic_write
from sealtrain.base.version import VERSION
from sealtrain.manifest.comparison import ComparedRun, Comparison
from sealtrain.manifest.curve import COLOURS, draw_curves
from sealtrain.manifest.markup import Html, Part, tag
from sealtrain.manifest.predicate import SIMULATED_MARKER
from sealtrain.manifest.sections import table
from sealtrain.sealing.trainedmodel import RUN_MANIFEST

MAX_CURVES: Final = 12
WORDS: Final = {"verified": "verified", "refused": "refused", "not-verified": "not verified"}


def render(comparison: Comparison, *, now: int | None = None) -> str:
    """The page as text, UTF-8 when written.

    Args:
        comparison: From ``comparison.compare_runs``.
        now: Seconds since 1970, for the foot of the page; the system's clock when ``None``.
    """
    style = Html(_own("look.css") + _own("report.css") + _own("comparison.css"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", "Runs side by side"),
        tag("style", style),
    )
    body: list[Part] = [
        tag("p", "sealtrain run compare", class_="kicker"),
        tag("h1", f"{len(comparison.runs)} runs side by side"),
        *sections_of(comparison, advice="Name a trust file (--trust)."),
        _footer(system_clock() if now is None else now),
    ]
    page = tag("html", head, tag("body", tag("main", *body)), lang="en")
    return f"<!doctype html>\n{page}\n"


def sections_of(
    comparison: Comparison, *, advice: str, href: Callable[[ComparedRun], str] | None = None
) -> list[Part]:
    """What every page of a comparison has below its heading.

    Args:
        comparison: From ``comparison.compare_runs``.
        advice: What a reader does about manifests that were not verified.
        href: Where a run has a page of its own; ``None`` where none has.
    """
    return [
        *_warnings(comparison, advice),
        tag("section", tag("h2", "Runs"), _runs(comparison, href)),
        *_curves(comparison),
        _differences(comparison),
    ]


def write_page(comparison: Comparison, out: Path) -> None:
    """Write the page (0600), whole or not at all; an earlier one is replaced."""
    atomic_write(out, render(comparison).encode(), mode=0o600, overwrite=True)


def name_of(run: ComparedRun) -> str:
    """The first characters of a run's id, and its recipe; the folder of a refused one."""
    if run.predicate is None:
        return (run.place if run.place.name != RUN_MANIFEST else run.place.absolute().parent).name
    recipe = run.recipe.get("name")
    said = f" {recipe}" if isinstance(recipe, str) else ""
    return f"{run.predicate.run.run_id[:8]}{said}"


def number_text(value: float | None) -> str:
    """A metric's value in a table."""
    return "not finite" if value is None else f"{value:.6g}"


def _own(name: str) -> str:
    return files("sealtrain.manifest").joinpath(name).read_text("utf-8")


def _warnings(comparison: Comparison, advice: str) -> list[Part]:
    found: list[Part] = []
    if any(run.simulated for run in comparison.runs):
        found.append(tag("div", tag("p", SIMULATED_MARKER, class_="word"), class_="verdict open"))
    refused = sum(run.verdict == "refused" for run in comparison.runs)
    if refused:
        text = f"{refused} refused: their numbers are left out."
        found.append(tag("div", tag("p", text), class_="verdict refused"))
    if any(run.verdict == "not-verified" for run in comparison.runs):
        text = f"Not verified: these are the words of files. {advice}"
        found.append(tag("div", tag("p", text), class_="verdict unknown"))
    return found


def _swatch(number: int) -> Html:
    return tag("span", class_=f"swatch run-{number % COLOURS}", aria_hidden="true")


def _verdict(run: ComparedRun) -> Html:
    kinds = {"verified": "warning" if run.weak else "good", "refused": "bad"}
    words: list[Part] = [WORDS[run.verdict]]
    if run.verdict in kinds:
        words = [tag("b", *words)]
    if run.verdict == "refused":
        words += [" ", tag("code", run.code)]
    elif run.code is not None:
        words.append(": no trust file names its recipe")
    if run.simulated:
        words.append(", simulated")
    kind = kinds.get(run.verdict, "soft")
    return tag("span", *words, class_=kind, data_verdict=run.verdict, data_code=run.code)


def _runs(comparison: Comparison, href: Callable[[ComparedRun], str] | None) -> Html:
    metrics = comparison.metrics
    rows: list[tuple[Part, ...]] = []
    for number, run in enumerate(comparison.runs):
        said = run.predicate
        name: Part = name_of(run)
        if href is not None:
            name = tag("a", name, href=href(run))
        rows.append(
            (
                tag("span", _swatch(number), name),
                _verdict(run),
                "" if said is None else said.run.finished_at,
                "" if said is None else f"{said.run.steps:,}",
                "" if said is None else f"{said.compute.wall_s:,.0f}",
                "" if run.epsilon is None else f"{run.epsilon:.4g}",
                *(
                    number_text(run.metrics[name]) if name in run.metrics else ""
                    for name in metrics
                ),
            )
        )
    columns = ("Run", "Manifest", "Finished", "Steps", "Seconds", "Epsilon", *metrics)
    return table(columns, rows, numbers=range(3, len(columns)), label="Runs")


def _curves(comparison: Comparison) -> list[Html]:
    figures: list[Html] = []
    for name in comparison.metrics:
        drawn = [run.curve(name) for run in comparison.runs]
        curve = draw_curves(drawn, label=name)
        if curve is None or len(figures) == MAX_CURVES:
            continue
        legend = [
            tag("span", _swatch(number), name_of(run), class_="legend")
            for number, (run, points) in enumerate(zip(comparison.runs, drawn, strict=True))
            if points
        ]
        caption = tag("figcaption", f"{name} by step. ", *legend)
        figures.append(tag("figure", curve, caption))
    return [tag("section", tag("h2", "Curves"), *figures)] if figures else []


def _differences(comparison: Comparison) -> Html | None:
    found = comparison.differences
    if not found:
        return None
    columns = ("Field of the recipe", *(name_of(run) for run in comparison.runs))
    rows = [(tag("code", name), *values) for name, values in found.items()]
    return tag(
        "section",
        tag("h2", "Where the recipes differ"),
        table(columns, rows, label="Where the recipes differ"),
    )


def _footer(now: int) -> Html:
    return tag(
        "footer",
        tag("p", f"Made {to_rfc3339(now)} by sealtrain {VERSION}, offline."),
        tag(
            "p",
            "This page is a rendering. What is signed are the manifests: verify those, not this.",
        ),
    )
