"""Opening a sealed file: a seekable, read-only file object over ciphertext.

Plaintext exists only in the buffers a caller gives or gets. Ciphertext is copied into private
memory before it is checked, so what was hashed is what is decrypted even if the file changes
meanwhile.

Checks, in order (1-5 of ``header``, 1-3 of ``trailer``, then):
 1. The core is the expected context (``WrongContext``).
 2. The payload's commitment fits key and core (``ChunkDamaged``).
 3. The final chunk authenticates, and under a padding policy the content length inside it fits.
 4. On the first touch of a group, its hash is the one under the root (``RootMismatch``).
 5. Each chunk authenticates (``ChunkDamaged``); no byte of it is released otherwise.
"""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sealtrain.errors import (
    ChunkDamaged,
    DataInvalid,
    FileTruncated,
    RootMismatch,
    WrongKey,
)
from sealtrain.sealing.chunked import (
    CHUNK_BYTES,
    SEALED_CHUNK_BYTES,
    ChunkCipher,
    PayloadShape,
)
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.hashtree import GROUP_BYTES, GROUP_CHUNKS, Suite, group_hash
from sealtrain.sealing.header import FileContext, Header, read_header_from
from sealtrain.sealing.padding import LENGTH_BYTES, padded_size
from sealtrain.sealing.trailer import Trailer, read_trailer
from sealtrain.sealing.writer import PAYLOAD_CONTEXT

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import WriteableBuffer

__all__ = ["ChunkReader", "Ciphertext", "SealedFile"]

WINDOW_CHUNKS = 4
"""Small sequential reads decrypt this many chunks at once and are served from memory."""


class Ciphertext:
    """Positional, thread-safe reads from a path or from a seekable binary file."""

    def __init__(self, source: Path | BinaryIO, *, keep_open: bool = True) -> None:
        """Open the source.

        Args:
            source: Path, or a seekable file object, which stays the caller's to close.
            keep_open: Hold a path's descriptor; otherwise open it for each read, so that a dataset
                of very many shards does not exhaust descriptors.

        Raises:
            DataInvalid: The path cannot be opened.
        """
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        if isinstance(source, Path):
            self._path = source
            descriptor = _open(source)
            self.size = os.fstat(descriptor).st_size
            if keep_open:
                self._descriptor = descriptor
            else:
                os.close(descriptor)
        else:
            self._file = source
            self.size = source.seek(0, os.SEEK_END)

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes at ``offset``; fewer only at the end of the file."""
        length = max(min(length, self.size - offset), 0)
        data = bytearray(length)
        return bytes(data[: self.read_into(offset, memoryview(data))])

    def read_into(self, offset: int, view: memoryview[Any]) -> int:
        """Fill ``view`` from ``offset``; returns how much there was."""
        if self._file is not None:
            with self._lock:
                self._file.seek(offset)
                return _fill(view, lambda rest, _: _readinto(self._file, rest))
        descriptor = self._descriptor
        if descriptor is not None:
            return _fill(view, lambda rest, done: os.preadv(descriptor, [rest], offset + done))
        if self._path is None:
            raise ValueError("read from a closed sealed file")
        passing = _open(self._path)
        try:
            return _fill(view, lambda rest, done: os.preadv(passing, [rest], offset + done))
        finally:
            os.close(passing)

    def close(self) -> None:
        """Give the descriptor back; a file object given by the caller stays open."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = self._path = self._file = None


