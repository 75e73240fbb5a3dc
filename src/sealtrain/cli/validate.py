"""``validate``: try a recipe's rules for data on an owner's own machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sealtrain.cli.output import Json, emit
from sealtrain.client.connection import own_key
from sealtrain.consortium.datasets import load_dataset_manifest
from sealtrain.errors import UsageError
from sealtrain.guest.validating import token_counter
from sealtrain.keys.identity import Identity
from sealtrain.recipe.basefolder import base_of
from sealtrain.recipe.lock import load_lock
from sealtrain.recipe.missing import missing_values
from sealtrain.recipe.recordcolumns import ColumnJudge
from sealtrain.recipe.schema import PhaseRecipe, load_recipe
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.tabular.conversion import Conversion, read_dates
from sealtrain.training.data.sources import Source
from sealtrain.training.data.validation.check import PlainRecords, check

if TYPE_CHECKING:
    from sealtrain.recipe.terms import Dataset


def validate(
    recipe: Annotated[Path, typer.Argument(help="Recipe (YAML) or recipe.lock.json.")],
    data: Annotated[
        list[str],
        typer.Option(
            "--records", help="OWNER.NAME=PATH: your records, or your sealed dataset; repeat."
        ),
    ],
    identity: Annotated[
        Path | None, typer.Option(help="Your private identity, for a sealed dataset.")
    ] = None,
    decimals: Annotated[
        str, typer.Option(help="Of a CSV, as for seal: point (1234.5) or comma (1234,5).")
    ] = "point",
    dates: Annotated[
        list[str] | None,
        typer.Option(help="Of a CSV, as for seal: COLUMN=PATTERN, such as Admission=DD/MM/YYYY."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Hold your data against the rules of a recipe, as the guest will before training.

    Nothing leaves this machine. What is printed is the report that the guest would make.
    """
    declared = Conversion(decimals=decimals, dates=read_dates(dates or ()))
    wanted = _recipe(recipe)
    if wanted.validation is None:
        raise UsageError("the recipe has no rules for data", expected="a section validation")
    me = None if identity is None else Identity.load(identity)
    sources = [_source(wanted, word, me, declared) for word in data]
    found: list[dict[str, Any]] = []
    try:
        check(
            wanted.validation,
            sources,
            count_tokens=token_counter(wanted, _base(recipe)),
            publish=found.append,
        )
    finally:
        for report in found:
            emit(as_json, report, _lines(report))


def _recipe(path: Path) -> PhaseRecipe:
    return load_lock(path).recipe if path.suffix == ".json" else load_recipe(path)


def _base(path: Path) -> Path:
    return base_of(path) if path.suffix == ".json" else path.parent


def _source(recipe: PhaseRecipe, word: str, me: Identity | None, declared: Conversion) -> Any:
    name, _, path = word.partition("=")
    named: Dataset | None = next(
        (found for found in recipe.datasets if f"{found.owner}.{found.name}" == name), None
    )
    if named is None or not path:
        raise UsageError(
            "no dataset of this recipe",
            got=word,
            expected=" or ".join(f"{known.owner}.{known.name}=PATH" for known in recipe.datasets),
        )
    dataset: Any = _dataset(Path(path), me, ColumnJudge(recipe, named).conversion(declared))
    return Source(
        role=named.role,
        owner=named.owner,
        name=named.name,
        weight=named.weight,
        dataset=dataset,
        max_records=named.max_records,
        columns=named.columns,
        missing=missing_values(recipe),
    )


def _dataset(path: Path, me: Identity | None, conversion: Conversion) -> Any:
    if not (path / "dataset.json").is_file():
        return PlainRecords(path, conversion)
    if conversion.declared:
        raise UsageError(
            "decimals and dates are declared of CSV; a sealed dataset holds numbers already",
            check="--decimals, --dates",
            got=path.name,
        )
    if me is None:
        raise UsageError("a sealed dataset opens with --identity", got=path.name)
    manifest = load_dataset_manifest(path, me.public)
    return SealedDataset.open(path, own_key(path, me), root=manifest.root)


def _lines(report: dict[str, Any]) -> list[str]:
    few = f"fewer than {report['counts_in_multiples_of']}"
    lines = []
    for dataset in report["datasets"]:
        named = f"{dataset['owner']}.{dataset['name']}"
        lines.append(f"dataset  {named}  records {dataset['records'] or few}")
        for name, column in dataset["columns"].items():
            lengths = column["lengths"]
            spread = "" if lengths is None else f"  lengths {'/'.join(map(str, lengths.values()))}"
            lines.append(f"  column   {name}  nulls {column['nulls'] or few}{spread}")
        for kind, count in dataset.get("personal", {}).items():
            lines.append(f"  personal {kind}  {count or few}")
    for owner, counts in report.get("duplicates", {}).items():
        lines.append(
            f"repeats  {owner}  own {counts['within_owner'] or few}"
            f"  others' {counts['across_owners'] or few}"
        )
    lines += [
        f"label    {name}  {count or few}" for name, count in report.get("labels", {}).items()
    ]
    lines += [f"broken   {rule}" for rule in report["broken"]] or ["every rule holds"]
    return lines
