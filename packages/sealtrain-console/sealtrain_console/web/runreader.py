"""Reads runs on this machine, each file once as long as it does not change.

A page of many runs lists files by their time and reads those that it shows; what a table needs of a
manifest is kept, and the manifest is not. A file that is another, longer or newer is read again.
"""

from __future__ import annotations

import base64
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_MANIFEST_BYTES
from sealtrain.errors import SealtrainError
from sealtrain.guest.settings import FILE_NAME, holds_run, load_run
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain_console.web.runfolders import (
    LocalRun,
    RunSummary,
    read_run,
    run_paths,
    summary_of,
)

_MOST_KEPT: Final = 10_000

Found = TypeVar("Found")


class RunReader:
    """Summaries and ids of runs by their paths. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, Path], tuple[Hashable, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def summaries(self, paths: Sequence[Path]) -> list[RunSummary]:
        """What tables show of each run."""
        return [
            self._once("summary", path, lambda path: summary_of(read_run(path))) for path in paths
        ]

    def find(self, places: Sequence[Path], run_id: str) -> list[LocalRun]:
        """Every run with an id, the newest file first.

        Args:
            places: As of ``run_paths``.
            run_id: As the folder or the manifest claims it.
        """
        mine = [
            path
            for path in run_paths(places)
            if self._once("id", path, _read_claimed_run) == run_id
        ]
        return [run for run in map(read_run, mine) if run.run_id == run_id]

    def _once(self, what: str, path: Path, read: Callable[[Path], Found]) -> Found:
        key, stamp = (what, path), _stamp(path)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept[0] == stamp:
                self._kept.move_to_end(key)
                found: Found = kept[1]
                return found
        found = read(path)
        with self._lock:
            self._kept[key] = (stamp, found)
            while len(self._kept) > 2 * _MOST_KEPT:
                self._kept.popitem(last=False)
        return found


def _stamp(path: Path) -> Hashable:
    """What would show that a run's files changed."""
    stamps: list[Hashable] = []
    for file in (path, path / RUN_MANIFEST, path / FILE_NAME):
        try:
            found = file.stat()
            stamps.append((found.st_ino, found.st_size, found.st_mtime_ns))
        except (OSError, ValueError):
            stamps.append(None)
    return tuple(stamps)


def _read_claimed_run(path: Path) -> str | None:
    """The id that a folder or a manifest claims, without any check of its form.

    A run that ``read_run`` takes has this id: both read the same field of the same JSON.
    """
    try:
        if path.is_dir() and holds_run(path):
            return load_run(path)[1]
        file = path / RUN_MANIFEST if path.is_dir() else path
        document = json.loads(read_bounded(file, MAX_MANIFEST_BYTES))
        payload = base64.b64decode(document["bundle"]["dsseEnvelope"]["payload"])
        run_id = json.loads(payload)["predicate"]["run"]["run_id"]
    except (SealtrainError, ValueError, RecursionError, LookupError, TypeError):
        return None
    return run_id if isinstance(run_id, str) else None
