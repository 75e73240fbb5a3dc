"""Sealing as a stream: a write-only file object that turns what is written into a sealed file.

Memory is bounded by one group (about 1 MiB) for each thread whatever is written; large buffers are
encrypted where they lie, without a copy. Nothing is a sealed file before ``finish``: until then the
trailer is missing and every reader refuses the file as truncated.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from sealtrain.errors import UsageError
from sealtrain.sealing.chunked import (
    CHUNK_BYTES,
    HEADER_BYTES,
    MAX_CHUNKS,
    SALT_BYTES,
    SEALED_CHUNK_BYTES,
    TAG_BYTES,
    ChunkCipher,
    sealed_size,
)
from sealtrain.sealing.datakey import DataKey, Randomness
from sealtrain.sealing.groupcrew import GROUP_PLAIN_BYTES, GroupCrew
from sealtrain.sealing.hashtree import GROUP_BYTES, GROUP_CHUNKS, file_root, group_hash
from sealtrain.sealing.header import FileContext, FileKeys, encode_header
from sealtrain.sealing.padding import LENGTH_BYTES, padded_size
from sealtrain.sealing.stanza import Stanza
from sealtrain.sealing.trailer import encode_trailer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["PAYLOAD_CONTEXT", "SealedFileInfo", "SealedWriter"]

PAYLOAD_CONTEXT = b"sealtrain/sealed-file/v1:"
"""Followed by the core, this is the C2SP context of every payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFileInfo:
    """What sealing made.

    Attributes:
        root: File root, 64 hex digits.
        plain_size: Bytes of content, padding not counted.
        size: Bytes of the sealed file.
    """

    root: str
    plain_size: int
    size: int


