"""``run compare``: several finished runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.output import Json, emit, say, table
from sealtrain.errors import Refused, UsageError
from sealtrain.manifest.comparison import ComparedRun, Comparison, compare_runs
from sealtrain.manifest.comparison_page import WORDS, name_of, number_text, write_page
from sealtrain.manifest.predicate import SIMULATED_MARKER
from sealtrain.manifest.trust import load_trust

_MAX_COLUMNS = 6
_MAX_LINES = 20


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folder of a finished run, or its manifest.json."),
    ],
    trust: Annotated[
        list[Path] | None,
        typer.Option(
            help="Trust file: verify the manifests of its recipe; repeat for each recipe."
        ),
    ] = None,
    *,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Metric to show in the table, in this order; repeat [the first ones]."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write one HTML page too: table, curves and differences.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare finished runs: the metrics that each released, and where their recipes differ.

    Without --trust the manifests are read and not verified. With it, exits 3 where one is refused,
    whose numbers are left out. The sealed outputs are not looked at.
    """
    found = compare_runs(runs, [load_trust(path) for path in trust or ()])
    shown = _choose(found, metric)
    if out is not None:
        write_page(found, out)
    if any(run.simulated for run in found.runs):
        say(SIMULATED_MARKER)
    if not trust:
        say("not verified: name the trust files of these recipes (--trust)")
    page = {} if out is None else {"page": str(out)}
    lines = [*_table(found, shown), *_difference_lines(found)]
    emit(as_json, found.to_dict() | page, lines if out is None else [*lines, f"page  {out}"])
    if not found.accepted:
        refused = [name_of(run) for run in found.runs if run.verdict == "refused"]
        say(f"refused: {', '.join(refused)}; see sealtrain verify")
        raise typer.Exit(Refused.exit_code)


def _choose(found: Comparison, metric: Sequence[str] | None) -> Sequence[str]:
    """The metrics of the table."""
    if not metric:
        return found.metrics[:_MAX_COLUMNS]
    unknown = [name for name in metric if name not in found.metrics]
    if unknown and found.accepted:  # else a refused manifest, which shows no metric, is told
        raise UsageError(
            "no run released this metric",
            check="--metric",
            got=", ".join(unknown)[:200],
            expected=", ".join(found.metrics) or "none was released",
        )
    return [name for name in dict.fromkeys(metric) if name in found.metrics]


def _table(found: Comparison, metrics: Sequence[str]) -> list[str]:
    header = ("run", "manifest", "steps", "seconds", "epsilon", *metrics)
    return table([_row(run, metrics) for run in found.runs], header=header)


def _row(run: ComparedRun, metrics: Sequence[str]) -> tuple[str, ...]:
    said = run.predicate
    verdict = WORDS[run.verdict] if run.code is None else f"{WORDS[run.verdict]} {run.code}"
    if said is None:
        return (name_of(run), verdict, *("-" for _ in range(3 + len(metrics))))
    return (
        name_of(run),
        verdict,
        str(said.run.steps),
        f"{said.compute.wall_s:.0f}",
        "-" if run.epsilon is None else f"{run.epsilon:.4g}",
        *(number_text(run.metrics[name]) if name in run.metrics else "-" for name in metrics),
    )


def _difference_lines(found: Comparison) -> list[str]:
    differences = found.differences
    if not differences:
        return []
    rows = [(name, *values) for name, values in list(differences.items())[:_MAX_LINES]]
    header = ("recipe field", *(name_of(run)[:8] for run in found.runs))
    lines = ["", *table(rows, header=header)]
    if len(differences) > _MAX_LINES:
        lines.append(f"and {len(differences) - _MAX_LINES} more; --json has them")
    return lines
