"""Sealing as a stream: a write-only file object that turns what is written into a sealed file.

Memory is bounded by one group (about 1 MiB) for each thread whatever is written; large buffers are
encrypted where they lie, without a copy. Nothing is a sealed file before ``finish``: until then the
trailer is missing and every reader refuses the file as truncated.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from sealtrain.base.process_state import OneProcess
from sealtrain.base.secret import Random
from sealtrain.errors import UsageError
from sealtrain.sealing.chunked import SALT_BYTES, ChunkCipher, size_sealed
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.groupbuffer import GROUP_PLAIN_BYTES, GroupBuffer, GroupPieces
from sealtrain.sealing.groupcrew import GroupCrew
from sealtrain.sealing.hashtree import GROUP_BYTES, file_root
from sealtrain.sealing.header import FileContext, FileKeys, encode_header
from sealtrain.sealing.padding import LENGTH_BYTES, padded_size
from sealtrain.sealing.stanza import Stanza
from sealtrain.sealing.trailer import encode_trailer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PAYLOAD_CONTEXT = b"sealtrain/sealed-file/v1:"
"""Followed by the core, this is the C2SP context of every payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFileInfo:
    """A sealed file's root and sizes.

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
        random: Random = os.urandom,
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
        self._process = OneProcess("a sealed file")
        core = context.to_core()
        self._keys = FileKeys(data_key, core)
        self._core = core
        self._context = context
        self._cipher = ChunkCipher(
            self._keys.payload.reveal(), random(SALT_BYTES), PAYLOAD_CONTEXT + core, data_key.permit
        )
        self._target = target
        self._group = GroupBuffer(self._cipher, context.suite)
        self._written = 0
        self._leaves: list[bytes] = []
        header = encode_header(core, stanzas, self._keys)
        self._header_size = len(header)
        target.write(header)
        target.write(self._cipher.header)
        self._threads = threads
        self._crew: GroupCrew | None = None
        self._first_group_at = target.tell() if threads > 1 else 0

    def writable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Content bytes written so far."""
        return self._written

    def write(self, data: ReadableBuffer, /) -> int:
        """Encrypt ``data``; returns its length in bytes."""
        before = self._written
        self.writelines((data,))
        return self._written - before

    def writelines(self, lines: Iterable[ReadableBuffer], /) -> None:
        """Encrypt buffers one after another; each stays as it is until this returns.

        Raises:
            ForkRefused: Another process began the file.
        """
        self._process.require()
        if self.closed or self._finished:
            raise ValueError("write to a finished sealed file")
        self._absorb(self._count(lines))

    def finish(self) -> SealedFileInfo:
        """Write the final chunk and the trailer; the file is complete afterwards.

        Raises:
            UsageError: The writer was abandoned.
            ForkRefused: As ``writelines``.
        """
        self._process.require()
        if self._finished:
            return self._finished
        if self.closed:
            raise UsageError("an abandoned sealed file cannot be finished")
        self._pad()
        self._group.end_file()
        self._end_group()
        plain = padded_size(self._context.padding, self._written)
        payload_size = size_sealed(plain)
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
            self._group.wipe()
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

    def _count(self, data: Iterable[ReadableBuffer]) -> Iterator[memoryview[Any]]:
        for buffer in data:
            view = memoryview(buffer).cast("B")
            self._written += len(view)
            yield view

    def _absorb(self, views: Iterable[memoryview[Any]]) -> None:
        """Encrypt every group that ``views`` complete; keep the rest for the next one."""
        cut = GroupPieces(views, self._group.room)
        groups = iter(cut)
        for pieces in groups:
            if self._threads > 1 and self._group.room == GROUP_PLAIN_BYTES:
                self._seal_in_threads(chain((pieces,), groups))
            else:
                for piece in pieces:
                    self._group.take(piece)
                self._end_group()
            self._group.begin(len(self._leaves))
        for piece in cut.rest:
            self._group.take(piece)

    def _seal_in_threads(self, groups: Iterator[list[memoryview[Any]]]) -> None:
        """Seal whole groups at their offsets; behind them ``target`` goes on as before."""
        if self._crew is None:
            self._crew = GroupCrew(
                self._cipher, self._context.suite, self._target.fileno(), self._threads
            )
        first = len(self._leaves)
        self._target.flush()
        self._leaves += self._crew.seal(groups, first, self._first_group_at + first * GROUP_BYTES)
        self._target.seek(self._first_group_at + len(self._leaves) * GROUP_BYTES)

    def _end_group(self) -> None:
        self._leaves.append(self._group.leaf())
        self._target.write(self._group.sealed)

    def _pad(self) -> None:
        if self._context.padding == "none":
            return
        missing = padded_size(self._context.padding, self._written) - self._written - LENGTH_BYTES
        zeros = memoryview(bytes(GROUP_PLAIN_BYTES))
        length = memoryview(self._written.to_bytes(LENGTH_BYTES, "big"))
        whole, rest = divmod(missing, len(zeros))
        # Not through ``write``, which would count padding as content.
        self._absorb(chain(repeat(zeros, whole), (zeros[:rest], length)))
