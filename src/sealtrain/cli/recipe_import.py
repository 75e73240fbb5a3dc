"""``recipe import``: a recipe from the file of another tool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.base.filenames import slug
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.foreignyaml import parse_foreign_yaml
from sealtrain.base.limits import MAX_SETTINGS_BYTES
from sealtrain.base.yamltext import MAX_YAML_BYTES, yaml_text
from sealtrain.cli.output import Json, emit, say
from sealtrain.errors import AlreadyExists, UsageError
from sealtrain.recipe.axolotl import Imported, Wanted, import_axolotl
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe
from sealtrain.recipe.trlarguments import TrlTrainer, import_trl, is_of_trl
from sealtrain.recipe.trlcommand import TrlCommand, read_command


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """What Axolotl's file does not say."""

    dataset: Annotated[
        list[str], typer.Option(help="OWNER.NAME: a dataset to train on; repeat, in its order.")
    ]
    test: Annotated[
        list[str] | None, typer.Option(help="OWNER.NAME: a dataset to measure on; repeat.")
    ] = None
    recipient: Annotated[
        list[str] | None,
        typer.Option(help="Owner that gets the model; repeat. All owners of data without."),
    ] = None
    records: Annotated[
        int | None,
        typer.Option("--record-count", min=1, help="Records to train on: turns epochs into steps."),
    ] = None
    steps: Annotated[
        int | None, typer.Option(min=1, help="Optimizer steps, in place of the file's epochs.")
    ] = None
    base: Annotated[
        Path | None,
        typer.Option("--base-model", help="Folder of the base model, relative to the recipe."),
    ] = None
    trainer: Annotated[
        str | None,
        typer.Option(
            help="Script of TRL that the arguments are of: sft or dpo [as a command line says, "
            "else sft]."
        ),
    ] = None
    name: Annotated[str | None, typer.Option(help="The recipe's name; the file's without.")] = None
    prepared: Annotated[
        bool,
        typer.Option(
            "--prepared", help="Records hold the prompts or messages that Axolotl would write."
        ),
    ] = False
    own_files: Annotated[
        bool,
        typer.Option(
            "--own-files",
            help="The model's folder has the chat template, tokens and config that the file names.",
        ),
    ] = False
    whole_base: Annotated[
        bool,
        typer.Option(
            "--whole-base", help="Hold a base whole that the file quantizes as no recipe does."
        ),
    ] = False
    without: Annotated[
        list[str] | None,
        typer.Option(help="Leave a key out although training may then differ; repeat."),
    ] = None


def import_recipe(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.YAML",
            help="Axolotl's file, or arguments of TRL's scripts: YAML, or the command line.",
        ),
    ],
    choices: _Choices,
    out: Annotated[Path, typer.Option(help="Where to write the recipe.")] = Path("recipe.yaml"),
    as_json: Json = False,
) -> None:
    """Translate a file of Axolotl or TRL into a recipe, and name every key that is not in it.

    A key that changes the result and has no counterpart is refused. Read the recipe before you
    lock it: what may leave, and who gets the model, is not in such a file.
    """
    data = read_bounded(source, MAX_YAML_BYTES)
    config, command = _read(source, data)
    named, base = config.get("base_model", config.get("model_name_or_path")), choices.base
    if base is None and isinstance(named, str) and (out.parent / named).is_dir():
        base = Path(named)
    wanted = Wanted(
        name=choices.name or slug(source.stem, "imported"),
        train=choices.dataset,
        test=choices.test or (),
        recipients=choices.recipient or (),
        records=choices.records,
        steps=choices.steps,
        base=None if base is None else str(base),
        prepared=choices.prepared,
        own_files=choices.own_files,
        whole_base=choices.whole_base,
        template=_read_template(config, source.parent),
        without=choices.without or (),
    )
    if command is not None or is_of_trl(config):
        told = None if command is None else command.trainer
        imported = import_trl(config, wanted, _choose_trainer(choices.trainer, told))
    else:
        imported = import_axolotl(config, wanted)
    if command is not None and command.launcher:
        imported.left_out["launcher"] = (
            "the words before the script: how processes share the work, the recipe's backend says"
        )
    _require_recipe(imported, config)
    if out.exists():
        raise AlreadyExists(f"{out} is there already", hint="choose another --out")
    atomic_write(out, _text(imported, source.name).encode())
    for line in _describe(imported):
        say(line)
    emit(
        as_json,
        {
            "recipe": str(out),
            "translated": imported.translated,
            "left_out": imported.left_out,
            "notes": list(imported.notes),
        },
        [f"recipe   {out}"],
    )


