"""What every filesystem here has in common: files by URL, read by ranges, connections to end."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from fsspec import AbstractFileSystem

__all__ = ["RangeStore"]


class RangeStore(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A filesystem of its own for each folder. Raises what fsspec's filesystems raise."""

    # One instance has one credential; fsspec would hand it to whoever asks next.
    cachable = False
    _client: Any = None

    def close(self) -> None:
        """End all connections."""
        if self._client is not None:
            self._client.close()

    def __del__(self) -> None:
        self.close()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Bytes ``start`` … ``end`` of a file; fewer only where it ends.

        Raises:
            FileNotFoundError, PermissionError: As the store says.
            ConnectionError, TimeoutError: No whole answer came.
            UsageError: The store serves no ranges, or sends elsewhere.
        """
        if start is None or end is None or not 0 <= start < end:
            raise ValueError("a range of the file is needed")
        return self._range(path, start, end)

    @abstractmethod
    def _range(self, path: str, start: int, end: int) -> bytes:
        """One request of the store; what ``cat_file`` promises."""
