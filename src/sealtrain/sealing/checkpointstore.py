"""A run's checkpoints, all of one length, and their shards: a size does not show what was trained.

The length is fixed by the first checkpoint that is written, from the room that training asked for
(``memory``), or by the first one that is read: a run that continues keeps it. A content that does
not fit is refused before any of it is written. The shards of checkpoints in as many shards have one
length, too. See spec/checkpoint.md §2.1.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sealtrain.base.secret import Random
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.sealing.padding import LENGTH_BYTES
from sealtrain.sealing.store import SealedStore

if TYPE_CHECKING:
    from sealtrain.sealing.reader import SealedFile
    from sealtrain.sealing.writer import SealedFileInfo, SealedWriter

_LEAST: Final = 1 << 18
_SLACK: Final = 64 << 10
_SLACK_PART: Final = 64
_SIGNIFICANT_BITS: Final = 5
_POLICY: Final = "fixed:"


def checkpoint_length(room: int) -> int:
    """Bytes of every checkpoint's plaintext in a run.

    Args:
        room: Bytes that its contents will take at most, as far as training knows.
    """
    needed = max(room + room // _SLACK_PART + _SLACK + LENGTH_BYTES, _LEAST)
    step: int = 1 << max(needed.bit_length() - _SIGNIFICANT_BITS, 0)
    return -(-needed // step) * step


class CheckpointStore(SealedStore):
    """As ``SealedStore``, for the checkpoints of one run."""

    __slots__ = ("_deciding", "_lengths", "_room", "_shard_room")

    def __init__(
        self, folder: Path, key: DataKey, *, label: str, random: Random = os.urandom
    ) -> None:
        """Name the store. Arguments as ``SealedStore``."""
        super().__init__(folder, key, label=label, random=random)
        self._lengths: dict[int, int] = {}  # by number of shards, of checkpoints themselves 0
        self._room = self._shard_room = 0
        self._deciding = threading.Lock()

    def memory(self, size: int) -> None:
        """None, as in any store; before the first checkpoint, note the room that is asked for."""
        self._room = max(self._room, size)

    def shard_memory(self, size: int) -> None:
        """As ``memory``, for shards."""
        self._shard_room = max(self._shard_room, size)

    def require_room(self, size: int, shards: int = 0) -> None:
        """Refuse a content that is longer than the run's checkpoints.

        Args:
            size: Its bytes.
            shards: Number of the checkpoint's shards where it is one of them.

        Raises:
            CheckpointRefused: It is.
        """
        most = self._read_fixed(shards) - LENGTH_BYTES
        if size > most:
            raise CheckpointRefused(
                "the training state is longer than all checkpoints of the run are",
                check="checkpoint length",
                got=f"{size} bytes",
                expected=f"at most {most}",
                hint="raise trainer.save_steps, so that the state has all its parts in the first"
                " checkpoint",
            )

    @contextmanager
    def write(  # type: ignore[override]  # a checkpoint is no file to write to
        self, name: str, binding: Mapping[str, str | int]
    ) -> Iterator[_Fitting]:
        """Seal a checkpoint, which takes the place of one with its name.

        Raises:
            CheckpointRefused: It does not fit.
            UsageError, StorageFailed: As ``SealedStore.write``.
        """
        shards = _shards_in(binding)
        policy = f"{_POLICY}{self._read_fixed(shards)}"
        with super().write(name, binding, padding=policy) as writer:
            yield _Fitting(self, writer, shards)

    def read(  # type: ignore[override]  # the padding is the store's
        self, name: str, binding: Mapping[str, str | int], *, root: str | None = None
    ) -> SealedFile:
        """Open a checkpoint; the run's others have its length, unless theirs is fixed already.

        Raises:
            CheckpointRefused: It has another length than the run's checkpoints.
            SealtrainError: As ``SealedStore.read``.
        """
        file = super().read(name, binding, root=root, padding=None)
        policy = file.context.padding
        length = int(policy.removeprefix(_POLICY)) if policy.startswith(_POLICY) else None
        shards = _shards_in(binding)
        fixed = self._lengths.get(shards)
        if length is None or fixed not in (None, length):
            file.close()
            raise CheckpointRefused(
                "a checkpoint has another length than those of the run",
                check="checkpoint length",
                got=policy,
                expected=f"{_POLICY}{fixed or '<bytes>'}",
            )
        if root is not None:
            self._lengths[shards] = length
        return file

    def _read_fixed(self, shards: int) -> int:
        with self._deciding:  # shards of several ranks are written at one time
            if shards not in self._lengths:
                room = self._shard_room if shards else self._room
                self._lengths[shards] = checkpoint_length(room)
            return self._lengths[shards]


class _Fitting:
    """A checkpoint while it is written."""

    def __init__(self, store: CheckpointStore, writer: SealedWriter, shards: int) -> None:
        self._store, self._writer, self._shards = store, writer, shards

    def writelines(self, lines: Iterable[memoryview]) -> None:
        """Take bytes, as long as they fit."""
        self._writer.writelines(self._fitting(lines))

    def finish(self) -> SealedFileInfo:
        """Complete the blob, at its full length."""
        return self._writer.finish()

    def _fitting(self, lines: Iterable[memoryview]) -> Iterator[memoryview]:
        for line in lines:
            self._store.require_room(self._writer.tell() + line.nbytes, self._shards)
            yield line


def _shards_in(binding: Mapping[str, str | int]) -> int:
    """Of how many shards a blob is one; 0 for a checkpoint."""
    return int(binding.get("shards", 0))
