"""The folder that a recipe's paths start from, remembered on the machine where it was locked.

The lock is what owners approve, so no path of a machine is in it. ``sealtrain lock`` writes the
path into a file of its own beside the lock, relative to it; later commands on this machine read it
there. Nothing trusts it: every file that is found that way must have the digest that the lock pins.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.models import Document, Hex64
from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.recipe.lockfile import MAX_LOCK_BYTES

_NAME: Final = ".recipe.base.json"


class _BaseFolder(Document):
    """The file's content."""

    what = "base folder"
    refusal = DataInvalid
    max_bytes = 8 << 10

    version: Literal[1]
    recipe_hash: Hex64
    base: str


def remember_base(lock: Path, base: Path) -> None:
    """Note beside a lock where its recipe's paths start, unless that is the lock's own folder.

    Args:
        lock: ``recipe.lock.json``, as it was written.
        base: The recipe's folder.
    """
    note = lock.with_name(_NAME)
    if base.resolve() == lock.parent.resolve():
        note.unlink(missing_ok=True)
        return
    kept = _BaseFolder(
        version=1,
        recipe_hash=sha256_hex(read_bounded(lock, MAX_LOCK_BYTES)),
        base=os.path.relpath(base.resolve(), lock.parent.resolve()),
    )
    atomic_write(note, kept.to_bytes(), overwrite=True)


def base_of(lock: Path) -> Path:
    """The folder that a lock's paths start from: the remembered one, else the lock's own.

    What was remembered of another lock, or names no folder any more, counts for nothing.
    """
    try:
        kept = _BaseFolder.load(lock.with_name(_NAME))
        here = sha256_hex(read_bounded(lock, MAX_LOCK_BYTES))
    except (SealtrainError, OSError):
        return lock.parent
    base = Path(os.path.normpath(lock.parent.resolve() / kept.base))
    return base if kept.recipe_hash == here and base.is_dir() else lock.parent
