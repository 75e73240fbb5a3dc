"""Opening a sealed file: a seekable, read-only file object over ciphertext.

Plaintext exists only in the buffers a caller gives or gets.

Checks, in order (1-5 of ``header``, 1-3 of ``trailer``, then):
 1. The core is the expected context (``WrongContext``).
 2. The payload's commitment fits key and core (``ChunkDamaged``).
 3. The final chunk authenticates, and under a padding policy the content length inside it fits.
 4. Each time a group is read, it is the one under the root (``RootMismatch``), where a root is
    given.
 5. Each chunk authenticates (``ChunkDamaged``); no byte of it is released otherwise.
"""

from __future__ import annotations

import io
import os
import threading
from typing import TYPE_CHECKING, Any

from sealtrain.errors import DataInvalid
from sealtrain.sealing.chunked import CHUNK_BYTES, ChunkCipher, chunk_span
from sealtrain.sealing.chunkreader import ChunkReader, Ciphertext
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import ChunkDamaged, WrongKey
from sealtrain.sealing.header import FileContext, Header, read_header_from
from sealtrain.sealing.padding import LENGTH_BYTES, padded_size
from sealtrain.sealing.trailer import Trailer, read_trailer
from sealtrain.sealing.writer import PAYLOAD_CONTEXT

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import WriteableBuffer

WINDOW_CHUNKS = 4
"""Small sequential reads decrypt this many chunks at once and are served from memory."""


