"""Memory that keeper and workload share, which neither can shrink, grow or unseal.

The keeper makes each one and passes its descriptor to the workload, never the other way round: a
descriptor that a workload sends is not received. A memory that could shrink would end the keeper
with SIGBUS while it reads.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Final

from sealtrain.errors import LimitExceeded

_NEVER_EXECUTED: Final = 8  # MFD_NOEXEC_SEAL, Linux 6.3
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedMemory:
    """A mapped memory of a fixed size.

    Attributes:
        size: Bytes.
        map: The mapping.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        """Map the memory; the caller keeps the descriptor."""
        self.size = size
        self.map = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, size: int) -> tuple[SharedMemory, int]:
        """New memory, and the descriptor to pass on and to close.

        Raises:
            LimitExceeded: The system has no such memory.
        """
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            try:
                descriptor = os.memfd_create("sealtrain-shared", flags | _NEVER_EXECUTED)
            except OSError:  # an older kernel
                descriptor = os.memfd_create("sealtrain-shared", flags)
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            return cls(descriptor, size), descriptor
        except (OSError, ValueError) as error:
            raise LimitExceeded(
                "there is no memory to share with the workload",
                check="memory",
                got=f"{size} bytes",
                hint="give this machine more memory",
            ) from error

    @classmethod
    def create_filled(
        cls, size: int, fill: Callable[[memoryview], object]
    ) -> tuple[SharedMemory, int]:
        """New memory of at least one byte, as ``create``; it is gone again where ``fill`` raises.

        Args:
            size: Bytes to fill.
            fill: Writes them.
        """
        memory, descriptor = cls.create(max(1, size))
        try:
            with memory.view[:size] as view:
                fill(view)
        except BaseException:
            os.close(descriptor)
            memory.map.close()
            raise
        return memory, descriptor

    @classmethod
    def receive(cls, descriptor: int) -> SharedMemory:
        """Map memory that was passed here, and close its descriptor."""
        try:
            return cls(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    @property
    def view(self) -> memoryview:
        """All of it, writable."""
        return memoryview(self.map)
