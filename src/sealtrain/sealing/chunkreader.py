"""Ciphertext at any offset, and the plaintext of one C2SP payload out of it.

Ciphertext is copied into private memory before it is checked, so what was hashed is what is
decrypted even if the file changes meanwhile.

Checks on each read, in order, where a root is given the first two:
 1. A group that is read for the first time has the hash under the root (``RootMismatch``).
 2. A group that is read again is the same as then, by its marks (``RootMismatch``).
 3. Each chunk authenticates (``ChunkDamaged``); no byte of it is released otherwise.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, BinaryIO

from sealtrain.base.files import open_regular, read_into
from sealtrain.sealing.chunked import (
    CHUNK_BYTES,
    SEALED_CHUNK_BYTES,
    TAG_BYTES,
    ChunkCipher,
    PayloadShape,
)
from sealtrain.sealing.errors import FileTruncated, RootMismatch
from sealtrain.sealing.hashtree import (
    GROUP_BYTES,
    GROUP_CHUNKS,
    HASH_BYTES,
    Suite,
    group_hash,
)
from sealtrain.sealing.marks import STRIPE_CHUNKS, GroupMarks
from sealtrain.sealing.places import Ranges


class Ciphertext:
    """Positional, thread-safe reads from a path, a seekable binary file or a file elsewhere."""

    def __init__(self, source: Path | BinaryIO | Ranges, *, keep_open: bool = True) -> None:
        """Open the source.

        Args:
            source: Path, or a seekable file object, which stays the caller's to close, or
                something read by ranges.
            keep_open: Hold a path's descriptor; otherwise open it for each read, so that a dataset
                of very many shards does not exhaust descriptors.

        Raises:
            DataInvalid: The path cannot be opened.
        """
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._ranges: Ranges | None = None
        if isinstance(source, Ranges):
            self._ranges = source
            self.size = source.size
        elif isinstance(source, Path):
            self._path = source
            descriptor = open_regular(source)
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

    def read_exactly(self, offset: int, view: memoryview[Any]) -> None:
        """Fill all of ``view`` from ``offset``.

        Raises:
            FileTruncated: The source ends before; what ``view`` holds is then of no use.
        """
        count = self.read_into(offset, view)
        if count != len(view):
            raise FileTruncated(
                "file became shorter while it was open",
                check="file length",
                got=f"{count} bytes at {offset}",
                expected=f"{len(view)} bytes",
                hint="fetch the file again from its owner",
            )

    def read_into(self, offset: int, view: memoryview[Any]) -> int:
        """Fill ``view`` from ``offset``; returns how much there was."""
        ranges = self._ranges
        if ranges is not None:
            return _fill(view, lambda rest, done: ranges.read_into(offset + done, rest))
        if self._file is not None:
            with self._lock:
                self._file.seek(offset)
                return _fill(view, lambda rest, _: _readinto(self._file, rest))
        descriptor = self._descriptor
        if descriptor is not None:
            return _fill(view, lambda rest, done: read_into(descriptor, rest, offset + done))
        if self._path is None:
            raise ValueError("read from a closed sealed file")
        passing = open_regular(self._path)
        try:
            return _fill(view, lambda rest, done: read_into(passing, rest, offset + done))
        finally:
            os.close(passing)

    def close(self) -> None:
        """Give the descriptor back; a file object given by the caller stays open."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
            if self._ranges is not None:
                self._ranges.close()
            self._descriptor = self._path = self._file = self._ranges = None


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
            leaves: Group hashes to check on every read, or ``None`` to rely on tags alone.
        """
        self._source = source
        self._start = start
        self.shape = shape
        self._cipher = cipher
        self._suite = suite
        # In one piece: as objects of their own the hashes would take twice the memory.
        self._leaves = None if leaves is None else b"".join(leaves)
        self._marks = GroupMarks(len(leaves or ()))

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
        scratch = memoryview(bytearray(self.shape.last_sealed - TAG_BYTES))
        self._cipher.open(last, sealed, scratch)
        return self.shape.plain_size

    def _fetch(self, group: int, low: int, stop: int) -> memoryview[Any]:
        """Private copy of chunks ``low`` … ``stop - 1`` of one group, checked."""
        base = group * GROUP_CHUNKS
        begin, end = low, stop
        marked = self._marks.has(group) if self._leaves is not None else False
        if marked:  # stripes that hold the wanted chunks are enough
            begin = base + (low - base) // STRIPE_CHUNKS * STRIPE_CHUNKS
            end = base + -(-(stop - base) // STRIPE_CHUNKS) * STRIPE_CHUNKS
        elif self._leaves is not None:
            begin, end = base, base + GROUP_CHUNKS
        offset, length = self.shape.sealed_span(begin, end)
        sealed = _scratch()[:length]
        self._source.read_exactly(self._start + offset, sealed)
        if marked:
            if not self._marks.match(group, (begin - base) // STRIPE_CHUNKS, sealed):
                raise RootMismatch(
                    f"ciphertext group {group} changed since it was read before",
                    check="group mark",
                    hint="the store alters the file; fetch it again from its owner",
                )
        elif self._leaves is not None:
            leaf = self._leaves[group * HASH_BYTES : (group + 1) * HASH_BYTES]
            if group_hash(self._suite, sealed) != leaf:
                raise RootMismatch(
                    f"ciphertext group {group} differs from the root that was signed",
                    check="group hash",
                    hint="the file was altered; fetch it again from its owner",
                )
            self._marks.keep(group, sealed)
        wanted, size = self.shape.sealed_span(low, stop)
        return sealed[wanted - offset : wanted - offset + size]

    def _open(
        self, sealed: memoryview[Any], low: int, high: int, offset: int, view: memoryview[Any]
    ) -> None:
        """Decrypt chunks ``low`` … ``high`` into their place in ``view``.

        Chunks that lie inside ``view`` as a whole are decrypted into it, all in one call. Those it
        begins or ends in are decrypted aside, and the part that it holds is copied.

        Args:
            sealed: The chunks, one after the other.
            low: Number of the first.
            high: Number of the last.
            offset: Plaintext position of ``view``.
            view: Plaintext goes here.
        """
        begin = max(offset, low * CHUNK_BYTES)
        end = min(offset + len(view), (high + 1) * CHUNK_BYTES)
        first_whole = -(-begin // CHUNK_BYTES)
        after_whole = max(end // CHUNK_BYTES, first_whole)
        for number in range(low, first_whole):
            self._open_part(number, _chunks_of(sealed, low, number, number + 1), offset, view)
        if first_whole < after_whole:
            at = first_whole * CHUNK_BYTES - offset
            size = (after_whole - first_whole) * CHUNK_BYTES
            run = _chunks_of(sealed, low, first_whole, after_whole)
            self._cipher.open_run(first_whole, run, view[at : at + size])
        for number in range(after_whole, high + 1):
            self._open_part(number, _chunks_of(sealed, low, number, number + 1), offset, view)

    def _open_part(
        self, number: int, sealed: memoryview[Any], offset: int, view: memoryview[Any]
    ) -> None:
        """Decrypt one chunk, and copy the part of it that ``view`` at ``offset`` holds."""
        plain = memoryview(bytearray(len(sealed) - TAG_BYTES))
        self._cipher.open(number, sealed, plain)
        start = number * CHUNK_BYTES
        begin = max(offset, start)
        end = min(offset + len(view), start + len(plain))
        view[begin - offset : end - offset] = plain[begin - start : end - start]


def _chunks_of(sealed: memoryview[Any], low: int, begin: int, end: int) -> memoryview[Any]:
    """Chunks ``begin`` … ``end - 1`` of ``sealed``, which begins with ``low`` and may end short."""
    return sealed[(begin - low) * SEALED_CHUNK_BYTES : (end - low) * SEALED_CHUNK_BYTES]


_local = threading.local()


def _scratch() -> memoryview[Any]:
    """One ciphertext buffer for each thread, reused: fresh memory costs more than decryption."""
    view: memoryview[Any] | None = getattr(_local, "view", None)
    if view is None:
        view = _local.view = memoryview(bytearray(GROUP_BYTES))
    return view


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
