"""What output stores hold of runs: an index, sealed files, a manifest. All of it a store's word.

A store is asked anew for each page, once at a time and for a bounded time: one that stalls costs a
thread, however often pages ask. What it says is held together here: the manifest with the index,
and the index with the outputs that the manifest names. See ``spec/output-store.md``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.base.http import Bounds
from sealtrain.base.limits import MAX_MANIFEST_BYTES
from sealtrain.errors import SealtrainError
from sealtrain.manifest import form
from sealtrain.manifest.form import Manifest
from sealtrain.sealing.trainedmodel import MODEL_FOLDER, RUN_MANIFEST
from sealtrain.storage.connect import open_folder
from sealtrain.storage.errors import OutputStoreInvalid, StorageUnreachable
from sealtrain.storage.folder import RemoteFolder
from sealtrain.storage.outputs import OutputIndex, read_index
from sealtrain.storage.pieces import Pieces
from sealtrain.storage.retry import Patience

_MOST_FILES: Final = 24
_BOUNDS: Final = Bounds(connect=2.0, read=3.0, total=4.0, tries=1)
_ONCE: Final = Patience(attempts=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a store's index.

    Attributes:
        name: As the index names it.
        size: Bytes, by the index.
        digests: SHA-256 of each 64 MiB, by the index.
        when: Time of the file, by the store; ``None`` where it names none.
        problem: In which way the store contradicts its index or the manifest.
    """

    name: str
    size: int
    digests: tuple[str, ...]
    when: str | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreContents:
    """What one store holds.

    Attributes:
        url: Of the store.
        index: ``None`` where the store is empty, or its index cannot be read.
        files: The first files, manifest and newest checkpoints before others.
        more: Number of files that the index names besides.
        data: The manifest's file; ``None`` where there is none, or another than the index names.
        manifest: The same, parsed.
        problems: What is wrong with it, typed.
    """

    url: str
    index: OutputIndex | None = None
    files: tuple[StoredFile, ...] = ()
    more: int = 0
    data: bytes | None = None
    manifest: Manifest | None = None
    problems: tuple[SealtrainError, ...] = ()

    @property
    def run_id(self) -> str | None:
        """Of the run that the index names."""
        return None if self.index is None else self.index.run_id


class OutputStores:
    """Asks stores, each once at a time. Thread-safe."""

    def __init__(self) -> None:
        self._asked: dict[str, Future[StoreContents]] = {}
        self._lock = threading.Lock()

    def ask(self, urls: Sequence[str], seconds: float) -> list[StoreContents]:
        """What each store holds.

        Args:
            urls: Of the stores.
            seconds: After which a store that has not told is named as one that stalls.
        """
        until = time.monotonic() + seconds
        asked = [(url, self._begin(url, seconds)) for url in urls]
        found = []
        for url, future in asked:
            try:
                found.append(future.result(max(0.0, until - time.monotonic())))
            except TimeoutError:
                found.append(StoreContents(url=url, problems=(_late(seconds),)))
        return found

    def _begin(self, url: str, seconds: float) -> Future[StoreContents]:
        with self._lock:
            going = self._asked.get(url)
            if going is not None:
                return going
            future = self._asked[url] = Future()
        threading.Thread(
            target=self._work, args=(url, seconds, future), name="store", daemon=True
        ).start()
        return future

    def _work(self, url: str, seconds: float, future: Future[StoreContents]) -> None:
        try:
            held = _look(url, time.monotonic() + seconds)
        except SealtrainError as error:
            held = StoreContents(url=url, problems=(error,))
        except BaseException as error:
            future.set_exception(error)
            raise
        else:
            future.set_result(held)
            return
        finally:
            with self._lock:
                self._asked.pop(url, None)
        future.set_result(held)


def _late(seconds: float) -> StorageUnreachable:
    return StorageUnreachable(
        "the store did not tell all that a page needs in the time that a page has",
        check="time",
        expected=f"within {seconds:g} s",
        hint="sealtrain run download waits longer",
    )


