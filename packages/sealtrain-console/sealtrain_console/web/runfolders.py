"""Runs on this machine: folders that guests leave, and manifests. Each says only what it is.

Everything here is the word of the machine that holds the files. A manifest is read here and judged
elsewhere (``web.examined``), against an auditor's trust file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_MANIFEST_BYTES
from sealtrain.errors import SealtrainError
from sealtrain.guest.inventory import FoundCheckpoint, checkpoints_in
from sealtrain.guest.settings import holds_run, load_run
from sealtrain.manifest import form
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.form import Manifest
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.signing.continues import number_of

METRICS_FILE: Final = "metrics.jsonl"
_ALERTS_FILE: Final = "alerts.jsonl"
_MOST_RUNS: Final = 10_000
_MAX_ALERT_BYTES: Final = 1 << 20
_MOST_ALERTS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """A run as its folder or its manifest says.

    Attributes:
        path: The folder, or the manifest.
        run_id: Of the run; ``None`` where it cannot be read.
        manifest: What a completed run left, unverified.
        error: Why the folder or the manifest cannot be read.
    """

    path: Path
    run_id: str | None = None
    manifest: Manifest | None = field(default=None, repr=False)
    error: SealtrainError | None = None

    @property
    def folder(self) -> Path | None:
        """Where the run's files lie; ``None`` where only its manifest is here."""
        return self.path if self.path.is_dir() else None

    @property
    def manifest_file(self) -> Path:
        """Where its manifest lies, once there is one."""
        return self.path / RUN_MANIFEST if self.path.is_dir() else self.path

    @property
    def name(self) -> str:
        """Of the recipe where the manifest says it, else of the folder."""
        if self.manifest is None:
            return self.path.name
        recipe = self.manifest.predicate.recipe.lock.get("recipe")
        return str(recipe.get("name", "")) if isinstance(recipe, dict) else self.path.name

    @property
    def epsilon(self) -> float | None:
        """What it spent of privacy, as its manifest says; ``None`` without a bound."""
        if self.manifest is None:
            return None
        privacy = self.manifest.predicate.privacy
        return getattr(privacy, "epsilon", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What tables show of a run: so little that a console keeps it of each.

    Attributes:
        path: The folder, or the manifest.
        run_id: Of the run; ``None`` where it cannot be read.
        name: Of the recipe where a manifest says it, else of the folder.
        error: Why the folder or the manifest cannot be read.
        completed: What its manifest says, unverified; ``None`` where there is none.
    """

    path: Path
    run_id: str | None
    name: str
    error: SealtrainError | None
    completed: CompletedRun | None

    @property
    def folder(self) -> Path | None:
        """Where the run's files lie; ``None`` where only its manifest is here."""
        return self.path if self.path.is_dir() else None

    @property
    def running(self) -> bool:
        """Whether it is a folder that can be read and has no manifest yet."""
        return self.completed is None and self.error is None and self.folder is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRun:
    """What the manifest of a run claims.

    Attributes:
        digest: Of the manifest.
        simulated: It was simulated.
        steps: How many it trained.
        began: When.
        ended: When.
        epsilon: What it spent of privacy; ``None`` without a bound.
        number: Its place in a chain of runs, from 1; ``None`` outside of one.
        continues: Digest of the manifest before it; ``None`` where there is none.
    """

    digest: str
    simulated: bool
    steps: int
    began: str
    ended: str
    epsilon: float | None
    number: int | None
    continues: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredAlert:
    """An alert that fired; its value stays in the guest."""

    name: str
    step: int
    threshold: float | None


def summary_of(run: LocalRun) -> RunSummary:
    """What tables show of a run."""
    completed = None
    if run.manifest is not None:
        claimed = run.manifest.predicate
        completed = CompletedRun(
            digest=run.manifest.digest,
            simulated=claimed.simulated,
            steps=claimed.run.steps,
            began=claimed.run.started_at,
            ended=claimed.run.finished_at,
            epsilon=run.epsilon,
            number=number_of(claimed.continues),
            continues=None if claimed.continues is None else claimed.continues.manifest_digest,
        )
    return RunSummary(
        path=run.path, run_id=run.run_id, name=run.name, error=run.error, completed=completed
    )


def run_paths(places: Sequence[Path]) -> list[Path]:
    """Every run in some places, the newest file first; no file is read.

    Args:
        places: Folders of runs, folders that hold such folders, manifests.
    """
    found = [*islice(_folders(places), _MOST_RUNS)]
    return sorted(found, key=lambda path: (-_read_change_time(path), path.name))


def _folders(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_file() or holds_run(place) or (place / RUN_MANIFEST).is_file():
            yield place
            continue
        try:
            below = sorted(place.iterdir())
        except OSError:
            yield place
            continue
        for path in below:
            if holds_run(path) or (path / RUN_MANIFEST).is_file():
                yield path


def read_run(path: Path) -> LocalRun:
    """A run as its folder or its manifest says; what is wrong with it is its error."""
    try:
        file = path / RUN_MANIFEST if path.is_dir() else path
        manifest = None
        if file.is_file() or not path.is_dir():
            manifest = form.read(read_bounded(file, MAX_MANIFEST_BYTES))
        begun = load_run(path)[1] if path.is_dir() and holds_run(path) else None
        run_id = begun if manifest is None else manifest.predicate.run.run_id
        if begun not in (None, run_id):
            raise ClaimContradicted(
                "the manifest in this folder is of another run than the folder",
                check="run_id",
                got=run_id,
                expected=begun,
                hint="ask the operator of the machine that the folder came from",
            )
        return LocalRun(path=path, run_id=run_id, manifest=manifest)
    except SealtrainError as error:
        return LocalRun(path=path, error=error)


def _read_change_time(path: Path) -> float:
    for file in (path / RUN_MANIFEST, path / METRICS_FILE, path):
        try:
            return file.stat().st_mtime
        except OSError:
            continue
    return 0.0


def checkpoints_of(run: LocalRun) -> list[FoundCheckpoint]:
    """Its sealed checkpoints, newest first, as their files claim them.

    Raises:
        SealtrainError: The folder cannot be read as a run's.
    """
    folder = run.folder
    return checkpoints_in(folder) if folder is not None and holds_run(folder) else []


def alerts_of(run: LocalRun) -> list[FiredAlert]:
    """Alerts that went to the run's file, newest first.

    Raises:
        SealtrainError: The file is too long or cannot be read.
    """
    file = run.path / _ALERTS_FILE
    if run.folder is None or not file.is_file():
        return []
    lines = read_bounded(file, _MAX_ALERT_BYTES).splitlines()
    found = [alert for line in lines if (alert := _alert(line)) is not None]
    return found[::-1][:_MOST_ALERTS]


def _alert(line: bytes) -> FiredAlert | None:
    try:
        said: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match said:
        case {"alert": str(name), "step": int(step), "threshold": int() | float() | None as least}:
            return FiredAlert(name=name[:64], step=step, threshold=least)
    return None


def chains_of(runs: Sequence[RunSummary]) -> list[list[RunSummary]]:
    """Completed runs by the chain that they continue, each in its order; unverified."""
    by_digest = {run.completed.digest: run for run in runs if run.completed is not None}
    chains: dict[str, list[RunSummary]] = {}
    for digest, run in by_digest.items():
        first, seen = digest, {digest}
        while (before := _before(by_digest[first])) in by_digest and before not in seen:
            first = before
            seen.add(first)
        chains.setdefault(first, []).append(run)
    return [
        sorted(chain, key=lambda run: (run.completed and run.completed.number) or 0)
        for chain in chains.values()
        if len(chain) > 1
    ]


def _before(run: RunSummary) -> str:
    return (run.completed and run.completed.continues) or ""
