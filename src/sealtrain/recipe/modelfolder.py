"""Rules for a model or tokenizer folder, so that its digest covers all that a loader may read.

1. Every file is of a kind that holds data, never code: safetensors, JSON, text, SentencePiece.
2. No symbolic link and no hidden file, apart from the marker files of download tools.
3. No configuration names foreign code, another base model, or a weight file elsewhere.
4. A model has ``config.json`` and weights.

Each file is opened and read once. Hash, check of rule 3 and copy use the same bytes: an operator
who changes a file afterwards changes none of them.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from sealtrain.base.canonical import JsonValue, canonical_json, parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.filenames import DATA_SUFFIXES, is_vocabulary, may_carry_code
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.modelspec import refuse_foreign_code

MAX_CONFIG_BYTES = 8 << 20
WEIGHTS = (".safetensors",)
_READ_BYTES: Final = 1 << 20
_AT_A_TIME: Final = 8
"""Files; a processor hashes one as fast as it reads it."""
_TEMPLATES = (".jinja",)
"""Chat templates: rendered in a sandbox, and measured here."""
_TEXTS = (*(suffix for suffix in DATA_SUFFIXES if suffix not in WEIGHTS), *_TEMPLATES)
_OBJECTS: Final = (
    *("config.json", "generation_config.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "preprocessor_config.json", "processor_config.json"),
)
"""Files of settings that loaders take for an object."""
_HIDDEN_MARKS = (".gitattributes", ".gitignore", ".cache", ".git")

Copies = Callable[[str], AbstractContextManager[BinaryIO]]
"""Opens the copy of a file by its name in the folder."""


@dataclass(frozen=True, slots=True)
class MeasuredFolder:
    """A folder that keeps the rules.

    Attributes:
        name: Name of the folder, for refusals.
        files: Relative POSIX path of each file that was read → its SHA-256.
    """

    name: str
    files: Mapping[str, str]

    @property
    def model_digest(self) -> str:
        """Tree digest of all files (spec/recipe.md §3), 64 hex digits.

        Raises:
            ModelInvalid: Rule 4 is broken.
        """
        if "config.json" not in self.files:
            raise ModelInvalid(f"model folder has no config.json: {self.name}")
        if not any(name.endswith(WEIGHTS) for name in self.files):
            raise ModelInvalid(
                f"model folder has no safetensors weights: {self.name}",
                hint="save it with save_pretrained, which writes safetensors",
            )
        return _digest(self.files)

    @property
    def tokenizer_digest(self) -> str:
        """Tree digest of the files that a tokenizer reads, 64 hex digits.

        Raises:
            ModelInvalid: The folder holds no tokenizer.
        """
        texts = {name: digest for name, digest in self.files.items() if name.endswith(_TEXTS)}
        if not texts.keys() & {"tokenizer.json", "tokenizer_config.json"}:
            raise ModelInvalid(f"folder holds no tokenizer: {self.name}")
        return _digest(texts)


def _digest(files: Mapping[str, str]) -> str:
    return sha256_hex(canonical_json(dict(files)))


def measure_folder(
    folder: Path, *, weights: bool = True, copies: Copies | None = None
) -> MeasuredFolder:
    """Read a folder once, hash each file, and check rules 1 to 3.

    Args:
        folder: Of a model or tokenizer.
        weights: Read all files; without it, only those of a tokenizer.
        copies: Gets the bytes of each file that is read.

    Raises:
        ModelInvalid: A rule is broken; names the file.
    """
    if not folder.is_dir():
        raise ModelInvalid(f"no such model folder: {folder.name}")
    found = dict(_files(folder))
    names = sorted(name for name in found if weights or name.endswith(_TEXTS))
    digests = {}
    with closing(_all_read(names, found, copies)) as read:
        for name, (settings, digest) in zip(names, read, strict=True):
            digests[name] = digest
            if settings is not None:
                _check_settings(settings, name, found)
    return MeasuredFolder(folder.name, digests)


def _all_read(
    names: Sequence[str], found: Mapping[str, Path], copies: Copies | None
) -> Generator[tuple[bytes | None, str], None, None]:
    """As ``_read``, of each file in turn; several are read at a time.

    No thread is left when this ends, and where it ends early, none reads on.
    """
    enough = threading.Event()

    def read(name: str) -> tuple[bytes | None, str]:
        with nullcontext() if copies is None else copies(name) as copy:
            return _read(found[name], name, copy, enough)

    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="sealtrain-measuring") as threads:
        try:
            yield from threads.map(read, names)
        finally:
            enough.set()
            threads.shutdown(cancel_futures=True)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
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
        if path.is_file():
            _check_kind(path, name)
            yield name, path


def _check_kind(path: Path, name: str) -> None:
    if path.suffix in _TEMPLATES or not may_carry_code(name):
        return
    raise ModelInvalid(
        f"model folder holds {name}, which may carry code",
        got=path.suffix or "no suffix",
        expected=", ".join((*WEIGHTS, *_TEXTS)),
        hint="convert pickled weights to safetensors and remove files that the model does not need",
    )


def _read(
    path: Path, name: str, copy: BinaryIO | None, enough: threading.Event
) -> tuple[bytes | None, str]:
    """Bytes of a settings file, ``None`` for other files, and the SHA-256 of the file.

    Where ``enough`` is set meanwhile, they are not needed any more.
    """
    is_settings = path.suffix == ".json" and not is_vocabulary(name)
    kept, digest = bytearray(), hashlib.sha256()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ModelInvalid(f"cannot read {name}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while not enough.is_set() and (data := file.read(_READ_BYTES)):
            digest.update(data)
            if copy is not None:
                copy.write(data)
            if is_settings:
                kept += data
                if len(kept) > MAX_CONFIG_BYTES:
                    raise ModelInvalid(
                        f"{name} is too long", expected=f"at most {MAX_CONFIG_BYTES} bytes"
                    )
    return bytes(kept) if is_settings else None, digest.hexdigest()


def _check_settings(data: bytes, name: str, files: Mapping[str, Path]) -> None:
    if name == "adapter_config.json":
        raise ModelInvalid(
            "model folder is an adapter, whose base model lies elsewhere",
            hint="merge the adapter into its base and save that",
        )
    try:
        settings = parse_json(data, max_bytes=MAX_CONFIG_BYTES)
        refuse_foreign_code(settings)
    except (DataInvalid, LimitExceeded) as error:
        raise ModelInvalid(f"{name}: {error.message}") from error
    except ValueError as error:
        raise ModelInvalid(f"{name}: {error}") from error
    if not isinstance(settings, dict) and name.rpartition("/")[2] in _OBJECTS:
        raise ModelInvalid(
            f"{name} is no JSON object", hint="take the file as save_pretrained writes it"
        )
    if name.endswith(".safetensors.index.json"):
        _check_index(settings, name, files)


def _check_index(index: JsonValue, name: str, files: Mapping[str, Path]) -> None:
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict):
        raise ModelInvalid(f"{name} has no weight_map")
    beside = name.rpartition("/")[0]
    for shard in shards.values():
        if f"{beside}/{shard}".removeprefix("/") not in files or not str(shard).endswith(WEIGHTS):
            raise ModelInvalid(f"{name} names weights that are not in the folder")
