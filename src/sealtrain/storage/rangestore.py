"""Base of the filesystems: files by URL, read by ranges, over connections that are closed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from fsspec import AbstractFileSystem

from sealtrain.base.http import Bounds, HttpClient, Problem
from sealtrain.errors import UsageError
from sealtrain.storage.retry import Unanswered, Unsafe

BOUNDS = Bounds(connect=10.0, read=60.0, total=60.0, tries=1)
"""Of one exchange with a store that carries next to nothing; ``storage.patience`` tries again."""
_SLOWEST_BYTES = 64 << 10


def seconds_for(size: int, bounds: Bounds) -> float:
    """Seconds in which an exchange that carries so many bytes has to end.

    Those of any exchange, and one for each 64 KiB: half a megabit a second is the slowest line that
    serves.
    """
    return bounds.total + size / _SLOWEST_BYTES


def storage_error(problem: Problem) -> Exception:
    """Why a store gave no answer, as what fsspec's filesystems raise."""
    if problem.kind == "url":
        return UsageError("not a URL", expected="https://host/folder")
    if problem.kind == "encoding":
        return UsageError(
            "the store compresses its answers",
            check="storage",
            got=problem.reason,
            expected="the bytes of the file",
            hint="serve the folder without compression",
        )
    if problem.check is not None:
        return Unsafe(problem.reason, problem.check, problem.remedy)
    if problem.kind == "late":
        return TimeoutError(problem.reason)
    if problem.kind == "long":
        return ConnectionError("the server sent another number of bytes than it announced")
    return Unanswered(f"the connection failed or was cut: {problem.reason}", problem.remedy)


class RangeStore(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A filesystem of its own for each folder. Raises what fsspec's filesystems raise."""

    # One instance has one credential; fsspec would hand it to the next caller.
    cachable = False
    _client: HttpClient | None = None

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
            UsageError: The store serves no ranges, compresses, or sends elsewhere.
        """
        if start is None or end is None or not 0 <= start < end:
            raise ValueError("a range of the file is needed")
        return self._range(path, start, end)

    @abstractmethod
    def _range(self, path: str, start: int, end: int) -> bytes:
        """One request of the store; what ``cat_file`` promises."""
