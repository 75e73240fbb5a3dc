"""One group on its way into a sealed file: plaintext comes in pieces, ciphertext and leaf go out.

Chunks are encrypted from where their plaintext lies; only one that pieces share is put together
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from sealtrain.errors import UsageError
from sealtrain.sealing.chunked import (
    CHUNK_BYTES,
    MAX_CHUNKS,
    SEALED_CHUNK_BYTES,
    TAG_BYTES,
    ChunkCipher,
)
from sealtrain.sealing.hashtree import GROUP_BYTES, GROUP_CHUNKS, Suite, group_hash

GROUP_PLAIN_BYTES: Final = GROUP_CHUNKS * CHUNK_BYTES
"""Plaintext that one group holds."""


class GroupBuffer:
    """Memory for one group, used for one after another. Not safe for several threads."""

    __slots__ = ("_chunk", "_cipher", "_held", "_next", "_sealed", "_size", "_suite")

    def __init__(self, cipher: ChunkCipher, suite: Suite) -> None:
        """Begin at group 0.

        Args:
            cipher: Of the file's payload.
            suite: Hash of its groups.
        """
        self._cipher = cipher
        self._suite = suite
        self._chunk = memoryview(bytearray(CHUNK_BYTES))  # plaintext of an incomplete chunk
        self._held = 0
        self._sealed = memoryview(bytearray(GROUP_BYTES))
        self._size = 0
        self._next = 0  # number in the file of the next chunk

    def begin(self, number: int) -> None:
        """Forget the group that was here and make group ``number`` of the file.

        Raises:
            UsageError: A file has no such group.
        """
        self._next = number * GROUP_CHUNKS
        if self._next >= MAX_CHUNKS:
            raise UsageError("a sealed file holds at most 64 TiB", hint="split it into shards")
        self._held = self._size = 0

    @property
    def room(self) -> int:
        """Bytes of plaintext that are missing."""
        return GROUP_PLAIN_BYTES - self._size // SEALED_CHUNK_BYTES * CHUNK_BYTES - self._held

    def take(self, plain: memoryview[Any]) -> None:
        """Encrypt what comes next, at most ``room`` bytes."""
        joined = min(-self._held % CHUNK_BYTES, len(plain))
        if joined:
            self._chunk[self._held : self._held + joined] = plain[:joined]
            self._held += joined
            if self._held == CHUNK_BYTES:
                self._seal(self._chunk)
                self._held = 0
        whole = joined + (len(plain) - joined) // CHUNK_BYTES * CHUNK_BYTES
        self._seal(plain[joined:whole])
        if whole < len(plain):
            self._held = len(plain) - whole
            self._chunk[: self._held] = plain[whole:]

    def end_file(self) -> None:
        """Encrypt the last partial chunk, possibly empty, as the last chunk of the file."""
        end = self._size + self._held + TAG_BYTES
        self._cipher.seal(self._next, self._chunk[: self._held], self._sealed[self._size : end])
        self._size = end

    @property
    def sealed(self) -> memoryview[Any]:
        """The group's ciphertext so far."""
        return self._sealed[: self._size]

    def leaf(self) -> bytes:
        """Hash of the group."""
        return group_hash(self._suite, self.sealed)

    def wipe(self) -> None:
        """Overwrite the plaintext in it."""
        self._chunk[:] = bytes(CHUNK_BYTES)

    def _seal(self, chunks: memoryview[Any]) -> None:
        count = len(chunks) // CHUNK_BYTES
        end = self._size + count * SEALED_CHUNK_BYTES
        self._cipher.seal_run(self._next, chunks, self._sealed[self._size : end])
        self._next += count
        self._size = end


class GroupPieces:
    """Plaintext cut into the pieces of one group after another, without a copy. Iterate it once.

    Attributes:
        rest: Once the iteration is over: the pieces at the end that complete no group.
    """

    def __init__(self, views: Iterable[memoryview[Any]], room: int) -> None:
        """Cut nothing yet.

        Args:
            views: Content in order, byte by byte.
            room: Bytes that the first group still takes.
        """
        self._views = views
        self._room = room
        self.rest: list[memoryview[Any]] = []

    def __iter__(self) -> Iterator[list[memoryview[Any]]]:
        """The pieces of each group that the content completes."""
        for view in self._views:
            left = view
            while len(left) >= self._room:
                pieces = [*self.rest, left[: self._room]]
                left = left[self._room :]
                self.rest, self._room = [], GROUP_PLAIN_BYTES
                yield pieces
            if len(left):
                self.rest.append(left)
                self._room -= len(left)