def _read_template(config: Mapping[str, Any], folder: Path) -> str | None:
    """Text of the template's file that TRL's arguments name; ``None`` where they name no file."""
    named = config.get("chat_template_path")
    path = folder / named if isinstance(named, str) else None
    if path is None or path.suffix != ".jinja" or not path.is_file():
        return None
    return read_bounded(path, MAX_SETTINGS_BYTES).decode("utf-8", "replace").removesuffix("\n")


def _read(source: Path, data: bytes) -> tuple[Mapping[str, Any], TrlCommand | None]:
    """Keys of a file, and the command line where it holds one.

    Raises:
        RecipeInvalid: It is neither.
    """
    command = read_command(data.decode("utf-8", "replace").removeprefix("\ufeff"))
    if command is not None:
        return command.arguments, command
    config = parse_foreign_yaml(data, error=RecipeInvalid, what="file to import")
    if not isinstance(config, Mapping):
        raise RecipeInvalid(
            f"{source.name} is no mapping of keys",
            check="axolotl",
            got="nothing" if config is None else type(config).__name__,
            expected="YAML such as base_model: ./model, or a command line of TRL's scripts",
            hint="name the file that training reads",
        )
    return config, None


def _require_recipe(imported: Imported, config: Mapping[str, Any]) -> None:
    """Refuse a value that no recipe has by the key that it stands at.

    Raises:
        RecipeInvalid: There is one.
    """
    try:
        parse_recipe(imported.recipe)
    except RecipeInvalid as error:
        # A field's path names the kind of a section too: peft.lora.r is peft.r of a recipe.
        parts = (error.field or "").split(".")
        places = {".".join(parts[:2]), f"{parts[0]}.{parts[-1]}"}
        at = next((key for key, place in imported.translated.items() if place in places), None)
        if at is None or at not in config:
            raise
        value = config[at]
        hint = f"change it, or leave it out: --without {at}"
        if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9._xXoOeE+-]+", value):
            hint = "write it as a plain number, such as 0.5, 1000 or 2e-4"
        raise RecipeInvalid(
            f"{at} has a value that no recipe has",
            check=at,
            field=error.field,
            got=repr(value)[:60],
            expected=error.message.partition(f"{error.field}: ")[2].removeprefix("Input should be ")
            or None,
            hint=hint,
        ) from None


def _choose_trainer(chosen: str | None, told: TrlTrainer | None) -> TrlTrainer:
    """The script that arguments are of.

    Raises:
        UsageError: There is no such script, or the command line is of the other.
    """
    name = chosen or told or "sft"
    if name not in ("sft", "dpo") or told not in (None, name):
        raise UsageError(
            "the arguments are not of this script of TRL",
            check="--trainer",
            got=name[:40],
            expected=told or "sft or dpo",
        )
    return "dpo" if name == "dpo" else "sft"


def _describe(imported: Imported) -> list[str]:
    lines = [f"translated  {key} -> {place}" for key, place in sorted(imported.translated.items())]
    lines += [f"left out    {key}: {why}" for key, why in sorted(imported.left_out.items())]
    return lines + [f"note        {note}" for note in imported.notes]


def _text(imported: Imported, source: str) -> str:
    """The recipe, with what is not in it as comments at its top."""
    said = [f"Translated from {_line(source)}. Read it before you lock it."]
    said += [f"Left out {_line(key)}: {why}." for key, why in sorted(imported.left_out.items())]
    said += [f"Note: {note}." for note in imported.notes]
    return "".join(f"# {line}\n" for line in said) + yaml_text(imported.recipe)


def _line(text: str) -> str:
    """Text of a file that stays in one comment."""
    return re.sub(r"[^\x20-\x7e]", "?", text)[:200]
