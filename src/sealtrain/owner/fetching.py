"""Brings a completed run's model and manifest here, whole or not at all.

Files come into a hidden folder beside the target, where an interrupted transfer goes on, and the
folder gets its name once the manifest is the one that the ledger has, and every file the one that
the ledger's entry names. A store that holds anything else leaves nothing here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from sealtrain.base.files import open_regular
from sealtrain.errors import AlreadyExists, DataInvalid
from sealtrain.owner.runs import Completed
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.storage.connect import open_folder
from sealtrain.storage.errors import OutputStoreInvalid
from sealtrain.storage.outputs import OutputIndex, OutputStore
from sealtrain.storage.pieces import Progress, fetch

_READ: Final = 1 << 20


def _silent(_total: int) -> AbstractContextManager[Progress]:
    return nullcontext(lambda _added: None)


def fetch_outputs(
    url: str,
    compose_hash: str,
    completed: Completed,
    target: Path,
    *,
    progress: Callable[[int], AbstractContextManager[Progress]] = _silent,
) -> list[str]:
    """Fetch a run's outputs; returns the names of its files.

    Args:
        url: Of the output store.
        compose_hash: Of the run's document.
        completed: What the ledger has of the run.
        target: Folder to make.
        progress: Given the number of all bytes; what it gives is called with those that came.

    Raises:
        AlreadyExists: The folder is there.
        OutputStoreInvalid: The store holds something else, or no completed run.
        StorageUnreachable: It does not deliver; what came is kept for the next try.
    """
    if os.path.lexists(target):
        raise AlreadyExists(f"{target} is there already", hint="choose another folder: --out")
    there = open_folder(url)
    part = target.with_name(f".{target.name}.part")
    try:
        index = _require_completed(OutputStore(there, compose_hash), completed)
        total = sum(pieces.size for pieces in index.files.values())
        with progress(total) as advance:
            for name, pieces in sorted(index.files.items()):
                fetch(there, name, pieces, part / name, progress=advance)
        _require_recorded(part, sorted(index.files), completed)
        part.rename(target)
    except (OutputStoreInvalid, DataInvalid):
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        there.close()
    return sorted(index.files)


def _require_completed(store: OutputStore, completed: Completed) -> OutputIndex:
    """The store's index, if it is of this run, completed."""
    index = store.read()
    if index is None or index.state != "completed" or index.run_id != completed.run_id:
        raise OutputStoreInvalid(
            "the output store does not hold this run, completed",
            check="state",
            got="nothing" if index is None else f"{index.state} {index.run_id}",
            expected=f"completed {completed.run_id}",
            hint="name the store that the run ticket named: --store URL",
        )
    return index


def _require_recorded(folder: Path, names: list[str], completed: Completed) -> None:
    """Return if files are those that the ledger's entry names."""
    expected = dict(completed.outputs or {})
    expected[RUN_MANIFEST] = completed.manifest_digest
    for name in sorted({*names, *expected}):
        place = folder / name
        digest = _digest(place) if place.is_file() else "nothing"
        wanted = expected.get(name, None if completed.outputs is not None else digest)
        if digest != wanted:
            raise OutputStoreInvalid(
                f"the output store holds another {name} than the ledger names",
                check="manifest" if name == RUN_MANIFEST else "outputs",
                got=digest,
                expected=wanted or "no such file",
                hint="ask the operator of the store; nothing was kept",
            )


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with os.fdopen(open_regular(path), "rb") as file:
        while data := file.read(_READ):
            found.update(data)
    return found.hexdigest()