class SealedFile(io.RawIOBase):
    """Read-only, seekable view of the content of a sealed file.

    Position-dependent calls (``read``, ``seek``) share one position under a lock; ``pread_into``
    and ``read_buffer_at`` have none and may be called from many threads.
    """

    def __init__(
        self, source: Ciphertext, header: Header, trailer: Trailer, chunks: ChunkReader
    ) -> None:
        """Use ``open_sealed``, which makes the checks this class relies on."""
        self.header = header
        self.root = trailer.root.hex()
        self._source = source
        self._chunks = chunks
        self._position = 0
        self._lock = threading.RLock()
        self._window = bytearray(0)
        self._window_start = 0
        self.size = self._content_size()

    @property
    def context(self) -> FileContext:
        """Which file this is."""
        return self.header.context

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Position of the next ``read``."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position as any file does."""
        with self._lock:
            self._refuse_closed()
            base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}.get(whence)
            if base is None or base + offset < 0:
                raise ValueError("seek to a negative position or from an unknown origin")
            self._position = base + offset
            return self._position

    def pread_into(self, offset: int, buffer: WriteableBuffer) -> int:
        """Decrypt from ``offset`` into ``buffer``; returns how many bytes there were.

        Args:
            offset: Position in the content, ≥ 0.
            buffer: Any writable buffer; filled from its start.

        Raises:
            FileTruncated, RootMismatch, ChunkDamaged: No byte of the offending chunk is in it.
        """
        self._refuse_closed()
        with memoryview(buffer) as given, given.cast("B") as view:
            length = max(min(len(view), self.size - offset), 0)
            with view[:length] as part:
                self._chunks.read_into(offset if length else 0, part)
            return length

    def read_buffer_at(self, offset: int, length: int) -> pa.Buffer:
        """Decrypt a range into Arrow pool memory, whole chunks straight into place.

        Args:
            offset: Position in the content.
            length: Bytes wanted; fewer come back at the end of the file.
        """
        import pyarrow as pa

        self._refuse_closed()
        length = max(min(length, self.size - offset), 0)
        if not length:
            return pa.py_buffer(b"")
        start, stop = chunk_span(offset, length)
        stop = min(stop, self._chunks.shape.plain_size)
        pooled = pa.allocate_buffer(stop - start)
        with memoryview(pooled) as given, given.cast("B") as view:
            self._chunks.read_into(start, view)
        return pooled.slice(offset - start, length)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read at the position; small reads are served from a decrypted window."""
        with self._lock, memoryview(buffer) as given, given.cast("B") as view:
            if len(view) < CHUNK_BYTES:
                count = self._from_window(view)
            else:
                count = self.pread_into(self._position, view)
            self._position += count
            return count

    def readall(self) -> bytes:
        """Everything from the position on."""
        with self._lock:
            rest = bytearray(max(self.size - self._position, 0))
            self.readinto(rest)
            return bytes(rest)

    def read_buffer(self, length: int = -1) -> pa.Buffer:
        """As ``read``, into Arrow pool memory; pyarrow calls this by itself."""
        with self._lock:
            rest = max(self.size - self._position, 0)
            buffer = self.read_buffer_at(self._position, rest if length < 0 else min(length, rest))
            self._position += buffer.size
            return buffer

    def close(self) -> None:
        """Close the file and drop decrypted bytes held for small reads."""
        if not self.closed:
            self._window = bytearray(0)
            self._source.close()
        super().close()

    def _from_window(self, view: memoryview[Any]) -> int:
        self._refuse_closed()
        wanted = max(min(len(view), self.size - self._position), 0)
        done = 0
        while done < wanted:
            at = self._position + done - self._window_start
            if not 0 <= at < len(self._window):
                self._load_window(self._position + done)
                continue
            step = min(wanted - done, len(self._window) - at)
            view[done : done + step] = self._window[at : at + step]
            done += step
        return wanted

    def _load_window(self, position: int) -> None:
        start = position - position % CHUNK_BYTES
        window = bytearray(min(WINDOW_CHUNKS * CHUNK_BYTES, self.size - start))
        self._window = bytearray(0)
        self._chunks.read_into(start, memoryview(window))
        self._window_start, self._window = start, window

    def _content_size(self) -> int:
        plain = self._chunks.authenticate_length()
        policy = self.header.context.padding
        if policy == "none":
            return plain
        if plain < LENGTH_BYTES:
            raise DataInvalid("padded file holds no content length")
        tail = bytearray(LENGTH_BYTES)
        self._chunks.read_into(plain - LENGTH_BYTES, memoryview(tail))
        content = int.from_bytes(tail, "big")
        if content > plain - LENGTH_BYTES or padded_size(policy, content) != plain:
            raise DataInvalid("padded file names an impossible content length")
        return content

    def _refuse_closed(self) -> None:
        if self.closed:
            raise ValueError("read from a closed sealed file")


def open_sealed(
    source: Ciphertext,
    data_key: DataKey,
    *,
    context: FileContext | None = None,
    root: bytes | None = None,
) -> SealedFile:
    """Make every check that needs no content, then return the open file.

    Args:
        source: The sealed file.
        data_key: Key of its dataset or store.
        context: What the file must be, or ``None`` to take what it says.
        root: File root that was signed (32 bytes), or ``None`` to rely on tags alone.

    Raises:
        NotSealed, LimitExceeded, SealRefused: The file does not open; see the checks above.
    """
    header, keys = read_header_from(source.read_at, data_key)
    if keys is None:
        raise WrongKey("a key is needed to open a sealed file")
    if context is not None:
        context.require(header.context)
    trailer = read_trailer(source.read_at, source.size, header, keys=keys, root=root)
    try:
        cipher = ChunkCipher.opening(
            keys.payload.reveal(),
            trailer.payload_header,
            PAYLOAD_CONTEXT + header.core,
            data_key.permit,
        )
    except WrongKey as error:
        # Key and core were proven by the header's MAC, so salt or commitment was altered.
        raise ChunkDamaged("payload header was altered", check="payload commitment") from error
    chunks = ChunkReader(
        source,
        header.size,
        trailer.shape,
        cipher,
        suite=header.context.suite,
        leaves=trailer.leaves if root is not None else None,
    )
    return SealedFile(source, header, trailer, chunks)
