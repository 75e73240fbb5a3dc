"""Find the sealed datasets a recipe names.

1. every dataset of the recipe is present exactly once, by owner and name;
2. its manifest is signed by that owner, a member of the consortium;
3. its header carries stanzas for brokers.

The brokers decide whether it may be opened for this recipe; the cipher enforces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sealtrain.base.canonical import JsonValue
from sealtrain.consortium.datasets import (
    DatasetManifest,
    read_dataset_envelope,
    verify_dataset,
)
from sealtrain.consortium.members import Consortium
from sealtrain.errors import DatasetMismatch, DatasetUnknown, NoStanza, UsageError
from sealtrain.recipe.schema import Recipe
from sealtrain.sealing.places import Folder
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.sealing.stanza import Stanza
from sealtrain.signing.dsse import Envelope

__all__ = ["FoundDataset", "find_datasets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDataset:
    """A sealed dataset that fits the recipe; its records are still sealed."""

    folder: Folder
    role: str
    weight: float
    max_records: int | None
    columns: dict[str, str]
    manifest: DatasetManifest
    envelope: dict[str, JsonValue]
    stanzas: tuple[Stanza, ...]


def find_datasets(
    paths: Iterable[Path | str],
    recipe: Recipe,
    consortium: Consortium,
    *,
    owner: str | None = None,
) -> tuple[FoundDataset, ...]:
    """The recipe's datasets, in its order.

    Args:
        paths: Sealed datasets, or folders that hold them; a URL names one dataset.
        recipe: Names them by owner and name.
        consortium: Its members' signatures count.
        owner: Only the datasets of this owner; all when ``None``.

    Raises:
        DatasetUnknown: A dataset is missing.
        DatasetMismatch: A dataset is present twice.
        NoStanza: A dataset was never wrapped for any recipe.
        SignatureInvalid: A manifest is not signed by its owner.
    """
    present: dict[tuple[str, str], tuple[Folder, DatasetManifest, Envelope]] = {}
    for folder in _folders(paths):
        envelope = read_dataset_envelope(folder)
        manifest = verify_dataset(envelope, consortium)
        key = (manifest.owner, manifest.name)
        if key in present:
            raise DatasetMismatch(
                f"dataset {manifest.name} was found twice",
                check="datasets",
                owner=manifest.owner,
                got=f"{present[key][0].name} and {folder.name}",
                hint="keep only the folder that its owner registered",
            )
        present[key] = (folder, manifest, envelope)
    found = []
    for wanted in recipe.datasets:
        if owner not in (None, wanted.owner):
            continue
        if (wanted.owner, wanted.name) not in present:
            raise DatasetUnknown(
                f"dataset {wanted.name} is missing",
                check="datasets",
                owner=wanted.owner,
                expected=f"a sealed dataset {wanted.name} of {wanted.owner}",
                hint="pass its folder with --data",
            )
        folder, manifest, envelope = present[wanted.owner, wanted.name]
        found.append(
            FoundDataset(
                folder=folder,
                role=wanted.role,
                weight=wanted.weight,
                max_records=wanted.max_records,
                columns=wanted.columns,
                manifest=manifest,
                envelope=envelope.to_dict(),
                stanzas=_for_brokers(folder),
            )
        )
    return tuple(found)


def _for_brokers(folder: Folder) -> tuple[Stanza, ...]:
    _dataset_id, stanzas = read_stanzas(folder)
    wrapped = tuple(stanza for stanza in stanzas if stanza.kind in ("recipe", "share"))
    if not wrapped:
        raise NoStanza(
            "dataset is sealed for no recipe",
            check="stanza",
            got=f"{len(stanzas)} other stanzas",
            expected="a recipe stanza, or a share for each of several brokers",
            hint="ask its owner to run: sealtrain rewrap --deployment",
        )
    return wrapped


def _folders(paths: Iterable[Path | str]) -> Iterator[Folder]:
    for path in paths:
        if isinstance(path, str):
            from sealtrain.storage.connect import open_folder

            yield open_folder(path)
        elif (path / "dataset.json").is_file():
            yield path
        elif path.is_dir():
            yield from sorted(inner.parent for inner in path.glob("*/dataset.json"))
        else:
            raise UsageError(
                f"{path} is not a sealed dataset", hint="name a folder made by: sealtrain seal"
            )
