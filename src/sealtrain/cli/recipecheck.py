"""``recipe check``: judge a recipe and data at the desk, with neither a broker nor keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sealtrain.cli.learnable_records import (
    FirstLessons,
    is_countable,
    list_shared_answers,
    require_contrast,
    require_one_stream,
)
from sealtrain.cli.output import Json, emit
from sealtrain.cli.runoptions import pairs
from sealtrain.cli.shownrecords import say_left_out, show_lines, show_record
from sealtrain.consortium.members import Consortium
from sealtrain.errors import DataInvalid, ExtraMissing, SealtrainError, UsageError
from sealtrain.owner.data_fitness import layout_words, read_data, seal_words
from sealtrain.recipe.basefolder import base_of
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.finite_weights import require_sound_weights
from sealtrain.recipe.fitness import misfits, misfits_of_record
from sealtrain.recipe.installation import measure_installation
from sealtrain.recipe.lock import load_lock, require_scripts
from sealtrain.recipe.models import measure_models
from sealtrain.recipe.schema import load_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from sealtrain.recipe.recipe import PhaseRecipe

_OF_TOKENIZER: Final = (
    *("base model", "models and tokenizers"),
    *("columns.messages", "model", "model.tokenizer", "trainer.assistant_only_loss"),
)
"""What is wrong with a tokenizer, by which no record can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskOptions:
    """What the recipe is held against besides the base model."""

    consortium: Annotated[
        Path | None, typer.Option(help="The consortium file: do owners and recipients exist?")
    ] = None
    base: Annotated[
        Path | None, typer.Option(help="Folder the recipe's paths start from [the recipe's].")
    ] = None
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--records", help="OWNER.NAME=PATH: data for a dataset of the recipe; repeat."
        ),
    ] = None
    seal_as: Annotated[
        list[str] | None,
        typer.Option(help="OWNER.NAME=OPTIONS: how sealtrain seal would read it; repeat."),
    ] = None
    show: Annotated[
        bool, typer.Option(help="Show the first record of each data as the model learns it.")
    ] = True


