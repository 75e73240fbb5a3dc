"""Files of a model as a workload delivers them: in parts, of which none counts before the last.

Weights wait on the disk until the run is signed, whatever their size. They are sealed under a key
that this process alone has, in files without a name: when the process ends, however it ends, both
are gone. What else a model has is small and waits in memory, where it can be looked at.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from sealtrain.base.secret import Random
from sealtrain.guest.workload.channel import Misused
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.file import FileContext, open_file
from sealtrain.sealing.store import THREADS, storage_errors
from sealtrain.sealing.writer import SealedWriter

if TYPE_CHECKING:
    from sealtrain.guest.workload.messages import FileDelivered

_WEIGHTS: Final = ".safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingFile:
    """A file that waits on the disk.

    Attributes:
        root: Its file root, which every read is checked against.
    """

    root: str
    _file: BinaryIO
    _key: DataKey
    _context: FileContext

    def open(self) -> BinaryIO:
        """Its content; the caller reads it to the end, and one caller at a time."""
        self._file.seek(0)
        opened = open_file(
            self._file, self._key, context=self._context, root=self.root, keep_open=True
        )
        return cast("BinaryIO", opened)


class DeliveredFiles:
    """The files of one model.

    Attributes:
        held: Name → content of those that wait in memory.
        waiting: Name → those that wait on the disk.
    """

    def __init__(self, folder: Path, random: Random = os.urandom) -> None:
        """Take nothing yet.

        Args:
            folder: On the disk that has room for the model.
            random: Source of the key and the salts.
        """
        self.held: dict[str, bytes] = {}
        self.waiting: dict[str, WaitingFile] = {}
        self._folder, self._random = folder, random
        self._key = DataKey.generate(random)
        self._begun: _BegunFile | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the files that are whole."""
        return (*self.held, *self.waiting)

    @property
    def is_between(self) -> bool:
        """Whether no file is begun and not whole."""
        return self._begun is None

    def take(self, question: FileDelivered, part: memoryview) -> bytes | None:
        """Take the next part of a file.

        Args:
            question: Says which part of which file this is.
            part: Its bytes, which the workload may change meanwhile: each is read once.

        Returns:
            After the last part the content, empty for weights; ``None`` before it. The file counts
            once ``keep`` says so.

        Raises:
            Misused: It is not the next part.
        """
        begun = self._begun
        if begun is None:
            if question.offset:
                raise Misused("a file begins with its first part")
            begun = self._begun = self._begin(question.name, question.size)
        end = question.offset + question.length
        if (begun.name, begun.size, begun.there) != (
            question.name,
            question.size,
            question.offset,
        ) or end > begun.size:
            raise Misused("not the next part of this file")
        if not question.length and question.size:
            raise Misused("a part has a byte at least")
        begun.add(part)
        if begun.there < begun.size:
            return None
        return bytes(begun.content)

    def keep(self) -> None:
        """Count the file whose last part came."""
        begun, self._begun = self._begun, None
        if begun is None:
            raise AssertionError("no file is begun")
        if begun.writer is None or begun.file is None:
            self.held[begun.name] = bytes(begun.content)
        else:
            with storage_errors(begun.name):
                root = begun.writer.finish().root
                begun.file.flush()
            self.waiting[begun.name] = WaitingFile(
                root=root,
                _file=begun.file,
                _key=self._key,
                _context=_context_of(begun.name),
            )

    def drop(self) -> None:
        """Forget the file that is begun."""
        begun, self._begun = self._begun, None
        if begun is not None and begun.file is not None:
            begun.file.close()

    def close(self) -> None:
        """Forget all."""
        self.drop()
        for name in list(self.waiting):
            self.waiting.pop(name)._file.close()
        self.held.clear()

    def _begin(self, name: str, size: int) -> _BegunFile:
        if not name.endswith(_WEIGHTS):
            return _BegunFile(name, size)
        with storage_errors(name):
            file = cast("BinaryIO", tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115
        weakref.finalize(self, file.close)
        writer = SealedWriter(
            file,
            data_key=self._key,
            context=_context_of(name),
            random=self._random,
            threads=THREADS,
        )
        return _BegunFile(name, size, file, writer)


class _BegunFile:
    """A file of which parts came."""

    def __init__(
        self,
        name: str,
        size: int,
        file: BinaryIO | None = None,
        writer: SealedWriter | None = None,
    ) -> None:
        self.name, self.size, self.there = name, size, 0
        self.file, self.writer, self.content = file, writer, bytearray()

    def add(self, part: memoryview) -> None:
        if self.writer is None:
            self.content += part
        else:
            with storage_errors(self.name):
                self.writer.write(part)
        self.there += len(part)


def _context_of(name: str) -> FileContext:
    return FileContext(dataset_id="", owner_id="", name=f"delivered/{name}", kind="blob")
