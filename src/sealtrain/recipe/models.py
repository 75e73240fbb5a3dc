"""Digests of the models and tokenizers that a recipe names, each folder read once.

A guest that is about to run also takes a copy while it reads, and loads that copy: it loads exactly
the bytes that it hashed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from sealtrain.base.privatefolder import PrivateFolder
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.fields import resolve_inside
from sealtrain.recipe.lockfile import (
    FurtherModelPin,
    ModelPin,
    SealedModelPin,
    TokenizerPin,
    tokenizer_kind,
)
from sealtrain.recipe.modelfolder import MeasuredFolder, measure_folder
from sealtrain.recipe.modelspec import FolderTokenizer, Model, ModelFromConfig, ModelFromFolder
from sealtrain.recipe.schema import PhaseRecipe

BASE: Final = ".base"
"""Folder of a private folder that the recipe's paths start from; no path of a recipe names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPins:
    """Digests as a lock holds them."""

    model: ModelPin | SealedModelPin
    tokenizer: TokenizerPin
    further: dict[str, FurtherModelPin]


def measure_models(
    recipe: PhaseRecipe, base_dir: Path, *, into: PrivateFolder | None = None
) -> ModelPins:
    """Measure the base model, its tokenizer and further models.

    Args:
        recipe: Names the models.
        base_dir: Folder that its paths start from.
        into: Gets a copy of each file that is read, at the same path from its folder ``BASE``.

    Raises:
        ModelInvalid: A folder is missing or breaks the rules of modelfolder.py.
    """
    every = [recipe.model, *recipe.further_models.values()]
    paths = [model.path for model in every if isinstance(model, ModelFromFolder)]
    tokenizers = [
        model.tokenizer.path for model in every if isinstance(model.tokenizer, FolderTokenizer)
    ]
    _refuse_nested({*paths, *tokenizers}, recipe.scripts)
    folders = {
        path: _measure_folder(path, base_dir, into, weights=path in paths)
        for path in sorted({*paths, *tokenizers})
    }
    return ModelPins(
        model=_model_pin(recipe.model, folders),
        tokenizer=_tokenizer_pin(recipe.model, folders),
        further={
            name: FurtherModelPin(
                model=_folder_pin(model, folders), tokenizer=_tokenizer_pin(model, folders)
            )
            for name, model in recipe.further_models.items()
        },
    )


def place_in(path: str) -> str:
    """Path of a recipe's file inside a private folder."""
    return os.path.normpath(f"{BASE}/{path}")


def _measure_folder(
    path: str, base_dir: Path, into: PrivateFolder | None, *, weights: bool
) -> MeasuredFolder:
    copies = None if into is None else partial(_copy, into, path)
    return measure_folder(resolve_inside(base_dir, path), weights=weights, copies=copies)


def _copy(into: PrivateFolder, path: str, name: str) -> AbstractContextManager[BinaryIO]:
    return into.writer(f"{place_in(path)}/{name}")


def _refuse_nested(folders: set[str], scripts: Sequence[str]) -> None:
    for path in (*sorted(folders), *scripts):
        if any(str(parent) in folders for parent in PurePosixPath(path).parents):
            raise ModelInvalid(
                f"the recipe's path lies inside another of its folders: {path}",
                hint="give each model and tokenizer a folder of its own",
            )


def _model_pin(model: Model, folders: dict[str, MeasuredFolder]) -> ModelPin | SealedModelPin:
    if isinstance(model, ModelFromFolder):
        return _folder_pin(model, folders)
    if isinstance(model, ModelFromConfig):
        return ModelPin(kind="config", sha256=model.digest)
    return SealedModelPin(kind="sealed", sha256=None)


def _folder_pin(model: ModelFromFolder, folders: dict[str, MeasuredFolder]) -> ModelPin:
    return ModelPin(kind="folder", sha256=folders[model.path].model_digest)


def _tokenizer_pin(model: Model, folders: dict[str, MeasuredFolder]) -> TokenizerPin:
    tokenizer = model.tokenizer
    if not isinstance(tokenizer, FolderTokenizer):
        return TokenizerPin(kind=tokenizer_kind(model), sha256=None)
    return TokenizerPin(kind="folder", sha256=folders[tokenizer.path].tokenizer_digest)
