"""Judge an owner's data by the recipe that they are sealed for, before anything is sealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.errors import FormatUnknown, UsageError
from sealtrain.recipe.records import RecordCheck, dataset_of
from sealtrain.sealing.sealer import SealOptions
from sealtrain.sealing.sourcefiles import layout_of, source_files
from sealtrain.sealing.tabular.batches import open_records
from sealtrain.sealing.tabular.tokens import TokenShards

if TYPE_CHECKING:
    from sealtrain.recipe.recipe import Recipe
    from sealtrain.sealing.sourcefiles import SourceFile

__all__ = ["check_data", "fitting", "layout_words"]


def fitting(
    recipe: Recipe,
    owner: str,
    name: str,
    source: Path | Mapping[str, SourceFile],
    options: SealOptions,
) -> SealOptions:
    """Options that seal a dataset as the recipe reads it.

    Args:
        recipe: That the data is sealed for.
        owner: Name of the owner.
        name: Of the dataset.
        source: File or folder with the data, or files that are opened in memory.
        options: As the owner gave them.

    Returns:
        The options with the layout that the dataset's role asks for, and the check of its records.

    Raises:
        DatasetUnknown: The recipe names no such dataset of this owner.
        FormatUnknown: Files are to be read as records and cannot be, by their names.
        UsageError: Layout and format make no sense together, or records are sealed for a model.
        DataInvalid: A file is missing, or a link.
    """
    dataset = dataset_of(recipe, owner, name)
    files = source_files(source)
    if dataset.role == "model":
        if not any(label == "config.json" for label, _ in files):
            raise UsageError(
                "the recipe reads a model here, and a model is a folder with config.json",
                check="role",
                owner=owner,
                got=", ".join(label for label, _ in files[:4]),
                expected="a folder that save_pretrained wrote, or the model folder of a run",
            )
        return options if options.layout != "auto" else replace(options, layout="raw")
    on_purpose = options.layout == "raw" or options.form == "file"
    if layout_of(options.layout, options.form, source, files) == "arrow":
        return replace(options, check=RecordCheck(recipe, dataset))
    if on_purpose:
        return options
    # What cannot be read as records says so by its name.
    open_records([path for _, path in files if isinstance(path, Path)], lambda _: None)
    raise FormatUnknown(
        "the recipe reads records here",
        check="format",
        owner=owner,
        hint="seal a file of records; to seal files as they are: --format file",
    )


def layout_words(words: Sequence[str]) -> SealOptions:
    """How ``sealtrain seal`` would read records, given these words of it; others change nothing."""
    given: dict[str, str] = {}
    for at, word in enumerate(words):
        option, mark, value = word.partition("=")
        given[option] = value if mark else words[at + 1] if at + 1 < len(words) else ""
    return SealOptions(
        layout=given.get("--layout", "auto"),
        form=given.get("--format", "auto"),
        token_shards=TokenShards(
            dtype=given.get("--dtype"), row_tokens=int(given.get("--row-tokens", "4096"))
        ),
    )


def check_data(recipe: Recipe, owner: str, name: str, source: Path, options: SealOptions) -> int:
    """Read an owner's data to its end, as sealing would, and seal nothing.

    Returns:
        How many records there are; 0 of files.

    Raises:
        SealtrainError: As ``fitting``, and what sealing refuses of records.
    """
    chosen = fitting(recipe, owner, name, source, options)
    if chosen.check is None:
        return 0
    paths = [path for _, path in source_files(source) if isinstance(path, Path)]
    opened = open_records(
        paths, lambda _: None, form=chosen.form, folder=source, shards=chosen.token_shards
    )
    _, batches = chosen.check(opened)
    return sum(batch.num_rows for batch in batches)