class SealedWriter(io.RawIOBase):
    """Encrypts what is written to it. ``finish`` completes the file; ``close`` alone abandons it.

    As a context manager it finishes when the block ends well. Not safe for several threads.
    """

    def __init__(
        self,
        target: BinaryIO,
        *,
        data_key: DataKey,
        context: FileContext,
        stanzas: Sequence[Stanza] = (),
        random: Randomness = os.urandom,
        threads: int = 1,
    ) -> None:
        """Write the header and start the payload.

        Args:
            target: Receives the sealed file from its present position on; needs only ``write``.
            data_key: Key of the dataset or store.
            context: Which file this is, with its padding policy and suite.
            stanzas: Wrapped copies of the data key for the header.
            random: Source of the salt.
            threads: With more than one, ``target`` is a real file, written at any offset, and large
                buffers are sealed by so many threads.

        Raises:
            DataInvalid, LimitExceeded, UsageError: The context or a stanza is not acceptable.
        """
        self._finished: SealedFileInfo | None = None
        core = context.to_core()
        self._keys = FileKeys(data_key, core)
        self._core = core
        self._context = context
        self._cipher = ChunkCipher(
            self._keys.payload.reveal(), random(SALT_BYTES), PAYLOAD_CONTEXT + core, data_key.permit
        )
        self._target = target
        self._chunk = memoryview(bytearray(CHUNK_BYTES))  # plaintext of the chunk being filled
        self._filled = 0
        self._group = memoryview(bytearray(GROUP_BYTES))  # ciphertext of the group being filled
        self._grouped = 0
        self._index = 0
        self._written = 0
        self._leaves: list[bytes] = []
        self._threads = threads
        self._crew: GroupCrew | None = None
        self._start = target.tell() if threads > 1 else 0
        header = encode_header(core, stanzas, self._keys)
        self._header_size = len(header)
        target.write(header)
        target.write(self._cipher.header)

    def writable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Content bytes written so far."""
        return self._written

    def write(self, data: ReadableBuffer, /) -> int:
        """Encrypt ``data``; returns its length in bytes."""
        if self.closed or self._finished:
            raise ValueError("write to a finished sealed file")
        with memoryview(data) as given, given.cast("B") as view:
            self._absorb(view)
            self._written += len(view)
            return len(view)

    def finish(self) -> SealedFileInfo:
        """Write the final chunk and the trailer; the file is complete afterwards.

        Raises:
            UsageError: The writer was abandoned.
        """
        if self._finished:
            return self._finished
        if self.closed:
            raise UsageError("an abandoned sealed file cannot be finished")
        self._pad()
        self._seal_chunk(self._chunk[: self._filled])
        self._flush_group()
        plain = padded_size(self._context.padding, self._written)
        payload_size = sealed_size(plain)
        root = file_root(
            self._context.suite,
            core=self._core,
            payload_header=self._cipher.header,
            payload_size=payload_size,
            leaves=self._leaves,
        )
        trailer = encode_trailer(self._leaves, payload_size, root, self._keys)
        self._target.write(trailer)
        self._finished = SealedFileInfo(
            root=root.hex(),
            plain_size=self._written,
            size=self._header_size + payload_size + len(trailer),
        )
        self.close()
        return self._finished

    def close(self) -> None:
        """Release the buffers. Without ``finish`` before, the file stays incomplete."""
        if not self.closed:
            self._chunk[:] = bytes(CHUNK_BYTES)
            if self._crew is not None:
                self._crew.close()
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        self.close()

    def _absorb(self, view: memoryview[Any]) -> None:
        position, size = 0, len(view)
        if self._filled:
            position = min(CHUNK_BYTES - self._filled, size)
            self._chunk[self._filled : self._filled + position] = view[:position]
            self._filled += position
            if self._filled < CHUNK_BYTES:
                return
            self._seal_chunk(self._chunk)
            self._filled = 0
        while size - position >= CHUNK_BYTES:
            groups = (size - position) // GROUP_PLAIN_BYTES
            if self._threads > 1 and groups > 1 and not self._grouped:
                self._seal_groups(view[position : position + groups * GROUP_PLAIN_BYTES])
                position += groups * GROUP_PLAIN_BYTES
                continue
            self._seal_chunk(view[position : position + CHUNK_BYTES])
            position += CHUNK_BYTES
        if position < size:
            self._filled = size - position
            self._chunk[: self._filled] = view[position:]

    def _seal_chunk(self, plain: memoryview[Any]) -> None:
        self._refuse_too_long(1)
        end = self._grouped + len(plain) + TAG_BYTES
        self._cipher.seal(self._index, plain, self._group[self._grouped : end])
        self._index += 1
        self._grouped = end
        if end == GROUP_BYTES:
            self._flush_group()

    def _seal_groups(self, view: memoryview[Any]) -> None:
        self._refuse_too_long(len(view) // CHUNK_BYTES)
        if self._crew is None:
            self._crew = GroupCrew(
                self._cipher, self._context.suite, self._target.fileno(), self._threads
            )
        first = self._index // GROUP_CHUNKS
        offset = self._start + self._header_size + HEADER_BYTES + first * GROUP_BYTES
        self._target.flush()
        leaves = self._crew.seal(view, first, offset)
        self._target.seek(offset + len(leaves) * GROUP_BYTES)
        self._leaves += leaves
        self._index += len(leaves) * GROUP_CHUNKS

    def _refuse_too_long(self, chunks: int) -> None:
        if self._index + chunks > MAX_CHUNKS:
            raise UsageError("a sealed file holds at most 64 TiB", hint="split it into shards")

    def _flush_group(self) -> None:
        if self._grouped:
            group = self._group[: self._grouped]
            self._leaves.append(group_hash(self._context.suite, group))
            self._target.write(group)
            self._grouped = 0

    def _pad(self) -> None:
        if self._context.padding == "none":
            return
        missing = padded_size(self._context.padding, self._written) - self._written - LENGTH_BYTES
        zeros = memoryview(bytes(64 * SEALED_CHUNK_BYTES))
        while missing:
            step = min(missing, len(zeros))
            self._absorb(zeros[:step])
            missing -= step
        self._absorb(memoryview(self._written.to_bytes(LENGTH_BYTES, "big")))
