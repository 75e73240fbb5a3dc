"""Sealing whole groups in several threads, each group straight to its place in the file.

Where a group lies depends on its number alone, so no thread waits for another's bytes. Each fetches
the next group's plaintext, encrypts it from where it lies into a buffer of its own, hashes and
writes that, and has the disk begin with it. What is read here stays untouched until ``seal``
returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock
from typing import Any

from sealtrain.base.files import send_to_disk, write_from
from sealtrain.sealing.chunked import ChunkCipher
from sealtrain.sealing.groupbuffer import GroupBuffer
from sealtrain.sealing.hashtree import GROUP_BYTES, Suite


class GroupCrew:
    """Threads that seal groups of one file; the caller is one of them."""

    def __init__(self, cipher: ChunkCipher, suite: Suite, descriptor: int, threads: int) -> None:
        """Start nothing yet; threads come with the first work.

        Args:
            cipher: Of the file's payload.
            suite: Hash of its groups.
            descriptor: Open for writing at any offset, not in append mode.
            threads: How many, at least two.
        """
        self._descriptor = descriptor
        self._helpers = ThreadPoolExecutor(threads - 1, thread_name_prefix="sealing")
        self._buffers = [GroupBuffer(cipher, suite) for _ in range(threads)]

    def seal(self, groups: Iterator[list[memoryview[Any]]], first: int, offset: int) -> list[bytes]:
        """Seal consecutive groups.

        Args:
            groups: Plaintext of each; fetched by one thread at a time.
            first: Number of the first group in the file.
            offset: Where its ciphertext begins in the file.

        Returns:
            Their hashes in order.

        Raises:
            OSError: The file does not take the bytes. No thread touches plaintext any more.
        """
        numbered = _Shared(enumerate(groups, first))
        leaves: dict[int, bytes] = {}
        start = offset - first * GROUP_BYTES
        helpers = [
            self._helpers.submit(self._work, buffer, numbered, start, leaves)
            for buffer in self._buffers[1:]
        ]
        try:
            self._work(self._buffers[0], numbered, start, leaves)
            for helper in helpers:
                helper.result()
        except BaseException:
            numbered.stop()
            wait(helpers)
            raise
        return [leaves[number] for number in sorted(leaves)]

    def close(self) -> None:
        """Let the threads go."""
        self._helpers.shutdown(wait=True, cancel_futures=True)
        for buffer in self._buffers:
            buffer.wipe()

    def _work(
        self, buffer: GroupBuffer, groups: _Shared, start: int, leaves: dict[int, bytes]
    ) -> None:
        try:
            for number, pieces in groups:
                buffer.begin(number)
                while pieces:  # let go one by one: they may be all that keeps a copy there
                    buffer.take(pieces.pop(0))
                leaves[number] = buffer.leaf()
                self._put(buffer.sealed, start + number * GROUP_BYTES)
        except BaseException:
            groups.stop()
            raise

    def _put(self, sealed: memoryview[Any], offset: int) -> None:
        done = 0
        while done < len(sealed):
            done += write_from(self._descriptor, sealed[done:], offset + done)
        send_to_disk(self._descriptor, offset, len(sealed))


class _Shared:
    """Numbered groups that several threads take in turn, until one of them stops it."""

    def __init__(self, groups: Iterator[tuple[int, list[memoryview[Any]]]]) -> None:
        self._groups = groups
        self._lock = Lock()

    def __iter__(self) -> _Shared:
        return self

    def __next__(self) -> tuple[int, list[memoryview[Any]]]:
        with self._lock:
            return next(self._groups)

    def stop(self) -> None:
        with self._lock:
            self._groups = iter(())
