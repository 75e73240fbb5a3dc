"""``adopt``: an owner signs a model that was handed on to the owner's next recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.brokers import BrokerFiles, exit_for, failures
from sealtrain.cli.ledgermemory import StateFile
from sealtrain.cli.output import Json, emit, say
from sealtrain.owner.adopting import adopt as adopt_for
from sealtrain.owner.owner_files import OwnerFiles
from sealtrain.recipe.lock import LockedRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptingOwner:
    """The owner who adopts, the recipe that the model is for, and what the owner trusts."""

    identity: Annotated[Path, typer.Option(help="Your private identity file.")]
    deployment: Annotated[
        Path, typer.Option(help="app-compose.json of the recipe that uses the model.")
    ]
    trust: Annotated[Path, typer.Option(help="What you trust of the run (YAML).")]
    brokers: BrokerFiles


def adopt(
    run: Annotated[Path, typer.Argument(help="Folder of the run that handed its model on.")],
    owner: AdoptingOwner,
    *,
    out: Annotated[Path | None, typer.Option(help="Folder to make [NAME.sealed].")] = None,
    register: Annotated[
        bool, typer.Option("--register/--no-register", help="Tell the brokers of the dataset.")
    ] = True,
    state: StateFile = None,
    as_json: Json = False,
) -> None:
    """Sign and register a model that was handed on to your recipe; it opens for no person.

    The manifest of the run is verified first, then each file against it. The model becomes your
    dataset: approve the recipe with --data, and withdraw the model as you withdraw data. Its key
    is not among what you get: only brokers release it, to guests of that recipe.

    Run again with the same --out, it registers once more.
    """
    adopted = adopt_for(
        OwnerFiles(identity=owner.identity, brokers=tuple(owner.brokers), state=state),
        run,
        out,
        deployment=LockedRecipe.load(owner.deployment),
        trust=owner.trust,
        register=register,
    )
    failures(adopted.registered)
    made = adopted.description
    emit(
        as_json,
        {
            "dataset_id": made.dataset_id,
            "name": made.name,
            "owner": made.owner_name,
            "root": made.root,
            "run_id": adopted.run_id,
            "registered": list(adopted.registered.done),
            "failed": list(adopted.registered.failed),
            "simulated": adopted.simulated,
            "folder": str(adopted.folder),
        },
        [
            f"adopted  {adopted.folder}",
            f"dataset  {made.dataset_id}",
            f"root     {made.root}",
            f"run      {adopted.run_id}",
        ],
    )
    if adopted.simulated:
        say("SIMULATED — NOT ATTESTED: the run's evidence comes from a simulator")
    exit_for(adopted.registered)
