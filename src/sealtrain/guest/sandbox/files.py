"""The files a run may make, change or remove: in its own folders, judged by where a path leads.

1. Links on the way are followed, and the last name too where the call follows it.
2. A path relative to an open directory (``dir_fd``) begins at that directory. Python's audit event
   of an open does not name that directory: ``os.open`` writes to absolute paths only.
3. A move or a hard link has two places. Both count: a run could change a file from outside through
   a second name inside.
4. A run writes only to devices that keep nothing and to those of accelerators; in ``/proc`` to
   nothing, where the names of its threads are seen by others.
5. A device of evidence is opened by a process that proves what it is, and by no code of a recipe,
   to read neither: asking it takes no right to write.

This module judges what Python does. ``sandbox.landlock`` has the kernel judge the same for native
code, and which files are read: Landlock's rules allow whole folders, so nothing of a run may lie in
a folder that its workload reads.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from sealtrain.attest.registry import TEES
from sealtrain.base.distributions import CORE
from sealtrain.base.version import own_folders
from sealtrain.errors import UsageError

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVIDENCE: Final = frozenset(f"/{tee.device.path}" for tee in TEES if tee.device is not None)
_DEVICES: Final = re.compile(
    r"/dev/(null|zero|full|u?random"  # keep nothing
    r"|nvidia[\w-]*(/[\w-]+)?|kfd|dri/renderD\d+)"  # accelerators
)
_HERE: Final = -1
_MACHINE: Final = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/passwd",
    "/proc/cpuinfo",
    "/proc/devices",
    "/proc/driver",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/stat",
    "/proc/sys",
    "/proc/version",
    "/sys",
)
"""What libraries read of the machine; nothing there is a run's."""
_INSTALLED: Final = ("bin", "etc", "include", "lib", "lib64", "pyvenv.cfg", "share")
"""What is Python's in the folder of a virtual environment, which may be that of a project."""

_Check = Callable[[tuple[Path, ...], tuple[Any, ...]], None]


class PlaceRefused(PermissionError):
    """A file outside the run's folder. Libraries that only probe whether they may write go on."""

    def __init__(self) -> None:
        """Without the path: its name may quote a record."""
        super().__init__(errno.EACCES, "a run writes to its own folder only")


def devices() -> list[Path]:
    """Device files of this machine that a run may write to."""
    found = (
        path for pattern in ("*", "nvidia-caps/*", "dri/*") for path in Path("/dev").glob(pattern)
    )
    return sorted(path for path in found if _DEVICES.fullmatch(str(path)) and not path.is_dir())


def evidence_devices() -> list[Path]:
    """Device files of evidence that this machine has: for ``Ways.devices`` of a keeper alone."""
    return [path for path in map(Path, sorted(_EVIDENCE)) if path.exists()]


def readable_places(
    packages: Iterable[str], copies: Path, own: Iterable[str] = (CORE,)
) -> list[Path]:
    """Files and folders that a workload reads, there or not, without links.

    Args:
        packages: Folders in which pinned packages are installed.
        copies: Folder of the copies of what the lock pins.
        own: Distributions of sealtrain itself that the lock pins.
    """
    found = [sys.base_prefix, *packages]
    if sys.prefix != sys.base_prefix:
        found += [f"{sys.prefix}/{name}" for name in _INSTALLED]
    found += map(str, own_folders(own).values())
    found += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    found += [str(copies), *_MACHINE]
    return list(dict.fromkeys(Path(os.path.realpath(name)) for name in found if name))


def keep_out_of_reach(readable: Iterable[Path], *places: Path) -> None:
    """Refuse a place of the run in a folder that its workload reads.

    Args:
        readable: As ``readable_places`` gives them.
        places: Files and folders, there or not.

    Raises:
        UsageError: The code of the recipe could read one of them.
    """
    folders = list(readable)
    for place in places:
        real = Path(os.path.realpath(place))
        found = next((folder for folder in folders if real.is_relative_to(folder)), None)
        if found is not None:
            raise UsageError(
                f"the recipe's scripts could read {place}: it lies in {found}, which they read",
                check="run folder",
                got=str(place),
                expected=f"outside {found}",
                hint="choose a folder outside Python's and the system's",
            )


def _check(writable: Iterable[Path], place: str) -> None:
    if _DEVICES.fullmatch(place):
        return
    if not any(Path(place).is_relative_to(folder) for folder in writable):
        raise PlaceRefused


def _place(path: Any, directory: int = _HERE, *, followed: bool) -> str | None:
    """The file a path leads to; ``None`` for a descriptor, which was judged when it was opened."""
    if isinstance(path, int):
        return None
    name = os.fsdecode(path)
    if directory != _HERE and not name.startswith("/"):
        name = f"/proc/self/fd/{directory}/{name}"
    if followed:
        return os.path.realpath(name)
    parent, last = os.path.split(name.rstrip("/"))
    if last in ("", ".", ".."):
        return os.path.realpath(name)
    return f"{os.path.realpath(parent).rstrip('/')}/{last}"


def _opening(writable: tuple[Path, ...], arguments: tuple[Any, ...]) -> None:
    path, mode, flags = arguments
    place = _place(path, followed=True)
    if place is None or not isinstance(flags, int):
        return
    if not flags & _WRITING:
        if place in _EVIDENCE:
            _check(writable, place)
        return
    if mode is None and not os.fsdecode(path).startswith("/"):  # os.open, maybe with dir_fd (2)
        raise PlaceRefused
    _check(writable, place)


def _opening_a_database(writable: tuple[Path, ...], arguments: tuple[Any, ...]) -> None:
    name = os.fsdecode(arguments[0])
    if name != ":memory:":
        _check(writable, os.path.realpath(name.removeprefix("file:")))


def _changing(*named: tuple[int, int | None, bool]) -> _Check:
    """A check of an event whose arguments hold paths.

    Args:
        named: Position of each path, position of its ``dir_fd`` (``None`` for calls that have
            none), and whether the call follows a link in the last name.
    """

    def check(writable: tuple[Path, ...], arguments: tuple[Any, ...]) -> None:
        for path, directory, followed in named:
            start = _HERE if directory is None else arguments[directory]
            place = _place(arguments[path], start, followed=followed)
            if place is not None:
                _check(writable, place)

    return check


PLACES: Final[dict[str, _Check]] = {
    "open": _opening,
    "sqlite3.connect": _opening_a_database,
    "os.chmod": _changing((0, 2, True)),
    "os.chown": _changing((0, 3, True)),
    "os.link": _changing((0, 2, True), (1, 3, False)),
    "os.mkdir": _changing((0, 2, False)),
    "os.remove": _changing((0, 1, False)),
    "os.removexattr": _changing((0, None, True)),
    "os.rename": _changing((0, 2, False), (1, 3, False)),
    "os.rmdir": _changing((0, 1, False)),
    "os.setxattr": _changing((0, None, True)),
    "os.symlink": _changing((1, 2, False)),
    "os.truncate": _changing((0, None, True)),
    "os.utime": _changing((0, 3, True)),
}
"""Audit events that make, change or remove files, and the check of each.

A check is given the folders that may be written and the event's arguments, and raises
``PlaceRefused``."""
