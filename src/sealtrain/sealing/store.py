"""Sealed blobs for checkpoints and models: bound to a label, a name and whatever the caller names.

A blob written under one binding (run id, step, counter) opens under no other: the binding is part
of the file's authenticated context. Writing streams and is atomic; plaintext never touches the
disk. Large blobs are sealed by several threads.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sealtrain.base.filenames import portable_name
from sealtrain.base.files import TEMPORARY_SUFFIX, atomic_writer
from sealtrain.base.secret import Random
from sealtrain.errors import StorageFailed, UsageError
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.file import open_file, read_header, root_of, verify_ciphertext
from sealtrain.sealing.hashtree import Suite
from sealtrain.sealing.header import SUFFIX, FileContext
from sealtrain.sealing.reader import SealedFile
from sealtrain.sealing.writer import SealedWriter

THREADS = min(4, os.cpu_count() or 1)
_SPARE = f".spare{TEMPORARY_SUFFIX}"
_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


class SealedStore:
    """A folder of sealed blobs under one key."""

    __slots__ = ("_folder", "_key", "_label", "_random", "_suite")

    def __init__(
        self,
        folder: Path,
        key: DataKey,
        *,
        label: str,
        suite: Suite = Suite.BLAKE3,
        random: Random = os.urandom,
    ) -> None:
        """Name the store; the folder is made by the first write.

        Args:
            folder: Where the blobs lie.
            key: Key of the run, from which the store's key is derived with ``label``.
            label: What the blobs are (``"checkpoint"``, ``"model"``); blobs of one label do not
                open under another.
            suite: Hash of the file roots.
            random: Source of the salts.
        """
        self._folder = folder
        self._key = key.derive("store", label)
        self._label = label
        self._suite = suite
        self._random = random

    def memory(self, size: int) -> None:
        """None: what is written is sealed from wherever it lies."""

    def shard_memory(self, size: int) -> None:
        """None, as ``memory``."""

    @contextmanager
    def write(
        self,
        name: str,
        binding: Mapping[str, str | int],
        *,
        overwrite: bool = True,
        padding: str = "none",
    ) -> Iterator[SealedWriter]:
        """Stream a blob: a writable file object while the block runs, a sealed file after it.

        Args:
            name: Relative path of letters, digits, ``.``, ``_`` and ``-``.
            binding: What the blob belongs to; needed again to read it.
            overwrite: Replace a blob of this name, as a resumed run must be able to.
            padding: Padding policy.

        Raises:
            AlreadyExists: There is one and ``overwrite`` is false.
            UsageError: The name is not acceptable.
            StorageFailed: The disk is full or fails. An older blob of this name is still whole.
        """
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        spare = path.with_name(_SPARE)
        over = spare if spare.is_file() else None
        with (
            storage_errors(name),
            atomic_writer(path, mode=0o600, overwrite=overwrite, over=over) as file,
        ):
            writer = SealedWriter(
                file,
                data_key=self._key,
                context=self._context(name, binding, padding),
                random=self._random,
                threads=THREADS,
            )
            with writer:
                yield writer

    def read(
        self,
        name: str,
        binding: Mapping[str, str | int],
        *,
        root: str | None = None,
        padding: str | None = "none",
    ) -> SealedFile:
        """Open a blob as a seekable, read-only file.

        Args:
            name: As written.
            binding: As written.
            root: Its file root where one is known, checked on every read.
            padding: As written; ``None`` for what the blob says, which is authenticated too.

        Raises:
            WrongContext: The blob belongs to something else.
            SealRefused, NotSealed, LimitExceeded: It does not open.
            DataInvalid: There is no such blob.
        """
        path = self.path(name)
        if padding is None:
            padding = read_header(path).context.padding
        return open_file(path, self._key, context=self._context(name, binding, padding), root=root)

    def root(self, name: str) -> str:
        """File root of a blob as its end says, 64 hex digits; ``verify`` and ``read`` prove it.

        Raises:
            DataInvalid: There is no such blob.
            NotSealed, SealRefused, LimitExceeded: It does not end as a sealed file does.
        """
        return root_of(self.path(name))

    def binding(self, name: str) -> dict[str, str | int]:
        """What a blob says it was written under: an unverified claim until ``read``.

        Raises:
            DataInvalid: There is no such blob.
            NotSealed, SealRefused, LimitExceeded: It has no well-formed header.
        """
        return dict(read_header(self.path(name)).context.binding)

    def verify(self, name: str) -> str:
        """Hash every byte of a blob's ciphertext; returns its file root, 64 hex digits.

        Raises:
            DataInvalid: There is no such blob.
            NotSealed, SealRefused, LimitExceeded: It is not complete, or altered.
        """
        return verify_ciphertext(self.path(name))

    def names(self) -> tuple[str, ...]:
        """Names of all complete blobs, sorted."""
        found = (
            path.relative_to(self._folder).as_posix().removesuffix(SUFFIX)
            for path in self._folder.rglob(f"*{SUFFIX}")
            if path.is_file()
        )
        return tuple(sorted(name for name in found if not name.split("/")[-1].startswith(".")))

    def remove(self, name: str) -> None:
        """Delete a blob if it is there."""
        self.path(name).unlink(missing_ok=True)

    def retire(self, name: str) -> None:
        """Delete a blob, but keep its space on the disk for the next one until ``sweep``."""
        path = self.path(name)
        spare = path.with_name(_SPARE)
        if spare.exists():
            self.remove(name)
        elif path.exists():
            path.replace(spare)

    def sweep(self) -> None:
        """Delete what interrupted writes and retired blobs left. No blob is being written."""
        if self._folder.is_dir():
            for path in self._folder.rglob(f".*{TEMPORARY_SUFFIX}"):
                path.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """Where the sealed file of a blob lies.

        Raises:
            UsageError: The name is not acceptable.
        """
        try:
            return self._folder / f"{portable_name(name)}{SUFFIX}"
        except ValueError as error:
            raise UsageError(
                "not a name for a sealed blob",
                got=name,
                expected="letters, digits, '.', '_', '-' in parts divided by '/'",
            ) from error

    def _context(self, name: str, binding: Mapping[str, str | int], padding: str) -> FileContext:
        return FileContext(
            dataset_id="",
            owner_id="",
            name=f"{self._label}/{name}",
            padding=padding,
            kind="blob",
            suite=self._suite,
            binding=dict(binding),
        )


@contextmanager
def storage_errors(name: str) -> Iterator[None]:
    """Turn what a full or failing disk says into ``StorageFailed``.

    Args:
        name: Of what is written.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _STORAGE:
            raise
        raise StorageFailed(
            f"the disk does not take {name}",
            check="storage",
            got=os.strerror(error.errno),
            hint="free space, then continue with: sealtrain resume",
        ) from error
