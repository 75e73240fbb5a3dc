"""Processes of a run that plays as a command: its keeper, and the workload's ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def below(pid: int) -> Iterator[int]:
    """All processes that a process started, and those that these started."""
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = parent_in(place)
        except OSError:  # it ended
            continue
        if parent == pid:
            child = int(place.parent.name)
            yield child
            yield from below(child)


def parent_in(place: Path) -> int:
    """The parent that a process's ``stat`` names."""
    return int(place.read_text().rpartition(")")[2].split()[1])


def keeper_of(rank: int) -> int:
    """The keeper of a first rank."""
    return parent_in(Path(f"/proc/{rank}/stat"))


def of_life(pid: int) -> list[int]:
    """The workload below a command, its first rank first."""
    named = b"from sealtrain.guest.workload_life import"
    return sorted(child for child in below(pid) if named in words_of(child))


def words_of(pid: int) -> bytes:
    """What a process was started with; nothing of one that ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
