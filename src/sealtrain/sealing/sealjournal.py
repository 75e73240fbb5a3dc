"""What makes an interrupted sealing continue where it stopped.

The folder being filled has a hidden name of its own, ``.X.sealed.sealing``. In it lies a journal:
a head with the settings and the stanzas of the data key, and an entry for each complete shard with
its root and a keyed digest of its content. All are sealed files under the data key, so a reader
who cannot open the dataset can neither read nor forge them.

No key and nonce ever serve two plaintexts: every sealed file, and every further attempt at one,
begins with a fresh random salt of 24 bytes from which its key is derived; what was half written is
deleted, not appended to. A shard is kept only if its entry opens, its file has the entry's root in
every byte, and the source still yields the content of the entry's digest.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from blake3 import blake3
from filelock import FileLock, Timeout

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.base.files import TEMPORARY_SUFFIX, atomic_writer, sync
from sealtrain.errors import AlreadyExists, DataInvalid, SealtrainError, Unreachable, UsageError
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.description import MANIFEST_NAME
from sealtrain.sealing.errors import SealRefused
from sealtrain.sealing.file import open_file, read_header, verify_ciphertext
from sealtrain.sealing.header import FileContext
from sealtrain.sealing.stanza import Stanza
from sealtrain.sealing.writer import SealedWriter

Unwrap = Callable[[str, Sequence[Stanza]], DataKey]
"""Opens the data key again, given the dataset id and the stanzas."""

_HEAD: Final = "journal.sealed"
_MAX_ENTRY_BYTES: Final = 64 << 20


@contextmanager
def resumable_folder(path: Path) -> Iterator[Path]:
    """Fill ``.NAME.sealing`` and rename it to ``path`` when the block ends well.

    Whatever stops the block leaves the hidden folder for the next time, except a refusal of the
    data or of the settings: that leaves nothing. The lock is a file beside the folder, held until
    the folder has its final name: what another process finds then is a finished dataset.

    Raises:
        AlreadyExists: ``path`` exists, or a sealing that was complete when it was killed.
        UsageError: Another process is filling it, or the folder it shall lie in does not exist.
    """
    if not path.parent.is_dir():
        raise UsageError(
            f"the folder {path.parent} does not exist", hint="create it, or choose another output"
        )
    lock = FileLock(path.with_name(f".{path.name}.lock"), blocking=False, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        raise UsageError(
            f"another process is sealing to {path}",
            check="lock",
            hint="wait for that process, or end it",
        ) from None
    try:
        yield from _fill(path, path.with_name(f".{path.name}.sealing"))
    finally:
        # Unlinked while it is held: a process that waits for this file then opens the next one.
        with suppress(OSError):
            Path(lock.lock_file).unlink()
        lock.release()


def _fill(path: Path, folder: Path) -> Iterator[Path]:
    """What ``resumable_folder`` does while it holds the lock."""
    if not path.exists() and (folder / MANIFEST_NAME).is_file() and not (folder / _HEAD).exists():
        _finish(folder, path)  # killed before the last step, the renaming
    if path.exists():
        raise AlreadyExists(f"{path} already exists", hint="choose another output or remove it")
    folder.mkdir(exist_ok=True)
    # Of a sealing that was killed between its last two steps: it is written again at the end.
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    try:
        yield folder
    except _KeptRefusal as kept:
        raise kept.error from None
    except SealtrainError as error:
        if not isinstance(error, Unreachable):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    except OSError:
        if not any(folder.glob("journal-*.sealed")):  # no shard is complete: nothing to go on with
            shutil.rmtree(folder, ignore_errors=True)
        raise
    _finish(folder, path)


def _finish(folder: Path, path: Path) -> None:
    journal = [*folder.glob("journal-*.sealed"), *folder.glob(f".*{TEMPORARY_SUFFIX}")]
    # The head goes last: with it, what is left here can be continued.
    for left in (*journal, folder / _HEAD):
        left.unlink(missing_ok=True)
    sync(folder)
    folder.rename(path)
    sync(path.parent)


class _KeptRefusal(Exception):
    """Carries a refusal that must leave the hidden folder as it is."""

    def __init__(self, error: SealtrainError) -> None:
        super().__init__()
        self.error = error


class SealJournal:
    """The journal of one sealing.

    Attributes:
        resumed: Whether an earlier attempt left something to continue.
        data_key: Key of the dataset.
        dataset_id: 32 hex digits.
    """

    def __init__(
        self,
        folder: Path,
        settings: JsonValue,
        unwrap: Unwrap,
        fresh: Callable[[], tuple[DataKey, str]],
        stanzas: Callable[[DataKey, str], Sequence[Stanza]],
    ) -> None:
        """Take an earlier attempt up, or begin.

        Args:
            folder: From ``resumable_folder``.
            settings: Everything that decides what is sealed, as JSON.
            unwrap: Opens the data key of an earlier attempt.
            fresh: A new data key and dataset id.
            stanzas: Wraps a data key.

        Raises:
            AlreadyExists: An attempt with other settings lies there.
            SealRefused: An attempt lies there that this owner cannot open.
        """
        self._folder = folder
        head = folder / _HEAD
        self.resumed = head.is_file()
        if self.resumed:
            try:
                self.dataset_id, self.data_key = self._take_up(head, settings, unwrap)
            except SealtrainError as error:
                raise _KeptRefusal(error) from None
        else:
            for left in folder.glob("*.sealed"):
                left.unlink()
            self.data_key, self.dataset_id = fresh()
            self._write(head, 0, settings, stanzas(self.data_key, self.dataset_id))
        self._digest_key = self.data_key.derive("sealing-journal").reveal()

    def hasher(self) -> Any:
        """Keyed BLAKE3 for the content of a shard."""
        return blake3(key=self._digest_key)

    def entry(self, number: int) -> dict[str, Any] | None:
        """The journal's entry of a complete shard; ``None`` if there is none.

        An entry or shard that does not open is deleted: the shard is sealed again.
        """
        path = self._path(number)
        if not path.is_file():
            return None
        try:
            entry: dict[str, Any] = self._read(path, number + 1)
            verify_ciphertext(self._folder / entry["name"], root=entry["root"])
        except (SealRefused, DataInvalid, KeyError, TypeError):
            path.unlink()
            return None
        return entry

    def add(self, number: int, entry: dict[str, Any]) -> None:
        """Note a shard that is complete and on the disk."""
        self._write(self._path(number), number + 1, entry, ())

    def clear(self, name: str) -> None:
        """Delete what an earlier attempt left of a file."""
        with suppress(FileNotFoundError):
            (self._folder / name).unlink()

    def _take_up(self, head: Path, settings: JsonValue, unwrap: Unwrap) -> tuple[str, DataKey]:
        header = read_header(head)
        dataset_id = header.dataset_id
        self.dataset_id, self.data_key = dataset_id, unwrap(dataset_id, header.stanzas)
        if self._read(head, 0) != settings:
            raise AlreadyExists(
                "an interrupted sealing of another source or recipe lies there",
                check="journal",
                got=str(self._folder),
                hint="finish that one with its own settings, or delete this hidden folder",
            )
        return dataset_id, self.data_key

    def _path(self, number: int) -> Path:
        return self._folder / f"journal-{number:05d}.sealed"

    def _context(self, number: int) -> FileContext:
        return FileContext(
            dataset_id=self.dataset_id,
            owner_id="",
            name="sealing-journal",
            kind="blob",
            binding={"entry": number},
        )

    def _write(
        self, path: Path, number: int, content: JsonValue, stanzas: Sequence[Stanza]
    ) -> None:
        with (
            atomic_writer(path, overwrite=True) as file,
            SealedWriter(
                file, data_key=self.data_key, context=self._context(number), stanzas=stanzas
            ) as out,
        ):
            out.write(canonical_json(content))

    def _read(self, path: Path, number: int) -> Any:
        with open_file(path, self.data_key, context=self._context(number)) as file:
            return parse_canonical(file.read(_MAX_ENTRY_BYTES), max_bytes=_MAX_ENTRY_BYTES)
