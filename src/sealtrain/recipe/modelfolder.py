"""Rules for a model or tokenizer folder, so that its digest covers all that a loader may read.

1. Every file is of a kind that holds data, never code: safetensors, JSON, text, SentencePiece.
2. No symbolic link and no hidden file, apart from the marks that download tools leave.
3. No configuration names foreign code, another base model, or a weight file elsewhere.
4. A model has ``config.json`` and weights.
"""

from __future__ import annotations

from pathlib import Path

from sealtrain.base.canonical import JsonValue, parse_json
from sealtrain.base.digests import tree_sha256
from sealtrain.base.filenames import DATA_SUFFIXES, is_vocabulary, may_carry_code
from sealtrain.base.files import read_bounded
from sealtrain.errors import DataInvalid, ModelInvalid
from sealtrain.recipe.modelspec import refuse_foreign_code

__all__ = ["model_digest", "tokenizer_digest"]

MAX_CONFIG_BYTES = 8 << 20
WEIGHTS = (".safetensors",)
_TEMPLATES = (".jinja",)
"""Chat templates: rendered in a sandbox, and measured here."""
_TEXTS = (*(suffix for suffix in DATA_SUFFIXES if suffix not in WEIGHTS), *_TEMPLATES)
_HIDDEN_MARKS = (".gitattributes", ".gitignore", ".cache", ".git")


def model_digest(folder: Path) -> str:
    """Digest of a model folder (``tree_sha256``), after the rules above.

    Raises:
        ModelInvalid: A rule is broken; names the file.
    """
    files = _check(folder)
    if "config.json" not in files:
        raise ModelInvalid(f"model folder has no config.json: {folder.name}")
    if not any(name.endswith(WEIGHTS) for name in files):
        raise ModelInvalid(
            f"model folder has no safetensors weights: {folder.name}",
            hint="save it with save_pretrained, which writes safetensors",
        )
    return _tree(folder, None)


def tokenizer_digest(folder: Path) -> str:
    """Digest of a tokenizer folder: as ``model_digest``, but weights are neither asked nor read.

    Raises:
        ModelInvalid: A rule is broken; names the file.
    """
    files = _check(folder)
    if not files & {"tokenizer.json", "tokenizer_config.json"}:
        raise ModelInvalid(f"folder holds no tokenizer: {folder.name}")
    return _tree(folder, _TEXTS)


def _tree(folder: Path, suffixes: tuple[str, ...] | None) -> str:
    try:
        return tree_sha256(folder, suffixes=suffixes)
    except DataInvalid as error:
        raise ModelInvalid(error.message) from error


def _check(folder: Path) -> set[str]:
    if not folder.is_dir():
        raise ModelInvalid(f"no such model folder: {folder.name}")
    files: set[str] = set()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        name = relative.as_posix()
        if path.is_symlink():
            raise ModelInvalid(
                f"model folder holds a symbolic link: {name}",
                hint="copy the files (huggingface-cli download --local-dir does)",
            )
        if relative.parts[0] in _HIDDEN_MARKS:
            continue
        if any(part.startswith(".") or part == "__pycache__" for part in relative.parts):
            raise ModelInvalid(f"model folder holds a file that is not measured: {name}")
        if not path.is_file():
            continue
        _check_kind(path, name)
        if path.suffix == ".json" and not is_vocabulary(name):
            _check_settings(path, name)
        files.add(name)
    return files


def _check_kind(path: Path, name: str) -> None:
    if path.suffix in _TEMPLATES or not may_carry_code(name):
        return
    raise ModelInvalid(
        f"model folder holds {name}, which may carry code",
        got=path.suffix or "no suffix",
        expected=", ".join((*WEIGHTS, *_TEXTS)),
        hint="convert pickled weights to safetensors and remove what the model does not need",
    )


def _check_settings(path: Path, name: str) -> None:
    if name == "adapter_config.json":
        raise ModelInvalid(
            "model folder is an adapter, whose base model lies elsewhere",
            hint="merge the adapter into its base and save that",
        )
    try:
        settings = parse_json(read_bounded(path, MAX_CONFIG_BYTES), max_bytes=MAX_CONFIG_BYTES)
        refuse_foreign_code(settings)
    except DataInvalid as error:
        raise ModelInvalid(f"{name}: {error.message}") from error
    except ValueError as error:
        raise ModelInvalid(f"{name}: {error}") from error
    if name.endswith(".safetensors.index.json"):
        _check_index(settings, path.parent, name)


def _check_index(index: JsonValue, folder: Path, name: str) -> None:
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict):
        raise ModelInvalid(f"{name} has no weight_map")
    present = {path.name for path in folder.iterdir() if path.suffix in WEIGHTS}
    for shard in shards.values():
        if shard not in present:
            raise ModelInvalid(f"{name} names weights that are not in the folder")
