"""SHA-256 of bytes, files and folders, as lower-case hex: the form every document uses."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sealtrain.base.canonical import canonical_json
from sealtrain.errors import DataInvalid

__all__ = ["file_sha256", "sha256_hex", "tree_sha256"]


def sha256_hex(data: bytes) -> str:
    """SHA-256 of ``data``, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, 64 hex digits, read in bounded memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_sha256(folder: Path, *, suffixes: tuple[str, ...] | None = None) -> str:
    """Digest of a folder: SHA-256 of the canonical map from relative POSIX path to file SHA-256.

    Hidden files and folders and ``__pycache__`` are left out.

    Args:
        folder: Root of the tree.
        suffixes: Only files ending so (``(".py",)``); every file when ``None``.

    Raises:
        DataInvalid: The folder does not exist, holds a symbolic link, or holds no such file.
    """
    if not folder.is_dir():
        raise DataInvalid(f"no such folder: {folder}")
    digests: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(part.startswith(".") or part == "__pycache__" for part in relative.parts):
            continue
        if path.is_symlink():
            raise DataInvalid(f"folder holds a symbolic link: {relative.as_posix()}")
        if path.is_file() and (suffixes is None or path.name.endswith(suffixes)):
            digests[relative.as_posix()] = file_sha256(path)
    if not digests:
        raise DataInvalid(f"folder holds no file to measure: {folder}")
    return sha256_hex(canonical_json(digests))
