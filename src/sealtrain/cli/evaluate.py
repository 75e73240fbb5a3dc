"""``train`` of a recipe of phase evaluate: measure a model on sealed data inside the guest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sealtrain.cli.output import emit, metric_lines, say
from sealtrain.cli.runoptions import surround_alone

if TYPE_CHECKING:
    from sealtrain.guest.run_end import Outcome
    from sealtrain.guest.settings import RunSettings


def measure(settings: RunSettings, as_json: bool) -> None:
    """Measure, in a process of its own (``cli.alone``), and print what was found."""
    from sealtrain.guest.run import start

    show_metrics(
        start(settings, surround_alone(stages=True), progress=False),
        as_json,
    )


def show_metrics(outcome: Outcome, as_json: bool) -> None:
    """Print what a finished evaluation found."""
    if outcome.simulated:
        say("SIMULATED — NOT ATTESTED")
    metrics = metric_lines(outcome.metrics)
    shown = [f"run          {outcome.run_id}", *metrics, f"manifest     {outcome.manifest}"]
    emit(as_json, outcome.to_dict(), shown)
