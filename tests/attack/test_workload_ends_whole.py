"""A workload ends whole, however fast it forks: no process of it is missed between two looks."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from polling import wait_until
from variants import variants

from sealtrain.guest.sandbox.landlock import restrict
from sealtrain.guest.sandbox.seccomp import refuse_calls
from sealtrain.guest.workload.channel import ChannelEnds
from sealtrain.guest.workload.fork import WorkloadProcess, end_orphans, keep_orphans
from sealtrain.guest.workload.opener import Opener
from sealtrain.recipe.importable import Importable

pytestmark = [pytest.mark.claim("C542"), pytest.mark.long]
_COMETS = 12
_SECONDS = 15.0
_NO_FILTER, _LEFT, _BOUND, _NO_RULE = 1, 2, 3, 4
_SIGNALS_STAY_INSIDE = 6
"""Version of Landlock that judges signals."""


class Sky:
    """Memory that the forked processes write to: how they began, and when one lived last."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 4096)

    def say(self, word: int) -> None:
        self._map[:4] = struct.pack("i", word)

    def live(self) -> None:
        self._map[8:16] = struct.pack("d", time.monotonic())

    @property
    def said(self) -> int:
        return int(struct.unpack("i", self._map[:4])[0])

    @property
    def lived(self) -> float:
        return float(struct.unpack("d", self._map[8:16])[0])


def left(leave: Callable[[], object]) -> bool:
    try:
        leave()
    except PermissionError:
        return False
    return True


def hostile(sky: Sky, *, first: str) -> None:
    """Processes that fork and end at once: gone by the time a list that names them is read."""
    if not refuse_calls():
        sky.say(_NO_FILTER)
        time.sleep(_SECONDS)
    until = time.monotonic() + _SECONDS
    for _ in range(_COMETS):
        if os.fork() == 0:
            if left(os.setsid) or left(lambda: os.setpgid(0, 0)):
                sky.say(_LEFT)
            while time.monotonic() < until:
                if os.fork():
                    os._exit(0)
                sky.live()
            os._exit(0)
    if not sky.said:
        sky.say(_BOUND)
    if first == "stays":
        time.sleep(_SECONDS)
    os._exit(0)


def flown(sky: Sky) -> None:
    """Until comets fly, inside a group that they cannot leave."""
    wait_until(lambda: sky.said == _NO_FILTER or (sky.said != 0 and sky.lived > 0))
    if sky.said == _NO_FILTER:
        pytest.skip("this kernel has no filter of system calls")


def gone(sky: Sky) -> bool:
    last = sky.lived
    time.sleep(0.2)
    return sky.lived == last


@pytest.mark.parametrize("first", variants(["stays", "is gone"], each_time=["is gone"]))
def test_no_process_of_a_workload_outruns_its_end(first: str) -> None:
    sky = Sky()

    def live(_ends: Sequence[ChannelEnds]) -> None:
        hostile(sky, first=first)

    workload = WorkloadProcess(live, ranks=1, kept=())
    try:
        flown(sky)
        if first == "is gone":
            wait_until(lambda: workload.status is not None)
            assert workload.status == 0
    finally:
        workload.end()
        workload.close()
        keep_orphans(kept=False)
    assert gone(sky)
    assert sky.said == _BOUND
    assert workload.status == (0 if first == "is gone" else -9)


@pytest.mark.nightly
@pytest.mark.claim("C558")
def test_no_process_of_an_opener_outruns_its_end() -> None:
    sky = Sky()

    def live(_importable: Importable, _ends: object) -> None:
        hostile(sky, first="stays")

    keep_orphans()
    opener = Opener(ranks=1, importable=Importable(), live=live)
    try:
        flown(sky)
    finally:
        opener.end()
        end_orphans()
        opener.close()
        keep_orphans(kept=False)
    assert gone(sky)
    assert sky.said == _BOUND


