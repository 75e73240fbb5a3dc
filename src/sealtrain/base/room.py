"""Bytes that several threads may fill together, and no more of them."""

from __future__ import annotations

import threading

__all__ = ["Room"]


class Room:
    """See the module.

    Args:
        size: Bytes.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Take so many bytes, or none of them; whether they were there."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give(self, size: int) -> None:
        """Give back what was taken."""
        with self._lock:
            self._left += size
