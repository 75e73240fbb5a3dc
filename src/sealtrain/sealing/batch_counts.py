"""Batches on their way into shards: counted, and committed to, as they pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sealtrain.sealing.commitments import Committer
from sealtrain.sealing.writer import SealedFileInfo, SealedWriter

if TYPE_CHECKING:
    import pyarrow as pa


class BatchCounter:
    """Passes batches on while counting records and tokens and sealing commitments beside them."""

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        committer: Committer | None,
        count_tokens: Callable[[pa.RecordBatch], int] | None,
        path: Path,
        writer: Callable[[BinaryIO], SealedWriter],
    ) -> None:
        """Begin at nothing.

        Args:
            batches: Of the dataset, in order.
            committer: Makes commitments, where they are wanted.
            count_tokens: Tokens of a batch, where they are counted.
            path: New file for the commitments.
            writer: Seals what it is given into a file.
        """
        self._batches, self._committer, self._count = batches, committer, count_tokens
        self.records = self.tokens = 0
        self.sealed: SealedFileInfo | None = None
        self._file: BinaryIO | None = None
        self._writer: SealedWriter | None = None
        if committer:
            self._file = path.open("xb")
            self._writer = writer(self._file)

    def __enter__(self) -> BatchCounter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._file and self._writer:
            if kind is None:
                self.sealed = self._writer.finish()
                self._file.flush()
                os.fsync(self._file.fileno())
            self._writer.close()
            self._file.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.records += batch.num_rows
            if self._count:
                self.tokens += self._count(batch)
            if self._committer and self._writer:
                self._writer.write(self._committer.of_batch(batch))
            yield batch


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is on the disk when the block ends well."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
