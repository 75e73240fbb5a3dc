"""What the kernel of a guest refuses for good before a program of the root runs.

Each setting is written and read again: a kernel that does not have one, or that says something
else, starts no root.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from sealtrain.errors import ImageRefused

SETTINGS: Final = {
    "proc/sys/kernel/dmesg_restrict": "1",
    "proc/sys/kernel/io_uring_disabled": "2",
    "proc/sys/kernel/unprivileged_bpf_disabled": "1",
    "proc/sys/kernel/yama/ptrace_scope": "3",
    "proc/sys/fs/suid_dumpable": "0",
    "proc/sys/user/max_user_namespaces": "0",
    "proc/sys/kernel/kexec_load_disabled": "1",
    "proc/sys/kernel/modules_disabled": "1",
}
"""File → what is written to it, and has to be in it afterwards: no other kernel and no module from
now on, no debugger, no new user's namespace, and no calls that a filter does not see."""
LOCKDOWN: Final = "sys/kernel/security/lockdown"
_LOCKED: Final = "confidentiality"
SWAPS: Final = "proc/swaps"


def lock_kernel(top: Path, write: Callable[[Path, str], object] = Path.write_text) -> None:
    """Set what the kernel refuses from now on.

    Args:
        top: Where ``proc`` and ``sys`` are mounted.
        write: How a setting is written to its file.

    Raises:
        ImageRefused: The kernel does not take a setting, or memory is written to a disk.
    """
    swaps = (top / SWAPS).read_text().splitlines()
    if len(swaps) != 1:
        raise _refusal("writes memory to a disk", SWAPS, f"{len(swaps)} lines", "its heading alone")
    for name, wanted in SETTINGS.items():
        _set(write, top / name, wanted)
        found = (top / name).read_text().strip()
        if found != wanted:
            raise _refusal("does not keep a setting", name, found[:40], wanted)
    _set(write, top / LOCKDOWN, _LOCKED)
    found = (top / LOCKDOWN).read_text()
    if f"[{_LOCKED}]" not in found.split():
        raise _refusal("does not lock itself down", LOCKDOWN, found[:80].strip(), f"[{_LOCKED}]")


def _set(write: Callable[[Path, str], object], path: Path, value: str) -> None:
    try:
        write(path, value)
    except OSError as error:
        raise _refusal("does not take a setting", path.name, error.strerror, value) from error


def _refusal(problem: str, check: str, got: object, expected: str) -> ImageRefused:
    return ImageRefused(f"the kernel {problem}", check=check, got=got, expected=expected)
