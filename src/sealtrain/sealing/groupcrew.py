"""Sealing whole groups in several threads, each group straight to its place in the file.

Where a group lies depends on its number alone, so no thread waits for another. Each encrypts from
the caller's memory into a buffer of its own, hashes and writes that. What is read here stays
untouched until ``seal`` returns.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any

from sealtrain.sealing.chunked import CHUNK_BYTES, ChunkCipher
from sealtrain.sealing.hashtree import GROUP_BYTES, GROUP_CHUNKS, Suite, group_hash

__all__ = ["GROUP_PLAIN_BYTES", "GroupCrew"]

GROUP_PLAIN_BYTES = GROUP_CHUNKS * CHUNK_BYTES
"""Plaintext that one group holds."""


class GroupCrew:
    """Threads that seal groups of one file."""

    def __init__(self, cipher: ChunkCipher, suite: Suite, descriptor: int, threads: int) -> None:
        """Start nothing yet; threads come with the first work.

        Args:
            cipher: Of the file's payload.
            suite: Hash of its groups.
            descriptor: Open for writing at any offset, not in append mode.
            threads: How many, at least one.
        """
        self._cipher = cipher
        self._suite = suite
        self._descriptor = descriptor
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="sealing")
        self._buffers: SimpleQueue[memoryview[Any]] = SimpleQueue()
        for _ in range(threads):
            self._buffers.put(memoryview(bytearray(GROUP_BYTES)))

    def seal(self, plain: memoryview[Any], first: int, offset: int) -> list[bytes]:
        """Seal consecutive groups.

        Args:
            plain: Whole groups of content, n · 1 MiB.
            first: Number of the first group in the file.
            offset: Where its ciphertext begins in the file.

        Returns:
            Their hashes in order.

        Raises:
            OSError: The file does not take the bytes. No thread touches ``plain`` any more.
        """
        jobs: list[Future[bytes]] = []
        for number in range(len(plain) // GROUP_PLAIN_BYTES):
            part = plain[number * GROUP_PLAIN_BYTES : (number + 1) * GROUP_PLAIN_BYTES]
            place = offset + number * GROUP_BYTES
            jobs.append(self._threads.submit(self._seal_one, part, first + number, place))
        try:
            return [job.result() for job in jobs]
        except BaseException:
            for job in jobs:
                job.cancel()
            wait(jobs)
            raise

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _seal_one(self, plain: memoryview[Any], group: int, offset: int) -> bytes:
        sealed = self._buffers.get()
        try:
            self._cipher.seal_run(group * GROUP_CHUNKS, plain, sealed)
            leaf = group_hash(self._suite, sealed)
            done = 0
            while done < GROUP_BYTES:
                done += os.pwrite(self._descriptor, sealed[done:], offset + done)
            return leaf
        finally:
            self._buffers.put(sealed)
