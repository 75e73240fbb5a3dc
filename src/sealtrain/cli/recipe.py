"""``lock`` and ``recipe``: resolve a recipe to the bytes that owners approve, and show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.cli.brokers import BrokerFiles
from sealtrain.cli.output import Json, emit, table
from sealtrain.client.pin import load_pin
from sealtrain.consortium.members import Consortium
from sealtrain.recipe.diff import Change, diff
from sealtrain.recipe.lock import load_lock, lock_recipe
from sealtrain.recipe.schema import json_schema

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["change_lines", "lock", "schema", "show", "show_diff"]


def lock(
    recipe: Annotated[Path, typer.Argument(help="The recipe (YAML).")],
    brokers: BrokerFiles,
    consortium: Annotated[Path, typer.Option(help="The consortium file.")] = Path(
        "consortium.json"
    ),
    out: Annotated[Path, typer.Option(help="Folder for the lock and the deployment.")] = Path(),
    as_json: Json = False,
) -> None:
    """Resolve everything a recipe names to digests: recipe.lock.json and app-compose.json.

    The lock names the brokers, too: guests of the recipe obey these and no other.
    """
    locked = lock_recipe(
        recipe,
        consortium_id=Consortium.load(consortium).consortium_id,
        brokers=[load_pin(path).broker_id for path in brokers],
    )
    out.mkdir(parents=True, exist_ok=True)
    locked.write(out)
    emit(
        as_json,
        {
            "recipe_hash": locked.recipe_hash,
            "compose_hash": locked.compose_hash,
            "app_id": locked.app_id,
            "brokers": list(locked.lock.brokers),
            "lock": str(out / "recipe.lock.json"),
            "deployment": str(out / "app-compose.json"),
        },
        [
            f"recipe hash  {locked.recipe_hash}",
            f"compose hash {locked.compose_hash}",
            f"app id       {locked.app_id}",
            *(f"broker       {broker_id}" for broker_id in locked.lock.brokers),
        ],
    )


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
        {"recipe_hash": locked.recipe_hash, "changes": [change.to_dict() for change in changes]},
        [f"recipe hash {locked.recipe_hash}", *change_lines(changes)],
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
        change_lines(changes) or ["no difference"],
    )


def change_lines(changes: Sequence[Change]) -> list[str]:
    """Changes as aligned text; below it the lines of scripts that differ."""
    if not changes:
        return []
    rows = [
        (change.severity, change.path, _short(change.before), _short(change.after))
        for change in changes
    ]
    lines = table(rows, header=("weight", "what", "before", "after"))
    for change in changes:
        if change.text_lines:
            lines += ["", change.path, *change.text_lines]
    return lines


def _short(value: object) -> str:
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    if "\n" in text:
        text = f"{text.count(chr(10))} lines, below"
    return text if len(text) <= 72 else f"{text[:69]}..."