class ChunkReader:
    """Random access to the plaintext of one C2SP payload. Thread-safe."""

    def __init__(
        self,
        source: Ciphertext,
        start: int,
        shape: PayloadShape,
        cipher: ChunkCipher,
        *,
        suite: Suite = Suite.BLAKE3,
        leaves: tuple[bytes, ...] | None = None,
    ) -> None:
        """Prepare to read.

        Args:
            source: Where the ciphertext is.
            start: Offset of the payload in it.
            shape: Chunks of the payload.
            cipher: From ``ChunkCipher.opening``.
            suite: Hash of ``leaves``.
            leaves: Group hashes to check on first touch, or ``None`` to rely on tags alone.
        """
        self._source = source
        self._start = start
        self.shape = shape
        self._cipher = cipher
        self._suite = suite
        self._leaves = leaves
        # Races only repeat a check: a flag is set after its group was found good.
        self._good = bytearray(len(leaves) if leaves is not None else 0)

    def read_into(self, offset: int, view: memoryview[Any]) -> None:
        """Fill ``view`` with plaintext from ``offset``; both ends lie inside the plaintext.

        Raises:
            FileTruncated, RootMismatch, ChunkDamaged: Nothing of the offending chunk is
            in ``view``.
        """
        end = offset + len(view)
        if not 0 <= offset <= end <= self.shape.plain_size:
            raise ValueError("range outside the plaintext")
        if offset == end:
            return
        first, last = offset // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
        for group in range(first // GROUP_CHUNKS, last // GROUP_CHUNKS + 1):
            low = max(first, group * GROUP_CHUNKS)
            high = min(last, group * GROUP_CHUNKS + GROUP_CHUNKS - 1)
            sealed = self._fetch(group, low, high + 1)
            self._open(sealed, low, high, offset, view)

    def authenticate_length(self) -> int:
        """Decrypt the final chunk: only then is the plaintext's length proven. Returns it."""
        last = self.shape.chunks - 1
        sealed = self._fetch(last // GROUP_CHUNKS, last, last + 1)
        scratch = memoryview(bytearray(self.shape.last_sealed - 16))
        self._cipher.open(last, sealed, scratch)
        return self.shape.plain_size

    def _fetch(self, group: int, low: int, stop: int) -> memoryview[Any]:
        """Ciphertext of chunks ``low`` … ``stop - 1`` of one group, its hash checked once."""
        unchecked = self._leaves is not None and not self._good[group]
        begin = group * GROUP_CHUNKS if unchecked else low
        until = min((group + 1) * GROUP_CHUNKS, self.shape.chunks) if unchecked else stop
        offset, length = self.shape.sealed_span(begin, until)
        sealed = _scratch()[:length]
        if self._source.read_into(self._start + offset, sealed) != length:
            raise FileTruncated("file became shorter while it was open", check="file length")
        if unchecked and self._leaves is not None:
            if group_hash(self._suite, sealed) != self._leaves[group]:
                raise RootMismatch(
                    f"ciphertext group {group} differs from the root that was signed",
                    check="group hash",
                    hint="the file was altered; fetch it again from its owner",
                )
            self._good[group] = 1
        skip = self.shape.sealed_span(low, stop)[0] - offset
        return sealed[skip : skip + self.shape.sealed_span(low, stop)[1]]

    def _open(
        self, sealed: memoryview[Any], low: int, high: int, offset: int, view: memoryview[Any]
    ) -> None:
        """Decrypt chunks ``low`` … ``high`` into their place in ``view``, ends cut as asked."""
        end = offset + len(view)
        whole = low if low * CHUNK_BYTES >= offset else low + 1
        stop = whole + max((min(end, (high + 1) * CHUNK_BYTES) // CHUNK_BYTES) - whole, 0)
        for number in range(low, high + 1):
            if number == whole and stop > whole:
                run = sealed[(whole - low) * SEALED_CHUNK_BYTES : (stop - low) * SEALED_CHUNK_BYTES]
                begin = whole * CHUNK_BYTES - offset
                self._cipher.open_run(
                    whole, run, view[begin : begin + (stop - whole) * CHUNK_BYTES]
                )
            if whole <= number < stop:
                continue
            chunk = sealed[(number - low) * SEALED_CHUNK_BYTES :][:SEALED_CHUNK_BYTES]
            plain = memoryview(bytearray(len(chunk) - 16))
            self._cipher.open(number, chunk, plain)
            begin = max(offset, number * CHUNK_BYTES)
            until = min(end, number * CHUNK_BYTES + len(plain))
            inside = plain[begin - number * CHUNK_BYTES : until - number * CHUNK_BYTES]
            view[begin - offset : until - offset] = inside


class SealedFile(io.RawIOBase):
    """Read-only, seekable view of the content of a sealed file.

    Position-dependent calls (``read``, ``seek``) share one position under a lock;
    ``pread_into`` and
    ``read_buffer_at`` have none and may be called from many threads.
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
        start = offset - offset % CHUNK_BYTES
        stop = min(
            -(-(offset + length) // CHUNK_BYTES) * CHUNK_BYTES, self._chunks.shape.plain_size
        )
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
            keys.payload.reveal(), trailer.payload_header, PAYLOAD_CONTEXT + header.core
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


_local = threading.local()


def _scratch() -> memoryview[Any]:
    """One ciphertext buffer for each thread, reused: fresh memory costs more than decryption."""
    view: memoryview[Any] | None = getattr(_local, "view", None)
    if view is None:
        view = _local.view = memoryview(bytearray(GROUP_BYTES))
    return view


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DataInvalid(f"cannot read {path}: {error.strerror}", hint="check the path") from error


def _fill(view: memoryview[Any], read: Any) -> int:
    done = 0
    while done < len(view):
        count = read(view[done:], done)
        if not count:
            break
        done += count
    return done


def _readinto(file: Any, view: memoryview[Any]) -> int:
    if hasattr(file, "readinto"):
        return file.readinto(view) or 0
    data = file.read(len(view))
    view[: len(data)] = data
    return len(data)
