"""A folder in memory that belongs to one run and ends with it: temporary files and built kernels.

1. It lies in shared memory, never on a disk, under an unguessable name, for its user only.
   ``TMPDIR`` and the caches of compilers lead there.
2. Where the process may mount (CAP_SYS_ADMIN) and serves only the run, it replaces all of shared
   memory by memory of its own. No other process sees it, and the kernel frees it with the run's
   last process, however that ended.
3. Elsewhere the run removes the folder at its end. The next run of the same user removes the folder
   of a killed run: a living run holds a lock on its folder.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealtrain.base.privatefolder import hold_folder, remove_left_behind
from sealtrain.errors import UsageError

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # folders of our own are made in it
_PREFIX: Final = "sealtrain-run-"
_NEW_MOUNTS: Final = 0x20000
_RECURSIVELY, _FOLLOWING = 1 << 14, 1 << 19
_NO_SETUID, _NO_DEVICES = 1 << 1, 1 << 2
_VARIABLES: Final = {
    "TMPDIR": ".",
    "CUDA_CACHE_PATH": "kernels",
    "NUMBA_CACHE_DIR": "kernels",
    "TORCHINDUCTOR_CACHE_DIR": "kernels",
    "TORCH_EXTENSIONS_DIR": "kernels",
    "TRITON_CACHE_DIR": "kernels",
    "TRITON_HOME": "kernels",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """The folder of a run.

    Attributes:
        folder: Where it lies.
        private: No other process of the machine sees it.
    """

    folder: Path
    private: bool

    @property
    def writable(self) -> tuple[Path, ...]:
        """Folders that it makes writable: all of shared memory, if that is the run's own."""
        return (SHARED_MEMORY,) if self.private else (self.folder,)


@contextmanager
def scratch(*, alone: bool) -> Iterator[Scratch]:
    """Make the folder, have libraries use it, and remove it when the block ends.

    Args:
        alone: This process serves only the run, so that shared memory may be replaced for good.

    Raises:
        UsageError: The machine has no shared memory that this process may write to.
    """
    private = alone and _replace_shared_memory()
    if not (os.access(SHARED_MEMORY, os.W_OK) and _is_memory(SHARED_MEMORY)):
        raise UsageError(
            "a run needs memory for its temporary files, which must not lie on a disk",
            check="shared memory",
            got=f"no {SHARED_MEMORY} that is memory and can be written",
            hint=f"mount -t tmpfs tmpfs {SHARED_MEMORY}",
        )
    remove_left_behind(SHARED_MEMORY, _PREFIX)
    folder, lock = hold_folder(SHARED_MEMORY, _PREFIX)
    (folder / "kernels").mkdir(mode=0o700)
    owner = os.getpid()
    before = {name: os.environ.get(name) for name in _VARIABLES}
    directory = tempfile.tempdir
    os.environ.update({name: str(folder / inner) for name, inner in _VARIABLES.items()})
    tempfile.tempdir = str(folder)
    try:
        yield Scratch(folder=folder, private=private)
    finally:
        tempfile.tempdir = directory
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _is_memory(folder: Path) -> bool:
    """Whether the file system that is mounted there, and not below it, keeps files in memory."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text("utf-8").splitlines()]
    kinds = [kind for _source, place, kind, *_ in mounts if place == str(folder)]
    return bool(kinds) and kinds[-1] in ("tmpfs", "ramfs")


def _replace_shared_memory() -> bool:
    """Mount memory of this process's own over shared memory; returns whether the kernel agreed."""
    if not SHARED_MEMORY.is_dir():
        return False
    room = os.statvfs(SHARED_MEMORY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) != 0:
        return False
    # No other process sees mounts made here; mounts that other processes remove go here, too.
    if libc.mount(None, b"/", None, _RECURSIVELY | _FOLLOWING, None) != 0:
        return False
    size = f"mode=1777,size={room.f_blocks * room.f_frsize}".encode()
    where, kind = os.fsencode(SHARED_MEMORY), b"tmpfs"
    return bool(libc.mount(kind, where, kind, _NO_SETUID | _NO_DEVICES, size) == 0)