def check(
    recipe: Annotated[Path, typer.Argument(help="The recipe (YAML), or recipe.lock.json.")],
    desk: DeskOptions,
    as_json: Json = False,
) -> None:
    """Judge a recipe, its base model and data as lock, seal and train will, without a broker.

    Everything that is wrong is listed. Exits 2 where the recipe could not work, 5 where data does
    not fit it. The first record of data that fit is shown as the model learns it: its tokens, and
    which of them carry a loss. Nothing leaves this machine, and nothing is written.
    """
    wanted, base = _read(recipe, desk.base)
    done: list[str] = ["schema"]
    left: list[str] = []
    found: list[dict[str, Any]] = []

    def try_judge(what: str, judge: Callable[[], object]) -> None:
        try:
            judge()
        except ExtraMissing as error:
            left.append(f"{what}: {error.message}")
        except SealtrainError as error:
            found.append({"about": what, **error.to_dict(), "exit": error.exit_code})
        else:
            done.append(what)

    members = None if desk.consortium is None else Consortium.load(desk.consortium)
    names = [owner.name for owner in members.owners] if members else _everyone(wanted)
    if members is None:
        left.append("owners and recipients: give --consortium")
    try:
        unfit = misfits(wanted, base, names)
    except SealtrainError as error:
        found.append({"about": "base model", **error.to_dict(), "exit": error.exit_code})
    else:
        found += [
            {"about": refusal.field, "code": RecipeInvalid.code, **refusal.to_dict(), "exit": 2}
            for refusal in unfit
        ]
        if not unfit:
            done += ["metrics", "adapter and lengths"]
            done += [] if members is None else ["owners and recipients"]
    absent = [model for model in wanted.hub_models.values() if not (base / model.path).exists()]
    if absent:
        left.append(f"models and tokenizers: sealtrain lock brings {absent[0].id} from the hub")
    else:
        try_judge("models and tokenizers", lambda: measure_models(wanted, base))
        if not any(fault["about"] in ("base model", "models and tokenizers") for fault in found):
            try_judge("weights", lambda: require_sound_weights(wanted, base))
    if wanted.scripts:
        try_judge("scripts", lambda: require_scripts(wanted, base, measure_installation(wanted)))
    given, ways = pairs(desk.data or []), pairs(desk.seal_as or [])
    if not set(ways) <= set(given):
        raise UsageError("options for data that is not given", got=min(set(ways) - set(given)))
    chosen = {key: layout_words(seal_words(ways.get(key, ""))) for key in given}
    shown: list[dict[str, Any]] = []
    begun: dict[str, list[dict[str, Any]]] = {}
    types: dict[str, Mapping[str, pa.DataType]] = {}
    learned: dict[str, FirstLessons] = {}
    readable = not any(fault["about"] in _OF_TOKENIZER for fault in found)

    def read(key: str, source: Path) -> None:
        owner, _, name = key.partition(".")
        first = FirstLessons(wanted, base, owner, name)
        if not readable:
            first.skip("mend the tokenizer first")
        done = read_data(wanted, owner, name, source, chosen[key], first.look)
        begun[key], types[key], learned[key] = done.first, done.types, first
        first.require(owner, name)

    for key, path in given.items():
        say_left_out(Path(path))
        try_judge(f"data {key}", partial(read, key, Path(path)))
    if len(types) > 1 and not wanted.scripts:
        try_judge("types of several data", lambda: require_one_stream(wanted, types))
    together = list_shared_answers(wanted)
    if together and set(together) <= set(learned):
        lessons = [learned[key] for key in together]
        try_judge("answers of both kinds", lambda: require_contrast(wanted, lessons))
    elif together:
        left.append("answers of both kinds: give --records for every dataset of role train")
    for key, records in begun.items():
        if not records:
            continue
        if not all(map(is_countable, records)):
            left.append(f"first records of {key}: one is too long to be shown as tokens here")
            continue
        unfit = misfits_of_record(wanted, base, records[0])
        found += [
            {"about": f"data {key}", "code": RecipeInvalid.code, **misfit.to_dict(), "exit": 2}
            for misfit in unfit
        ]
        if desk.show and readable and not unfit and not absent:
            try_judge(
                f"first records of {key}",
                lambda key=key, records=records: shown.append(  # type: ignore[misc]
                    show_record(wanted, base, key, records)
                ),
            )
    counted = {key: first for key, first in learned.items() if first.words is not None}
    left += [f"what data {key} leaves to learn: {first.missing}"
             for key, first in learned.items() if first.missing is not None]  # fmt: skip
    left += [f"data {key}: give --records {key}=PATH" for key in _data(wanted) if key not in given]
    how = wanted.collaboration
    sees = {} if how is None or how.lead_sees is None else {"aggregator": how.lead_sees}
    lines = [f"checked      {what}" for what in done]
    lines += [f"not checked  {what}" for what in left]
    for fault in found:
        lines.append(f"wrong        {fault['about']}: {fault['message']}")
        lines += [
            f"  {part}: {fault[part]}" for part in ("got", "expected", "hint") if fault.get(part)
        ]
    lines += [f"records      {key}: {first.words}" for key, first in counted.items()]
    lines += [f"aggregator   {text}" for text in sees.values()]
    lines += [line for record in shown for line in show_lines(record)]
    emit(
        as_json,
        {"fits": not found, "checked": done, "not_checked": left, "wrong": found, "shown": shown}
        | (
            {"records": {key: first.tally.to_dict() for key, first in counted.items()}}
            if counted
            else {}
        )
        | sees,
        [*lines, "it fits" if not found else f"{len(found)} wrong"],
    )
    if found:
        codes = {fault["exit"] for fault in found}
        raise typer.Exit(
            RecipeInvalid.exit_code if RecipeInvalid.exit_code in codes else DataInvalid.exit_code
        )


def _read(path: Path, base: Path | None) -> tuple[PhaseRecipe, Path]:
    if path.suffix == ".json":
        return load_lock(path).recipe, base or base_of(path)
    return load_recipe(path), base or path.parent


def _everyone(recipe: PhaseRecipe) -> list[str]:
    return [*recipe.owners, *recipe.release_policy.model.recipients]


def _data(recipe: PhaseRecipe) -> list[str]:
    """Datasets of records; a sealed model comes of a run."""
    return [
        f"{dataset.owner}.{dataset.name}" for dataset in recipe.datasets if dataset.role != "model"
    ]
