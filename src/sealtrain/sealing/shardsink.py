"""Where the bytes of an Arrow shard go: sealed by other threads while the next ones are made.

Two buffers take turns. While one is filled from the source, the other is encrypted, hashed and
written by the writer's threads; the order of bytes, and so the file, is the same as without them.
"""

from __future__ import annotations

import io
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from sealtrain.sealing.groupbuffer import GROUP_PLAIN_BYTES
from sealtrain.sealing.writer import SealedFileInfo, SealedWriter

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

THREADS = min(4, os.cpu_count() or 1)
BUFFER_BYTES = 4 * GROUP_PLAIN_BYTES


class ShardSink(io.RawIOBase):
    """Write-only; call ``finish`` at the end and ``close`` in any case."""

    def __init__(self, writer: SealedWriter | None, hasher: Any = None) -> None:
        """Begin a shard.

        Args:
            writer: Seals what is written; ``None`` only to compute the digest.
            hasher: Takes the same bytes, where a digest is wanted.
        """
        self._writer = writer
        self._hasher = hasher
        self._buffers = [memoryview(bytearray(BUFFER_BYTES)) for _ in range(2 if writer else 0)]
        self._filled = self._written = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shard") if writer else None
        self._pending: Future[int] | None = None

    def writable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self._written

    def write(self, data: ReadableBuffer, /) -> int:
        """Take ``data``; returns its length in bytes."""
        with memoryview(data) as given, given.cast("B") as view:
            if self._hasher is not None:
                self._hasher.update(view)
            position = 0
            while self._writer is not None and position < len(view):
                step = min(BUFFER_BYTES - self._filled, len(view) - position)
                target = self._buffers[0][self._filled : self._filled + step]
                target[:] = view[position : position + step]
                self._filled += step
                position += step
                if self._filled == BUFFER_BYTES:
                    self._hand_over(self._writer)
            self._written += len(view)
            return len(view)

    def finish(self) -> SealedFileInfo | None:
        """Seal what is left; what was made, or ``None`` without a writer."""
        if self._writer is None:
            return None
        self._wait()
        self._writer.write(self._buffers[0][: self._filled])
        return self._writer.finish()

    def close(self) -> None:
        """Let the thread go; what was not finished stays incomplete."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        super().close()

    def _hand_over(self, writer: SealedWriter) -> None:
        self._wait()
        if self._thread is not None:
            self._pending = self._thread.submit(writer.write, self._buffers[0])
        self._buffers.reverse()
        self._filled = 0

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
