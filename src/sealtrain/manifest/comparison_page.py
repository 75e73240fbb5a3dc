"""Runs side by side as one self-contained HTML page: a table, curves on shared axes, differences.

The page loads nothing and has no script; all text passes through ``markup.tag``. It says of each
run whether its manifest was verified.
"""

from __future__ import annotations

import base64
import hashlib
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
        _warning(comparison),
        tag("section", tag("h2", "Runs"), _runs(comparison)),
        *_curves(comparison),
        _differences(comparison),
        _footer(system_clock() if now is None else now),
    ]
    page = tag("html", head, tag("body", tag("main", *body)), lang="en")
    return f"<!doctype html>\n{page}\n"


def write_page(comparison: Comparison, out: Path) -> None:
    """Write the page (0600), whole or not at all; an earlier one is replaced."""
    atomic_write(out, render(comparison).encode(), mode=0o600, overwrite=True)


def name_of(run: ComparedRun) -> str:
    """The first characters of a run's id, and its recipe."""
    if run.predicate is None:
        return f"{run.digest[:8]} (manifest)"
    recipe = run.recipe.get("name")
    said = f" {recipe}" if isinstance(recipe, str) else ""
    return f"{run.predicate.run.run_id[:8]}{said}"


def number_text(value: float | None) -> str:
    """A metric's value in a table."""
    return "not finite" if value is None else f"{value:.6g}"


def _own(name: str) -> str:
    return files("sealtrain.manifest").joinpath(name).read_text("utf-8")


def _warning(comparison: Comparison) -> Html | None:
    lines: list[Part] = []
    if any(run.simulated for run in comparison.runs):
        lines.append(tag("p", SIMULATED_MARKER, class_="word"))
    if any(run.verdict == "not-verified" for run in comparison.runs):
        lines.append(
            tag("p", "Not verified: these are the words of files. Name a trust file (--trust).")
        )
    refused = sum(run.verdict == "refused" for run in comparison.runs)
    if refused:
        lines.append(tag("p", f"{refused} refused: their numbers are left out."))
    if not lines:
        return None
    return tag("section", *lines, class_="verdict refused" if refused else "verdict open")


def _swatch(number: int) -> Html:
    return tag("span", class_=f"swatch run-{number % COLOURS}", aria_hidden="true")


def _runs(comparison: Comparison) -> Html:
    metrics = comparison.metrics
    rows: list[tuple[Part, ...]] = []
    for number, run in enumerate(comparison.runs):
        said = run.predicate
        verdict = WORDS[run.verdict] + ("" if run.code is None else f": {run.code}")
        if run.simulated:
            verdict += ", simulated"
        rows.append(
            (
                tag("span", _swatch(number), name_of(run)),
                verdict,
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
    shown = table(columns, rows, numbers=range(3, len(columns)))
    return tag("div", shown, class_="scroll")


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
        tag("div", table(columns, rows), class_="scroll"),
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
