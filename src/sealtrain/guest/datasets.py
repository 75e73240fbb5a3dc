"""Find the sealed datasets a recipe names.

1. every dataset of the recipe is present exactly once, by owner and name; of a series, every
   member that a run reads;
2. its manifest is signed by that owner, a member of the consortium;
3. its header carries stanzas for brokers.

The brokers decide whether it may be opened for this recipe; the cipher enforces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.base.canonical import JsonValue
from sealtrain.consortium.datasets import (
    DatasetManifest,
    read_dataset_envelope,
    verify_dataset,
)
from sealtrain.consortium.errors import DatasetMismatch, SeriesMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.series import block_of, chain_of, member_digest, members_read
from sealtrain.errors import UsageError
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.recipe.schema import PhaseRecipe
from sealtrain.sealing.errors import NoStanza
from sealtrain.sealing.places import Folder
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.sealing.stanza import Stanza
from sealtrain.signing.dsse import Envelope

if TYPE_CHECKING:
    from sealtrain.client.grants import WantedKey


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

    @property
    def wanted(self) -> WantedKey:
        """As the brokers are asked for its key."""
        from sealtrain.client.grants import WantedKey

        return WantedKey(
            dataset_id=self.manifest.dataset_id,
            root=self.manifest.root,
            owner=self.manifest.owner,
            owner_id=self.manifest.owner_id,
            stanzas=self.stanzas,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """A sealed dataset that lies in one of the folders; its manifest is verified."""

    folder: Folder
    manifest: DatasetManifest
    envelope: Envelope


def find_datasets(
    paths: Iterable[Path | str],
    recipe: PhaseRecipe,
    consortium: Consortium,
    *,
    owner: str | None = None,
    chains: Mapping[tuple[str, str], Sequence[DatasetManifest]] | None = None,
) -> tuple[FoundDataset, ...]:
    """The recipe's datasets, in its order; of a series the members that a run reads, by number.

    Args:
        paths: Sealed datasets, or folders that hold them; a URL names one dataset.
        recipe: Names them by owner and name.
        consortium: Its members' signatures count.
        owner: Only the datasets of this owner; all when ``None``.
        chains: Members of the recipe's series as the brokers list them, by owner and name; the
            members that are present when ``None``.

    Raises:
        DatasetUnknown: A dataset, or a member of a series, is missing.
        DatasetMismatch: A dataset is present twice.
        SeriesMismatch: A member is another one than the brokers list, or members make no chain.
        NoStanza: A dataset was never wrapped for any recipe.
        SignatureInvalid: A manifest is not signed by its owner.
    """
    present: dict[tuple[str, str], list[_Present]] = {}
    for folder in _folders(paths):
        envelope = read_dataset_envelope(folder)
        manifest = verify_dataset(envelope, consortium)
        one = _Present(folder=folder, manifest=manifest, envelope=envelope)
        present.setdefault((manifest.owner, manifest.name), []).append(one)
    found = []
    for wanted in recipe.datasets:
        if owner not in (None, wanted.owner):
            continue
        key = (wanted.owner, wanted.name)
        here = present.get(key, [])
        if not here:
            raise DatasetUnknown(
                f"dataset {wanted.name} is missing",
                check="datasets",
                owner=wanted.owner,
                expected=f"a sealed dataset {wanted.name} of {wanted.owner}",
                hint="pass its folder with --data",
            )
        if wanted.series is None:
            chosen = [_alone(here)]
        else:
            chosen = _members(here, None if chains is None else chains[key])
        found += [
            FoundDataset(
                folder=present.folder,
                role=wanted.role,
                weight=wanted.weight,
                max_records=wanted.max_records,
                columns=wanted.columns,
                manifest=present.manifest,
                envelope=present.envelope.to_dict(),
                stanzas=_for_brokers(present.folder),
            )
            for present in chosen
        ]
    return tuple(found)


def _alone(here: Sequence[_Present]) -> _Present:
    if len(here) > 1:
        raise DatasetMismatch(
            f"dataset {here[0].manifest.name} was found twice",
            check="datasets",
            owner=here[0].manifest.owner,
            got=f"{here[0].folder.name} and {here[1].folder.name}",
            hint="keep only the folder that its owner registered",
        )
    return here[0]


def _members(here: Sequence[_Present], chain: Sequence[DatasetManifest] | None) -> list[_Present]:
    """The members of a series that a run reads, by number."""
    by_number: dict[int, list[_Present]] = {}
    for present in here:
        by_number.setdefault(block_of(present.manifest).number, []).append(present)
    if chain is None:
        known = [_alone(by_number[number]).manifest for number in sorted(by_number)]
        replaces = block_of(known[-1]).mode == "replace"
        chain = known[-1:] if replaces else chain_of(known)
    chosen = []
    for wanted in members_read(chain):
        number = block_of(wanted).number
        if number not in by_number:
            raise DatasetUnknown(
                f"member {number} of the series {wanted.name} is missing",
                check="datasets",
                owner=wanted.owner,
                dataset=wanted.name,
                expected=wanted.dataset_id,
                hint="pass its folder with --data",
            )
        member = _alone(by_number[number])
        if member_digest(member.manifest) != member_digest(wanted):
            raise SeriesMismatch(
                f"member {number} of the series is another one than the brokers list",
                check="series",
                owner=wanted.owner,
                dataset=wanted.name,
                got=member.manifest.dataset_id,
                expected=wanted.dataset_id,
            )
        chosen.append(member)
    return chosen


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
