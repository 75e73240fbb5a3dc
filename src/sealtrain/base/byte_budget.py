"""A cap on the bytes that several threads hold at a time."""

from __future__ import annotations

import threading


class ByteBudget:
    """See the module.

    Args:
        size: Bytes.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Take ``size`` bytes; ``False``, taking none, where fewer are left."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give(self, size: int) -> None:
        """Give back what was taken."""
        with self._lock:
            self._left += size
