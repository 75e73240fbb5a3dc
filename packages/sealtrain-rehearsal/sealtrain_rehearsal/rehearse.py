"""``rehearse``: a whole run of a recipe on this machine, before owners are asked to approve it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.base.extras import require_extras
from sealtrain.cli.brokers import Threshold
from sealtrain.cli.machineoptions import SimulatedMachineOptions
from sealtrain.cli.output import Json, emit, metric_lines, say
from sealtrain.cli.runoptions import pairs
from sealtrain.cli.shownrecords import show_lines, show_record
from sealtrain.recipe.schema import load_recipe
from sealtrain_rehearsal.rehearsal import Rehearsal, leftovers_named, result_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOptions:
    """What a rehearsal plays besides the machine, and what it shows."""

    brokers: Annotated[
        int, typer.Option(min=1, max=16, help="So many brokers; several hold a share each.")
    ] = 1
    threshold: Threshold = None
    show: Annotated[
        bool, typer.Option(help="Show the first record of each data as the model learns it.")
    ] = True
    force: Annotated[
        bool, typer.Option("--force", help="Remove --out first, where a rehearsal made it.")
    ] = False


def rehearse(
    recipe: Annotated[Path, typer.Argument(help="The recipe (YAML).")],
    data: Annotated[
        list[str],
        typer.Option(
            "--records", help="OWNER.NAME=PATH: data for a dataset of the recipe; repeat."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to make; holds everything afterwards.")],
    *,
    seal_as: Annotated[
        list[str],
        typer.Option(help="OWNER.NAME=OPTIONS: further options of sealtrain seal; repeat."),
    ] = [],  # noqa: B006  # typer reads the default and never changes it
    machine: SimulatedMachineOptions,
    staged: StagedOptions,
    as_json: Json = False,
) -> None:
    """Play every part on the simulator: found, lock, seal, approve, train, verify, open.

    Recipe and data are checked first, and the first record of each data is shown as the model
    learns it. Every step runs as its own sealtrain process with throwaway
    keys, and training prints what libraries and scripts print, with whole tracebacks. Nothing of it
    is attested: use data you may show.
    """
    require_extras("a rehearsal", "train", "broker", "simulator")

    say("SIMULATED — NOT ATTESTED")
    wanted = load_recipe(recipe)
    shown: list[dict[str, Any]] = []

    def show(key: str, records: list[dict[str, Any]]) -> None:
        shown.append(show_record(wanted, recipe.parent, key, records))
        for line in show_lines(shown[-1]):
            say(line)

    with (
        leftovers_named(out),
        Rehearsal(
            out,
            say,
            machine.words,
            brokers=staged.brokers,
            threshold=staged.threshold,
            insecure_shown=True,
            force=staged.force,
        ) as stage,
    ):
        done = stage.play(
            recipe, wanted, pairs(data), pairs(seal_as), on_records=show if staged.show else None
        )
    emit(
        as_json,
        done | {"shown": shown},
        [*metric_lines(done["trained"]["metrics"]), *result_lines(done)],
    )
