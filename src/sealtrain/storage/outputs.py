"""What a run makes, left in a store while it makes it (spec/output-store.md).

The supervisor of a guest writes here and holds no key. Everything it leaves is sealed or signed,
and what it takes from here is believed as little as what a disk holds.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Annotated, Any, BinaryIO, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sealtrain.base.filenames import portable_name
from sealtrain.base.files import open_inside
from sealtrain.base.models import ErrorCode, Hex32, Hex64, StrictModel, load_json
from sealtrain.consortium.series_block import MAX_MEMBERS
from sealtrain.errors import DataInvalid, LimitExceeded, UsageError
from sealtrain.sealing.errors import SealRefused
from sealtrain.sealing.file import verify_ciphertext
from sealtrain.sealing.header import SUFFIX
from sealtrain.sealing.trainedmodel import MODEL_FOLDER, RUN_MANIFEST
from sealtrain.storage.errors import OutputStoreInvalid, StorageUnreachable
from sealtrain.storage.folder import RemoteFolder
from sealtrain.storage.pieces import Pieces, Progress, fetch, measure_pieces

INDEX_NAME: Final = "index.json"
MAX_INDEX_BYTES: Final = 4 << 20
_MAX_FILES: Final = 4096
_STATES_OF_A_RUN: Final = re.compile(
    r"checkpoints/checkpoint-[0-9]{8}-[0-9]{10}\.sealed|journal/journal-[0-9]{8}\.sealed"
    r"|checkpoints/rank-[0-9]{4}/shard-[0-9]{8}-[0-9]{10}-of-[0-9]{4}\.sealed"
)
_SHARD: Final = re.compile(r"checkpoints/rank-([0-9]{4})/shard-([0-9]{8}-[0-9]{10})-of-([0-9]{4})")

SeriesKey = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}/[a-z0-9][a-z0-9-]{0,62}$")
]
State = Literal["waiting", "started", "checkpointed", "completed", "failed"]


class OutputIndex(StrictModel):
    """What a store holds of a run, and how far the run is.

    Attributes:
        version: Format version, 1.
        compose_hash: Deployment document of the run's guests.
        run_id: ``None`` before the run has its id.
        state: How far it is.
        code: Code of the refusal or fault behind ``waiting`` and ``failed``.
        attempts: Starts of the run's process so far.
        files: Name → what the file is.
        series: Of each series that the run reads, by OWNER/NAME, the number of the newest member
            when it began: what a guest asks for that continues it. Brokers hold it to that.
    """

    version: Literal[1]
    compose_hash: Hex64
    run_id: Hex32 | None
    state: State
    code: ErrorCode | None
    attempts: Annotated[int, Field(ge=0, le=1 << 31)]
    files: Annotated[dict[str, Pieces], Field(max_length=_MAX_FILES)]
    series: dict[SeriesKey, Annotated[int, Field(ge=1, le=MAX_MEMBERS)]] = Field(
        default_factory=dict, max_length=256, exclude_if=lambda value: not value
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name in self.files:
            if not _is_named(name):
                raise ValueError("files has a name that no run leaves")
        if (self.files or self.series) and self.run_id is None:
            raise ValueError("files or series of no run")
        if (RUN_MANIFEST in self.files) != (self.state == "completed"):
            raise ValueError("manifest.json belongs to state completed, and to no other")
        if self.code is not None and self.state not in ("waiting", "failed"):
            raise ValueError(f"state {self.state} has no code")
        return self

    def holds_checkpoint(self, counter: int) -> bool:
        """Whether a checkpoint is there with journal and shards: a run can continue from it."""
        begin = f"checkpoints/checkpoint-{counter:08d}-"
        there = [name for name in self.files if name.startswith(begin)]
        if not there or f"journal/journal-{counter:08d}.sealed" not in self.files:
            return False
        shards = [found for found in map(_SHARD.match, self.files) if found is not None]
        own = [found for found in shards if f"checkpoint-{found[2]}.sealed" in there[0]]
        numbers: dict[int, set[int]] = {}
        for found in own:
            numbers.setdefault(int(found[3]), set()).add(int(found[1]))
        return not own or any(held == set(range(count)) for count, held in numbers.items())


def parse_index(data: bytes) -> OutputIndex:
    """An index from its bytes.

    Raises:
        OutputStoreInvalid: Too long, not canonical JSON, or a field breaks the specification.
    """
    try:
        index = load_json(
            OutputIndex, data, OutputStoreInvalid, "index of outputs", max_bytes=MAX_INDEX_BYTES
        )
    except DataInvalid as error:
        raise OutputStoreInvalid(f"index of outputs: {error.message}", check="index") from error
    if index.to_bytes() != data:
        raise OutputStoreInvalid("index of outputs: not canonical JSON", check="index")
    return index


def read_index(folder: RemoteFolder) -> OutputIndex | None:
    """The index that a store has, of whatever document; ``None`` where there is none.

    Raises:
        OutputStoreInvalid: It is malformed.
        StorageUnreachable: The store does not answer.
    """
    try:
        data = folder.read(INDEX_NAME, MAX_INDEX_BYTES)
    except LimitExceeded as error:
        raise OutputStoreInvalid(f"index of outputs: {error.message}", check="index") from error
    except DataInvalid:
        return None
    return parse_index(data)


class OutputStore:
    """One run's folder in a store. For one thread."""

    def __init__(self, folder: RemoteFolder, compose_hash: str) -> None:
        """Ask nothing yet.

        Args:
            folder: Where the store is.
            compose_hash: Deployment document of the guests that use it.
        """
        self._folder = folder
        self._compose_hash = compose_hash
        self._left = OutputIndex(
            version=1,
            compose_hash=compose_hash,
            run_id=None,
            state="waiting",
            code=None,
            attempts=0,
            files={},
        )
        self._tried = self._left  # what the store may have taken although it did not say so
        self._stamps: dict[str, tuple[int, ...]] = {}

    @property
    def index(self) -> OutputIndex:
        """The index as it was last read or written here."""
        return self._left

    def read(self) -> OutputIndex | None:
        """The index in the store; ``None`` where there is none.

        Raises:
            OutputStoreInvalid: It is malformed, or of another document.
            StorageUnreachable: The store does not answer.
        """
        index = self._there()
        if index is None:
            return None
        if index.compose_hash != self._compose_hash:
            raise OutputStoreInvalid(
                "the output store holds a run of another deployment document",
                check="compose_hash",
                got=index.compose_hash,
                expected=self._compose_hash,
                hint="give each document a store of its own",
            )
        self._left = index
        return index

    def _there(self) -> OutputIndex | None:
        self._folder.forget(INDEX_NAME)
        return read_index(self._folder)

    def take(self, out: Path, *, progress: Progress = lambda _: None) -> None:
        """Bring the sealed states of the run here that the index names.

        Args:
            out: The run's folder.
            progress: Called with the number of bytes that were added.

        Raises:
            OutputStoreInvalid: A file is another than the index says, or missing.
            StorageUnreachable: The store does not deliver; the next try goes on from there.
        """
        for name, pieces in sorted(self._left.files.items()):
            if _STATES_OF_A_RUN.fullmatch(name):
                self._fetch(name, pieces, out, progress)
                with _hold_open(out, name) as file:
                    self._stamps[name] = _stamp(file)

    def take_outputs(self, folder: Path, *, progress: Progress = lambda _: None) -> None:
        """Bring manifest and model of a finished run here. Arguments and errors as ``take``."""
        for name, pieces in sorted(self._left.files.items()):
            if not _STATES_OF_A_RUN.fullmatch(name):
                self._fetch(name, pieces, folder, progress)

    def _fetch(self, name: str, pieces: Pieces, folder: Path, progress: Progress) -> None:
        if (link := (folder / name).parent).is_symlink():
            raise DataInvalid(f"{link} is a link", hint="name an empty folder of your own")
        try:
            fetch(self._folder, name, pieces, folder / name, progress=progress)
        except DataInvalid as error:
            raise OutputStoreInvalid(
                f"the store lacks {name}, which its index names", check="pieces"
            ) from error

    def leave(
        self,
        out: Path,
        *,
        run_id: str | None,
        state: State,
        code: str | None = None,
        attempts: int = 0,
        series: Mapping[str, int] = MappingProxyType({}),
    ) -> OutputIndex:
        """Send what is new, then the index; returns the index.

        Args:
            out: The run's folder.
            run_id: Of the run in it, if there is one.
            state: How far it is; ``completed`` sends model and manifest too.
            code: Of the refusal or fault behind it.
            attempts: Starts of the run's process so far.
            series: Of the run, as ``OutputIndex`` has them.

        Raises:
            StorageUnreachable: The store does not take it; the index there is as it was, or names
                less.
            OutputStoreInvalid: Another guest has written since; nothing there is changed.
        """
        self._require_ours()
        present = {} if run_id is None else self._present(out, done=state == "completed")
        known = self._left.files
        changed = [name for name, pieces in present.items() if known.get(name) != pieces]
        if any(name in known for name in changed):
            kept = {name: file for name, file in known.items() if name not in changed}
            kept.pop(RUN_MANIFEST, None)
            self._write(state="started", code=None, files=kept)
        for name in changed:
            self._send(name, out, present[name])
        files = {name: file for name, file in present.items() if self._is_as_sent(name, out)}
        self._write(
            run_id=run_id,
            state=state,
            code=code,
            attempts=attempts,
            files=files,
            series={} if run_id is None else dict(series),
        )
        self._tidy(set(known) - set(files))
        return self._left

    def _require_ours(self) -> None:
        """A guest that was given up for lost does not write over what its successor leaves."""
        there = self._there()
        if there not in (None, self._left, self._tried):
            raise OutputStoreInvalid(
                "another guest leaves its run in this output store",
                check="index",
                hint="end one of the two; a run has one guest at a time",
            )

    def _present(self, out: Path, *, done: bool) -> dict[str, Pieces]:
        """Whole files of the run's folder that belong into the store; their stamps are kept."""
        found = {}
        for name in _names_in(out, done=done):
            try:
                with _hold_open(out, name) as file:
                    stamp = _stamp(file)
                    if self._stamps.get(name) != stamp or name not in self._left.files:
                        if name.endswith(SUFFIX):
                            verify_ciphertext(file)
                            file.seek(0)
                        found[name] = measure_pieces(file)
                    else:
                        found[name] = self._left.files[name]
                    self._stamps[name] = stamp
            except (DataInvalid, SealRefused, OSError):
                if done:
                    raise
                # It is being written or was just deleted: the next time shows what became of it.
        return found

    def _is_as_sent(self, name: str, out: Path) -> bool:
        """Whether a file is still the one that was measured before it was sent."""
        try:
            with _hold_open(out, name) as file:
                return self._stamps.get(name) == _stamp(file)
        except DataInvalid:
            return False

    def _send(self, name: str, out: Path, pieces: Pieces) -> None:
        try:
            with _hold_open(out, name) as file:
                if self._stamps.get(name) != _stamp(file):
                    return  # another one since it was measured
                self._folder.put(name, f"/dev/fd/{file.fileno()}")
        except DataInvalid:
            if not (out / name).exists():
                return  # deleted meanwhile
            raise
        if self._folder.size(name) != pieces.size:
            raise StorageUnreachable(
                f"the store does not hold {name} as it was sent",
                check="storage",
                expected=f"{pieces.size} bytes",
                hint="check that the store has room",
            )

    def _write(self, **fields: Any) -> None:
        index = self._tried = OutputIndex(**(dict(self._left) | fields))
        with tempfile.NamedTemporaryFile(prefix="sealtrain-index-") as file:
            file.write(index.to_bytes())
            file.flush()
            self._folder.put(INDEX_NAME, file.name)
        self._left = index

    def _tidy(self, names: Iterable[str]) -> None:
        """Delete what the index no longer names, as far as the store lets files be deleted."""
        for name in sorted(names):
            self._stamps.pop(name, None)
            try:
                self._folder.delete(name)
            except (StorageUnreachable, UsageError):
                return


