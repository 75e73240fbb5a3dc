"""Where sealed files lie: a folder of this machine, or one that answers range requests.

Nothing here connects to anything. A caller with a connection gives an object of these shapes; what
it returns is checked as a file on a disk is, so the server need not be trusted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sealtrain.base.files import read_bounded


@runtime_checkable
class Ranges(Protocol):
    """One file, read at any position from several threads."""

    size: int

    def read_into(self, offset: int, view: memoryview[Any]) -> int:
        """Fill ``view`` from ``offset``; returns how many bytes there were."""

    def close(self) -> None:
        """Let go of what was kept for it."""


class FolderReader(Protocol):
    """Files by name that lie elsewhere."""

    @property
    def name(self) -> str:
        """Last part of its address."""

    def open(self, name: str, *, size: int | None = None) -> Ranges:
        """Open a file; ``size`` is its size where that is known already."""

    def read(self, name: str, max_bytes: int) -> bytes:
        """A whole small file."""

    def close(self) -> None:
        """End its connections."""


Folder = Path | FolderReader


def file_in(folder: Folder, name: str, *, size: int | None = None) -> Path | Ranges:
    """A file of a folder, to give to ``sealing.file.open_file``.

    Raises:
        DataInvalid: It is not there; a local one is found missing when it is opened.
        StorageUnreachable: The store does not answer.
    """
    return folder / name if isinstance(folder, Path) else folder.open(name, size=size)


def read_small(folder: Folder, name: str, max_bytes: int) -> bytes:
    """A whole small file of a folder.

    Raises:
        LimitExceeded: It is longer than ``max_bytes``.
        DataInvalid: There is no such file.
        StorageUnreachable: The store does not answer.
    """
    if isinstance(folder, Path):
        return read_bounded(folder / name, max_bytes)
    return folder.read(name, max_bytes)
