"""The files of a trained model, sealed to its recipients, and the rules for their folder.

Format: spec/sealed-file.md §9. Every file lies under its own header and names in its core the run,
the consortium, itself, its position and how many there are. ``sealing.openedmodel`` opens them.

A model that is handed on (§9.1) lies in the same folder as a sealed dataset of raw files, whose
index and shards are then the files; only guests of the next recipe open it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import scandir
from pathlib import Path
from typing import Final

from sealtrain.base.filenames import clash, portable_name
from sealtrain.base.visible_text import escape_hidden
from sealtrain.sealing.description import INDEX_NAME, DatasetDescription, shard_name
from sealtrain.sealing.header import SUFFIX, FileContext
from sealtrain.sealing.index import schema_digest_of

MODEL_FOLDER: Final = "model"
"""Folder of the sealed files in a run's folder."""
RUN_MANIFEST: Final = "manifest.json"
"""The signed manifest in a run's folder."""
MAX_FILES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedOutput:
    """One sealed file of a model.

    Attributes:
        name: As it was in training (``1_Pooling/config.json``).
        size: Bytes of the sealed file.
        sha256: Of the sealed file, 64 hex digits.
        root: File root of the sealed file, 64 hex digits.
    """

    name: str
    size: int
    sha256: str
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """Every file that a run made, in the byte order of their names.

    Attributes:
        run_id: 32 hex digits.
        owner_id: The consortium's id, 64 hex digits: all its owners own the model.
        files: At least one.
        dataset: The sealed dataset that the files are, where the model is handed on.
    """

    run_id: str
    owner_id: str
    files: tuple[TrainedOutput, ...]
    dataset: DatasetDescription | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the files, in order."""
        return tuple(file.name for file in self.files)

    def context(self, position: int) -> FileContext:
        """What the file at a position of ``files`` must be."""
        if self.dataset is not None:
            return dataset_context(
                self.dataset.dataset_id, self.dataset.owner_id, self.dataset.name, position
            )
        return model_context(
            self.files[position].name, position, len(self.files), self.run_id, self.owner_id
        )


def model_context(name: str, position: int, count: int, run_id: str, owner_id: str) -> FileContext:
    """Core of a file of a model.

    Args:
        name: As it was in training.
        position: Among the files in the byte order of their names, from 0.
        count: How many files there are.
        run_id: 32 hex digits.
        owner_id: The consortium's id, 64 hex digits.
    """
    return FileContext(
        dataset_id=run_id,
        owner_id=owner_id,
        name=name,
        shard=position,
        kind="model",
        binding={"files": count},
    )


def dataset_context(dataset_id: str, owner_id: str, name: str, position: int) -> FileContext:
    """Core of a file of a model that is handed on.

    Args:
        dataset_id: 32 hex digits.
        owner_id: Of the owner who adopts the model, 64 hex digits.
        name: Of the sealed model in the next recipe.
        position: 0 for the index, then the shards.
    """
    return FileContext(
        dataset_id=dataset_id,
        owner_id=owner_id,
        name=name,
        shard=max(0, position - 1),
        schema_digest=schema_digest_of(None),
        kind="raw" if position else "index",
    )


def dataset_names(count: int) -> tuple[str, ...]:
    """Names of the ``count`` files of a model that is handed on, in their order."""
    return tuple(
        place.removesuffix(SUFFIX)
        for place in (INDEX_NAME, *(shard_name(number) for number in range(count - 1)))
    )


def check_sealed_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names under which files of a model lie in its folder, if one folder can hold them.

    Args:
        names: Of the files as they were in training, in byte order.

    Raises:
        ValueError: One is not portable, two clash, they are not in order, or there are none or
            more than 4096.
    """
    if not 0 < len(names) <= MAX_FILES:
        raise ValueError(f"are not 1 to {MAX_FILES} files")
    if list(names) != sorted({portable_name(name) for name in names}):
        raise ValueError("are not in order, or one is named twice")
    sealed = tuple(f"{name}{SUFFIX}" for name in names)
    if clash(names) is not None or clash(sealed) is not None:
        raise ValueError("have names that one folder cannot hold")
    return sealed


def model_name(sealed: str) -> str:
    """Name in training of the file that lies at ``sealed`` in the model's folder.

    Raises:
        ValueError: No file of a model lies there.
    """
    if not sealed.endswith(SUFFIX):
        raise ValueError(f"does not end in {SUFFIX}")
    return portable_name(sealed.removesuffix(SUFFIX))


def holds_sealed_files(source: Path) -> bool:
    """Whether a folder holds files that seem sealed: none that an owner's data would have."""
    return source.is_dir() and next(source.rglob(f"*{SUFFIX}"), None) is not None


def strange_entry(folder: Path, named: Sequence[str]) -> str | None:
    """What lies in a model's folder besides regular files of the given names and their folders.

    Args:
        folder: The model's folder, which may hold anything. No entry is opened, and the first
            strange one ends the search.
        named: Relative paths that may be there.

    Returns:
        Relative path of an entry, printable; ``None`` when there is none.
    """
    files = set(named)
    folders = {parent.as_posix() for name in named for parent in Path(name).parents}
    for inside in sorted(folders):
        place = folder / inside
        if place.is_symlink() or not place.is_dir():
            continue  # a file that is named below it is found missing
        with scandir(place) as entries:
            for entry in entries:
                path = entry.name if inside == "." else f"{inside}/{entry.name}"
                regular = path in files and entry.is_file(follow_symlinks=False)
                if not regular and not (path in folders and entry.is_dir(follow_symlinks=False)):
                    return escape_hidden(path, 200)
    return None