def _look(url: str, until: float) -> StoreContents:
    folder = open_folder(url, patience=_ONCE, bounds=_BOUNDS)
    try:
        index = read_index(folder)
        if index is None:
            return StoreContents(url=url)
        problems: list[SealtrainError] = []
        data = manifest = None
        pieces = index.files.get(RUN_MANIFEST)
        if pieces is not None:
            try:
                data = _manifest(folder, pieces)
                manifest = _of_this_run(form.read(data), index)
            except SealtrainError as error:
                problems.append(error)
        names = sorted(index.files, key=_order)
        files = tuple(
            _file(folder, name, index.files[name], manifest, until) for name in names[:_MOST_FILES]
        )
        problems += _missing(manifest, index)
        return StoreContents(
            url=url,
            index=index,
            files=files,
            more=max(0, len(names) - _MOST_FILES),
            data=data,
            manifest=manifest,
            problems=tuple(problems),
        )
    finally:
        folder.close()


def _order(name: str) -> tuple[int, int, str]:
    """The manifest, the model, then checkpoints and journals from the newest."""
    part = name.split("/", 1)[0]
    place = {RUN_MANIFEST: 0, MODEL_FOLDER: 1, "checkpoints": 2}.get(part, 3)
    number = int(name.split("-")[1].split(".")[0]) if place > 1 else 0
    return place, -number, name


def _manifest(folder: RemoteFolder, pieces: Pieces) -> bytes:
    """The manifest's file, if it is the one that the index names."""
    if pieces.size > MAX_MANIFEST_BYTES:
        raise OutputStoreInvalid(
            "the store's index names a manifest that is longer than one can be",
            check="manifest",
            got=f"{pieces.size} bytes",
            expected=f"at most {MAX_MANIFEST_BYTES} bytes",
        )
    data = folder.read(RUN_MANIFEST, MAX_MANIFEST_BYTES)
    if len(data) != pieces.size or (sha256_hex(data),) != pieces.sha256:
        raise OutputStoreInvalid(
            "the store delivers another manifest than its index names",
            check="manifest",
            got=sha256_hex(data),
            expected=", ".join(pieces.sha256),
            hint="ask the store's operator; brokers record the digest of the right one",
        )
    return data


def _of_this_run(manifest: Manifest, index: OutputIndex) -> Manifest:
    said = manifest.predicate
    for check, got, expected in (
        ("run_id", said.run.run_id, index.run_id),
        ("compose_hash", said.deployment.compose_hash, index.compose_hash),
    ):
        if got != expected:
            raise OutputStoreInvalid(
                "the store holds the manifest of another run than its index names",
                check=check,
                got=got,
                expected=expected,
                hint="ask the store's operator",
            )
    return manifest


def _file(
    folder: RemoteFolder, name: str, pieces: Pieces, manifest: Manifest | None, until: float
) -> StoredFile:
    when = None
    problem = _against_manifest(name, pieces, manifest)
    if time.monotonic() < until:
        try:
            told = folder.stat(name)
            when = None if told.modified is None else to_rfc3339(told.modified)
            if told.size != pieces.size:
                problem = f"the store has {told.size:,} bytes of it, its index says {pieces.size:,}"
        except SealtrainError as error:
            problem = f"[{error.code}] {error.message}"
    return StoredFile(
        name=name, size=pieces.size, digests=pieces.sha256, when=when, problem=problem
    )


def _against_manifest(name: str, pieces: Pieces, manifest: Manifest | None) -> str | None:
    """How the index contradicts the manifest about an output file; ``None`` where it does not."""
    if manifest is None or not name.startswith(f"{MODEL_FOLDER}/"):
        return None
    named = {subject.name: subject.sha256 for subject in manifest.subjects}
    if name not in named:
        return "the manifest names no such file"
    # A digest of the whole is known of a file of one piece; a longer one is compared when fetched.
    if len(pieces.sha256) == 1 and pieces.sha256[0] != named[name]:
        return "another file than the manifest names"
    return None


def _missing(manifest: Manifest | None, index: OutputIndex) -> list[SealtrainError]:
    """An output that the manifest names and the index does not."""
    if manifest is None:
        return []
    absent = [subject.name for subject in manifest.subjects if subject.name not in index.files]
    if not absent:
        return []
    return [
        OutputStoreInvalid(
            "the store lacks outputs that the manifest names",
            check="outputs",
            got=", ".join(absent)[:200],
            expected=f"{len(manifest.subjects)} files",
        )
    ]
