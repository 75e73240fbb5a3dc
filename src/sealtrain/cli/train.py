"""``train`` and ``resume``: the run inside the guest."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.base.collector import pause_collection
from sealtrain.cli.durations import Duration
from sealtrain.cli.evaluate import measure
from sealtrain.cli.output import Json, emit, metric_lines, say
from sealtrain.cli.run_process import alone
from sealtrain.cli.runoptions import (
    FileOptions,
    GuestOptions,
    InputOptions,
    LockFile,
    run_settings,
    surround_alone,
)
from sealtrain.errors import UsageError

if TYPE_CHECKING:
    from sealtrain.errors import SealtrainError
    from sealtrain.guest.run_end import Outcome
    from sealtrain.guest.settings import RunSettings
    from sealtrain.recipe.recipe import PhaseRecipe

MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="Serve what may leave to Prometheus on this port of 127.0.0.1."
    ),
]


WaitForLease = Annotated[
    int | None,
    typer.Option(
        click_type=Duration("s", least=1),
        help="Where the lease on the keys lapses, ask for them again for so long and go on; "
        "without it, stop.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOptions:
    """What is served while the run goes on, and what it waits for."""

    metrics_port: MetricsPort = None
    wait_for_lease: WaitForLease = None


def train(
    lock: LockFile,
    guest: GuestOptions,
    inputs: InputOptions,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, model and manifest.")],
    files: FileOptions,
    waiting: WaitOptions,
    as_json: Json = False,
) -> None:
    """Attest, get the keys, train, seal the model, sign the manifest.

    A recipe of phase evaluate measures a model instead: only noisy or thresholded aggregates leave.
    """
    alone()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave as with Ctrl-C
    with pause_collection():
        from sealtrain.guest.run import start

    def begin() -> Outcome:
        return start(
            settings,
            surround_alone(stages=True),
            progress=True,
            metrics_port=waiting.metrics_port,
        )

    settings = run_settings(
        lock,
        guest,
        files,
        brokers=inputs.brokers,
        data=inputs.data,
        out=out,
    )
    recipe = settings.recipe_lock.recipe
    _require_one_guest(recipe)
    if recipe.phase == "evaluate":
        measure(settings, as_json)
        return
    show_outcome(_run(begin, out, waiting.metrics_port, waiting.wait_for_lease), as_json)


def resume(
    out: Annotated[Path, typer.Argument(help="Folder of the interrupted run.")],
    *,
    former: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Where the run's folder lay, if it alone was moved since; for good."
        ),
    ] = None,
    brokers: Annotated[
        list[Path] | None,
        typer.Option("--broker", help="Ask these brokers instead of the run's; repeat for each."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Continue on this number of ranks, which the recipe must name."
        ),
    ] = None,
    waiting: WaitOptions,
    as_json: Json = False,
) -> None:
    """Continue an interrupted run from its last sealed checkpoint, bit for bit."""
    alone()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave as with Ctrl-C
    from sealtrain.guest.settings import load_run, move_run, name_brokers, require_files

    if former is not None:
        move_run(out, former)
    if brokers:
        name_brokers(out, brokers)
    held = load_run(out)
    require_files(held[0])
    _require_one_guest(held[0].recipe_lock.recipe)
    show_outcome(
        _run(
            _resumption(lambda: held, waiting.metrics_port, ranks),
            out,
            waiting.metrics_port,
            waiting.wait_for_lease,
            ranks,
        ),
        as_json,
    )


def _require_one_guest(recipe: PhaseRecipe) -> None:
    """Refuse a recipe whose guests have roles: a run ticket says which one a guest plays.

    Raises:
        UsageError: The recipe is one of a collaboration.
    """
    if recipe.collaboration is not None:
        raise UsageError(
            "each guest of this recipe has a role, which a run ticket names",
            check="collaboration",
            got=recipe.collaboration.kind,
            hint="write it with sealtrain deploy ticket, then: sealtrain guest; it also goes on "
            "with a run that its folder holds",
        )


def _resumption(
    held: Callable[[], tuple[RunSettings, str]], metrics_port: int | None, ranks: int | None = None
) -> Callable[[], Outcome]:
    with pause_collection():
        from sealtrain.guest.run import resume as resume_run
        from sealtrain.recipe.backends import Division

    return lambda: resume_run(
        *held(),
        surround_alone(stages=True),
        progress=True,
        metrics_port=metrics_port,
        division=Division(ranks=ranks),
    )


def _run(
    begin: Callable[[], Outcome],
    out: Path,
    metrics_port: int | None,
    wait: int | None,
    ranks: int | None = None,
) -> Outcome:
    """Run here, or where the lease is waited for in a process of its own."""
    if wait is None:
        return begin()
    from sealtrain.guest.settings import load_run
    from sealtrain.guest.supervision import Beside, Endurance, supervise

    class Saying(Beside):
        def waits(self, error: SealtrainError, seconds: float) -> None:
            say_waiting(error, seconds)

    again = _resumption(lambda: load_run(out), metrics_port, ranks)
    outcome = supervise(
        lambda _: begin(),
        lambda _: again(),
        out=out,
        endures=Endurance(seconds=wait),
        beside=Saying(),
    )
    if outcome is None:
        raise AssertionError("training has an outcome")
    return outcome


def say_waiting(error: SealtrainError, seconds: float) -> None:
    """Say why a run is paused."""
    say(f"paused [{error.code}]: {error.message}")
    say(f"  no key is held; asking again in {seconds:.0f} s")


def show_outcome(outcome: Outcome, as_json: bool) -> None:
    """Print what a finished run left."""
    if outcome.simulated:
        say("SIMULATED — NOT ATTESTED")
    emit(
        as_json,
        outcome.to_dict(),
        [
            f"run          {outcome.run_id}",
            f"steps        {outcome.steps}",
            *metric_lines(outcome.metrics),
            f"model        {outcome.model}",
            f"manifest     {outcome.manifest}",
        ],
    )