@pytest.mark.nightly
def test_a_group_whose_keeper_is_gone_ends_with_its_supervisor() -> None:
    sky = Sky()

    def live(_ends: Sequence[ChannelEnds]) -> None:
        hostile(sky, first="stays")

    keep_orphans()
    keeper = os.fork()
    if keeper == 0:
        try:
            WorkloadProcess(live, ranks=1, kept=())
            time.sleep(_SECONDS)
        finally:
            os._exit(0)
    try:
        flown(sky)
    finally:
        os.kill(keeper, 9)
        os.waitpid(keeper, 0)
        end_orphans()
        keep_orphans(kept=False)
    assert gone(sky)


@pytest.mark.claim("C613")
@pytest.mark.parametrize("kind", variants(["workload", "opener"], each_time=["workload"]))
def test_a_group_whose_keeper_is_killed_ends_without_a_supervisor(kind: str) -> None:
    sky, began = Sky(), time.monotonic()

    def keep() -> None:
        if kind == "workload":
            WorkloadProcess(lambda _ends: hostile(sky, first="stays"), ranks=1, kept=())
        else:
            Opener(
                ranks=1,
                importable=Importable(),
                live=lambda _importable, _ends: hostile(sky, first="stays"),
            )

    keeper = os.fork()
    if keeper == 0:
        try:
            keep()
            time.sleep(_SECONDS)
        finally:
            os._exit(0)
    try:
        flown(sky)
    finally:
        os.kill(keeper, 9)
        os.waitpid(keeper, 0)
    wait_until(lambda: gone(sky))  # its guard runs beside it
    assert time.monotonic() < began + _SECONDS / 2
    assert sky.said == _BOUND


@pytest.mark.claim("C613")
def test_a_guard_holds_nothing_and_leaves_with_its_group() -> None:
    def live(_ends: Sequence[ChannelEnds]) -> None:
        time.sleep(_SECONDS)

    before = children()
    workload = WorkloadProcess(live, ranks=1, kept=())
    try:
        (guard,) = children() - before - {workload.pid}
        assert os.getpgid(guard) == workload.pid
        if not os.geteuid():  # only root looks into a process that is closed to debuggers
            wait_until(lambda: len(held_by(guard)) == 1)
            assert "pidfd" in held_by(guard)[0]
    finally:
        workload.end()
        workload.close()
        keep_orphans(kept=False)
    # Others' orphans may have come to this process meanwhile.
    assert children().isdisjoint({guard, workload.pid})


@pytest.mark.claim("C613")
def test_a_group_does_not_end_its_guard() -> None:
    sky = Sky()

    def live(_ends: Sequence[ChannelEnds]) -> None:
        if restrict([], connect=[]) < _SIGNALS_STAY_INSIDE:
            sky.say(_NO_RULE)
            time.sleep(_SECONDS)
        (guard,) = wait_until(others_of_this_group)
        sky.say(_LEFT if left(lambda: os.kill(guard, 9)) else _BOUND)
        time.sleep(_SECONDS)

    before = children()
    workload = WorkloadProcess(live, ranks=1, kept=())
    try:
        wait_until(lambda: sky.said)
        if sky.said == _NO_RULE:
            pytest.skip("this kernel has no Landlock that judges signals")
        assert len(children() - before) == 2
        assert sky.said == _BOUND
    finally:
        workload.end()
        workload.close()
        keep_orphans(kept=False)


def others_of_this_group() -> list[int]:
    found = []
    for pid in (int(place.name) for place in Path("/proc").glob("[0-9]*")):
        with contextlib.suppress(OSError):  # it ended
            if pid != os.getpid() and os.getpgid(pid) == os.getpgrp():
                found.append(pid)
    return found


def children() -> set[int]:
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def held_by(pid: int) -> list[str]:
    """Where a process's descriptors lead, but for those that lead nowhere."""
    held = [str(place.readlink()) for place in Path(f"/proc/{pid}/fd").iterdir()]
    return [place for place in held if place != os.devnull]
