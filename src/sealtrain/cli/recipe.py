"""``lock`` and ``recipe``: resolve a recipe to the bytes that owners approve, and show them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sealtrain.cli.brokers import BrokerFiles
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.review import change_lines, page, screen_width, within
from sealtrain.consortium.members import Consortium
from sealtrain.owner.locking import lock_for
from sealtrain.recipe.basefolder import remember_base
from sealtrain.recipe.diff import diff
from sealtrain.recipe.lock import LOCK_NAME, load_lock
from sealtrain.recipe.schema import json_schema

if TYPE_CHECKING:
    from sealtrain.recipe.installation import Installation
    from sealtrain.recipe.lockfile import Lock
    from sealtrain.recipe.recipe import PhaseRecipe


def lock(
    recipe: Annotated[Path, typer.Argument(help="The recipe (YAML).")],
    brokers: BrokerFiles,
    consortium: Annotated[Path, typer.Option(help="The consortium file.")] = Path(
        "consortium.json"
    ),
    out: Annotated[Path, typer.Option(help="Folder for the lock and the deployment.")] = Path(),
    image: Annotated[
        Path | None,
        typer.Option(help="OCI layout of the guests' image: pin its packages, not this machine's."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Resolve everything a recipe names to digests: recipe.lock.json and app-compose.json.

    The lock names the brokers, too: guests of the recipe obey these and no other. A recipe that
    could not work is refused here, with everything that is wrong with it: owners outside the
    consortium, metrics that nothing measures, modules and lengths that the base model lacks.
    A model that the recipe names by model.id is downloaded from the Hugging Face hub first, and its
    commit, digest and licence are in the lock.
    """
    locked = lock_for(
        recipe,
        Consortium.load(consortium),
        brokers,
        installation=None if image is None else partial(_read_installation, image),
        on_step=say,
    )
    locked.write(out)
    remember_base(out / LOCK_NAME, recipe.parent)
    emit(
        as_json,
        {
            "recipe_hash": locked.recipe_hash,
            "compose_hash": locked.compose_hash,
            "app_id": locked.app_id,
            "brokers": list(locked.lock.brokers),
            "lock": str(out / LOCK_NAME),
            "deployment": str(out / "app-compose.json"),
            **_hub_facts(locked.lock),
        },
        [
            f"recipe hash  {locked.recipe_hash}",
            f"compose hash {locked.compose_hash}",
            f"app id       {locked.app_id}",
            *(f"broker       {broker_id}" for broker_id in locked.lock.brokers),
            *(f"{name:<12} {text}" for name, text in locked.lock.origins.items()),
        ],
    )


def _hub_facts(lock: Lock) -> dict[str, Any]:
    """What a lock says of its models of the hub, for ``--json``; nothing without any."""
    pins = lock.to_dict().get("hub", {})
    ids = {name: {"id": model.id} for name, model in lock.recipe.hub_models.items()}
    return {"hub": {name: ids[name] | pin for name, pin in pins.items()}} if pins else {}


def _read_installation(image: Path, recipe: PhaseRecipe) -> Installation:
    from sealtrain.cli.image import open_image
    from sealtrain.image.packages import measure_image

    return measure_image(open_image(image), recipe)


def schema() -> None:
    """Print the JSON Schema of recipes."""
    typer.echo(json.dumps(json_schema(), indent=2))


def show(
    lock_file: Annotated[Path, typer.Argument(metavar="LOCK", help="recipe.lock.json")],
    as_json: Json = False,
) -> None:
    """Show all that a lock fixes, as an owner reviews it."""
    locked = load_lock(lock_file)
    changes = diff(None, locked)
    emit(
        as_json,
        {
            "recipe_hash": locked.recipe_hash,
            **_hub_facts(locked),
            "changes": [change.to_dict() for change in changes],
        },
        within(
            [
                f"recipe hash {locked.recipe_hash}",
                *page(locked, width=screen_width()),
                "",
                *change_lines(changes),
            ],
            screen_width(),
        ),
    )


def show_diff(
    before: Annotated[Path, typer.Argument(help="Lock that was approved.")],
    after: Annotated[Path, typer.Argument(help="Lock that is proposed.")],
    as_json: Json = False,
) -> None:
    """Show what changed between two locks: what an owner reads before approving."""
    old, new = load_lock(before), load_lock(after)
    changes = diff(old, new)
    emit(
        as_json,
        {
            "before": old.recipe_hash,
            "after": new.recipe_hash,
            "changes": [change.to_dict() for change in changes],
        },
        within(change_lines(changes) or ["no difference"], screen_width()),
    )
