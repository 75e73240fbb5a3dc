"""Manifests that pages show, verified as ``sealtrain verify`` does it: offline, once each, bounded.

A manifest that the same trust file judged already is not judged again while the console runs, and
one is judged at a time: a page of many costs the machine no more than a page of one. Without a
trust file there is no verdict, and a page says so.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sealtrain.base.digests import sha256_hex
from sealtrain.errors import SealtrainError
from sealtrain.manifest.form import Manifest
from sealtrain.manifest.outputs import model_of
from sealtrain.manifest.trust import Trust, load_trust
from sealtrain.manifest.verify import Report, examine
from sealtrain.sealing.trainedmodel import MODEL_FOLDER

_MOST_KEPT: Final = 512
_MOST_OUTPUT_BYTES: Final = 256 << 20
"""Of a run's output files that a page hashes; ``sealtrain verify`` hashes any size."""

Word = Literal["verified", "open", "refused", "unchecked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One check, without the documents that it looked at."""

    name: str
    title: str
    outcome: str
    detail: str
    code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestVerdict:
    """What came of verifying a manifest.

    Attributes:
        word: ``open`` is a verified one that is simulated, or whose auditor left trust open;
            ``unchecked`` is no verdict at all, as where no trust file names the recipe.
        rows: Every check, in the order of the specification.
        limits: What the manifest does not prove, in plain words.
        simulated: It was simulated.
        outputs: Whether the run's output files were hashed too.
        trust: Name of the trust file.
        at: When, seconds since 1970.
        error: The first refusal, or why nothing could be checked.
        foreign: No trust file names the recipe, and nothing else was refused.
    """

    word: Word
    rows: tuple[CheckRow, ...] = ()
    limits: tuple[str, ...] = ()
    simulated: bool = False
    outputs: bool = False
    trust: str = ""
    at: int = 0
    error: SealtrainError | None = None
    foreign: bool = False

    @property
    def passed(self) -> int:
        """Number of checks that passed."""
        return sum(row.outcome == "passed" for row in self.rows)


def decline_verdict(error: SealtrainError | None = None) -> ManifestVerdict:
    """No verdict: there is no trust file, or it cannot be read."""
    return ManifestVerdict(word="unchecked", error=error)


class Examinations:
    """Verdicts by manifest, trust file and outputs. Thread-safe.

    Args:
        examine: Makes every check of a manifest.
    """

    def __init__(self, examine: Callable[..., Report] = examine) -> None:
        self._examine = examine
        self._kept: OrderedDict[tuple[object, ...], Future[ManifestVerdict]] = OrderedDict()
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While it is open no other manifest is judged here."""
        with self._turn:
            yield

    def of(
        self, data: bytes, manifest: Manifest, trusts: Sequence[Path], folder: Path | None, now: int
    ) -> ManifestVerdict:
        """The verdict about a manifest.

        Args:
            data: The file.
            manifest: The same, parsed.
            trusts: Trust files; the one that names the manifest's recipe judges it, else the first.
            folder: That the file lies in, with the run's outputs; ``None`` for none.
            now: Seconds since 1970.
        """
        if not trusts:
            return decline_verdict()
        try:
            path, trust = _for(manifest, [(path, load_trust(path)) for path in trusts])
        except SealtrainError as error:
            return decline_verdict(error)
        outputs, stamps = _outputs(manifest, folder)
        key = (sha256_hex(data), sha256_hex(trust.to_yaml()), outputs, stamps)
        with self._lock:
            found = self._kept.get(key)
            mine = found is None
            if found is None:
                found = self._kept[key] = Future()
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        if mine:
            try:
                with self.turn():
                    report = self._examine(data, trust, artefacts=outputs, now=now)
                found.set_result(_judge(report, path, outputs is not None))
            except BaseException as error:
                with self._lock:
                    self._kept.pop(key, None)
                found.set_exception(error)
        return found.result()


def _for(manifest: Manifest, trusts: Sequence[tuple[Path, Trust]]) -> tuple[Path, Trust]:
    claimed = manifest.predicate.recipe.recipe_hash
    return next((pair for pair in trusts if pair[1].recipe_hash == claimed), trusts[0])


def _outputs(manifest: Manifest, folder: Path | None) -> tuple[Path | None, tuple[object, ...]]:
    """The folder of outputs to look at, and what would show that a file there changed."""
    if folder is None or not (folder / MODEL_FOLDER).is_dir():
        return None, ()
    model = model_of(manifest.predicate, manifest.subjects)
    if sum(file.size for file in model.files) > _MOST_OUTPUT_BYTES:
        return None, ()
    stamps = []
    for path in (folder / MODEL_FOLDER, *(folder / subject.name for subject in manifest.subjects)):
        try:
            found = path.lstat()
            stamps.append((found.st_ino, found.st_size, found.st_mtime_ns))
        except (OSError, ValueError):
            stamps.append((0, 0, 0))
    return folder, tuple(stamps)


def _judge(report: Report, path: Path, outputs: bool) -> ManifestVerdict:
    word: Word = "unchecked" if report.foreign else "refused"
    if report.refusal is None:
        word = "open" if report.weak else "verified"
    return ManifestVerdict(
        word=word,
        rows=tuple(
            CheckRow(
                name=check.name,
                title=check.title,
                outcome=check.outcome,
                detail=check.detail,
                code=None if check.error is None else check.error.code,
            )
            for check in report.checks
        ),
        limits=report.limits,
        simulated=report.simulated,
        outputs=outputs,
        trust=path.name,
        at=report.now,
        error=_alone(report.refusal),
        foreign=report.foreign,
    )


def _alone(error: SealtrainError | None) -> SealtrainError | None:
    """The error without the frames, and so the documents, that it was raised among."""
    if error is not None:
        error.__cause__ = error.__context__ = error.__traceback__ = None
    return error