def _is_named(name: str) -> bool:
    if name == RUN_MANIFEST or _STATES_OF_A_RUN.fullmatch(name):
        return True
    try:
        return (
            name.startswith(f"{MODEL_FOLDER}/")
            and name.endswith(SUFFIX)
            and bool(portable_name(name))
        )
    except ValueError:
        return False


def _names_in(out: Path, *, done: bool) -> Iterator[str]:
    """Of a finished run what it made, of another one what it continues from."""
    if done:
        inside = [out / RUN_MANIFEST, *sorted((out / MODEL_FOLDER).rglob(f"*{SUFFIX}"))]
    else:
        # A checkpoint is there after its shards, and goes before them: so it is looked for first.
        inside = [
            path
            for pattern in ("checkpoints/*", "checkpoints/rank-*/*", "journal/*")
            for path in sorted(out.glob(pattern))
        ]
    for path in inside:
        name = path.relative_to(out).as_posix()
        if _is_named(name):
            yield name


@contextlib.contextmanager
def _hold_open(out: Path, name: str) -> Iterator[BinaryIO]:
    """A file of the run's folder, open: what is measured is what is sent.

    Code of a recipe writes in that folder. A link there would have another file of this guest sent,
    and a pipe would keep its reader for good.

    Raises:
        DataInvalid: It is gone, or no regular file in folders of its own.
    """
    with os.fdopen(open_inside(out, PurePosixPath(name)), "rb") as file:
        yield file


def _stamp(file: BinaryIO) -> tuple[int, ...]:
    # Not base.files.stamp_of, which differs on every call for a file that has just been written:
    # what has just been sent would be left out of the index.
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns
