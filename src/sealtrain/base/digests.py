"""SHA-256 of bytes, files and folders, as lower-case hex: the form every document uses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.errors import DataInvalid


def sha256_hex(data: bytes) -> str:
    """SHA-256 of ``data``, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, 64 hex digits, read in bounded memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def map_sha256(digests: Mapping[str, JsonValue]) -> str:
    """SHA-256 of the canonical JSON of a map, such as file names to digests, 64 hex digits."""
    return sha256_hex(canonical_json(dict(digests)))


def tree_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Relative POSIX path and place of what lies in a folder, sorted; folders are left out.

    Hidden files and folders and ``__pycache__`` are left out, too.

    Raises:
        DataInvalid: The folder does not exist or holds a symbolic link.
    """
    if not folder.is_dir():
        raise DataInvalid(f"no such folder: {folder}")
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(part.startswith(".") or part == "__pycache__" for part in relative.parts):
            continue
        if path.is_symlink():
            raise DataInvalid(f"folder holds a symbolic link: {relative.as_posix()}")
        if not path.is_dir():
            yield relative.as_posix(), path


def tree_sha256(folder: Path, *, suffixes: tuple[str, ...] | None = None) -> str:
    """Digest of a folder: SHA-256 of the canonical map from relative POSIX path to file SHA-256.

    Args:
        folder: Root of the tree; ``tree_files`` says what counts.
        suffixes: Only files ending so (``(".py",)``); every file when ``None``.

    Raises:
        DataInvalid: The folder does not exist, holds a symbolic link, or holds no such file.
    """
    digests: dict[str, JsonValue] = {
        name: file_sha256(path)
        for name, path in tree_files(folder)
        if path.is_file() and (suffixes is None or name.endswith(suffixes))
    }
    if not digests:
        raise DataInvalid(f"folder holds no file to measure: {folder}")
    return map_sha256(digests)
