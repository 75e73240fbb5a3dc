"""Sealing while training goes on: order, waiting, errors, full disks."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from training_world import RUN_ID, checkpoint_store
from variants import variants

from sealtrain.errors import LeaseStale, StorageFailed
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.saver import CheckpointSaver

if not COLLECTING:
    import torch

pytestmark = pytest.mark.long

WEIGHTS = 600_000


def state_of(step: int) -> dict[str, Any]:
    return {"model": {"weight": torch.full((WEIGHTS,), float(step))}, "step": step}


def saver_of(
    folder: Path, told: Callable[[CheckpointRef], None] = lambda ref: None, **settings: Any
) -> tuple[Any, CheckpointSaver]:
    store = checkpoint_store(folder)
    return store, CheckpointSaver(store, RUN_ID, on_sealed=told, **settings)


def weight_in(store: Any, ref: CheckpointRef) -> float:
    weight = checkpoint.load(store, RUN_ID, ref)["model"]["weight"]
    assert torch.equal(weight, torch.full_like(weight, float(weight[0])))
    return float(weight[0])


def test_a_checkpoint_holds_the_moment_it_was_taken(tmp_path: Path) -> None:
    gate, told = threading.Event(), []

    def wait_then_note(ref: CheckpointRef) -> None:
        gate.wait(20)
        told.append(ref)

    store, saver = saver_of(tmp_path, wait_then_note)
    state = state_of(5)
    saver.save(5, state)
    # Training goes on while it is sealed and told.
    state["model"]["weight"].zero_()
    saver.check()
    assert told == []
    gate.set()
    saver.flush()
    (ref,) = told
    assert saver.last == ref
    assert weight_in(store, ref) == 5.0
    saver.close()


def test_each_is_told_whole_in_order_and_chained(tmp_path: Path) -> None:
    told: list[CheckpointRef] = []

    def note(ref: CheckpointRef) -> None:
        assert store.verify(ref.name) == ref.digest
        told.append(ref)

    store, saver = saver_of(tmp_path, note, keep=3)
    for step in (2, 4, 6, 8, 10):
        saver.save(step, state_of(step))
    saver.flush()
    saver.close()
    assert [(ref.counter, ref.step) for ref in told] == [(1, 2), (2, 4), (3, 6), (4, 8), (5, 10)]
    assert [ref.previous for ref in told] == ["", *(ref.digest for ref in told[:-1])]
    assert store.names() == tuple(ref.name for ref in told[-3:])
    assert [weight_in(store, ref) for ref in told[-3:]] == [6.0, 8.0, 10.0]
    assert checkpoint.newest(store, (4, told[3].digest)) == told[4]


def test_what_leads_back_to_the_newest_known_outside_stays(tmp_path: Path) -> None:
    told: list[CheckpointRef] = []
    known = 1
    store, saver = saver_of(tmp_path, told.append, keep=2, anchored=lambda: known)
    assert saver.seconds is None
    for step in range(1, 6):
        saver.save(step, state_of(step))
    saver.flush()
    assert store.names() == tuple(ref.name for ref in told[1:])
    assert checkpoint.newest(store, (1, told[0].digest)) == told[-1]
    assert saver.seconds is not None
    known = 5
    saver.save(6, state_of(6))
    saver.flush()
    saver.close()
    assert store.names() == tuple(ref.name for ref in told[-2:])


def test_the_best_stays_until_a_better_one_comes(tmp_path: Path) -> None:
    store, saver = saver_of(tmp_path, keep=1)
    kept = []
    for step, best in ((1, True), (2, False), (3, False), (4, True), (5, False)):
        saver.save(step, state_of(step), best=best)
        saver.flush()
        kept.append([int(name[-10:]) for name in store.names()])
    assert kept == [[1], [1, 2], [1, 3], [4], [4, 5]]
    assert saver.best is not None
    assert weight_in(store, saver.best) == 4.0
    saver.close()


def test_a_run_goes_on_from_the_last_one(tmp_path: Path) -> None:
    _, saver = saver_of(tmp_path)
    saver.save(1, state_of(1))
    saver.flush()
    saver.close()
    _, again = saver_of(tmp_path, last=saver.last)
    again.save(2, state_of(2))
    again.flush()
    again.close()
    assert again.last is not None
    assert saver.last is not None
    assert (again.last.counter, again.last.previous) == (2, saver.last.digest)


def refuse(ref: CheckpointRef) -> None:
    raise LeaseStale("the lease on the keys has ended")


def test_what_telling_raises_comes_up_and_nothing_follows(tmp_path: Path) -> None:
    store, saver = saver_of(tmp_path, refuse)
    saver.save(1, state_of(1))
    with pytest.raises(LeaseStale):
        saver.save(2, state_of(2))
    assert [name[-1] for name in store.names()] == ["1"]
    saver.close()


def test_check_raises_once_the_thread_is_done(tmp_path: Path) -> None:
    _, saver = saver_of(tmp_path, refuse)
    saver.save(1, state_of(1))
    with pytest.raises(LeaseStale):
        check_until_it_raises(saver)
    saver.close()


def check_until_it_raises(saver: CheckpointSaver) -> None:
    while True:
        saver.check()


def test_a_state_that_is_no_plain_data_stops_at_once(tmp_path: Path) -> None:
    store, saver = saver_of(tmp_path)
    with pytest.raises(CheckpointRefused):
        saver.save(1, {"model": object()})
    assert store.names() == ()
    saver.close()


def test_staging_memory_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, saver = saver_of(tmp_path)
    taken: list[Any] = []
    empty = torch.empty

    def noted(*size: Any, **how: Any) -> torch.Tensor:
        taken.append(size)
        return empty(*size, **how)

    for step in range(1, 5):
        state = state_of(step)
        with monkeypatch.context() as patched:
            patched.setattr(torch, "empty", noted)
            saver.save(step, state)
            saver.flush()
    assert len(taken) == 1
    saver.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB: room for four of the checkpoints here and a bit."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = tmp_path / "disk"
    folder.mkdir()
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=12m"):
        pytest.skip(f"no right to mount: {os.strerror(ctypes.get_errno())}")
    yield folder
    libc.umount2(str(folder).encode(), 2)


def test_a_full_disk_costs_older_checkpoints_first(small_disk: Path) -> None:
    store, saver = saver_of(small_disk, keep=9)
    for step in range(1, 9):
        saver.save(step, state_of(step))
    saver.flush()
    steps = [int(name[-10:]) for name in store.names()]
    assert steps[-1] == 8
    assert 1 < len(steps) < 5
    assert saver.last is not None
    assert weight_in(store, saver.last) == 8.0
    saver.close()


def test_a_disk_that_stays_full_stops_the_run_with_the_newest_whole(small_disk: Path) -> None:
    store, saver = saver_of(small_disk)
    for step in (1, 2, 3):
        saver.save(step, state_of(step))
    saver.flush()
    last = saver.last
    (small_disk / "others").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096))
    saver.save(4, {"model": {"weight": torch.zeros(3_000_000)}})
    with pytest.raises(StorageFailed, match="checkpoint-00000004") as failure:
        saver.flush()
    assert failure.value.exit_code == 4
    assert saver.last == last
    assert checkpoint.newest(store, None) == last
    assert [path.suffix for path in small_disk.iterdir() if path.name != "others"] == [".sealed"]
    # Room comes back and so does the run.
    (small_disk / "others").unlink()
    saver.save(4, state_of(4))
    saver.flush()
    assert checkpoint.newest(store, None) == saver.last != last
    saver.close()


LIMITED = """
import resource, signal, sys
from pathlib import Path
import torch
from training_world import RUN_ID, checkpoint_store
from sealtrain.errors import StorageFailed
from sealtrain.training.checkpoints import checkpoint
store = checkpoint_store(Path(sys.argv[1]))
first = checkpoint.save(store, RUN_ID, 1, 1, {"a": torch.zeros(9)})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    checkpoint.save(store, RUN_ID, 2, 2, {"a": torch.zeros(2_000_000)}, previous=first.digest)
except StorageFailed as failure:
    assert failure.got == "File too large", failure.got
    assert checkpoint.newest(store, None) == first
    print("kept", len(list(Path(sys.argv[1]).iterdir())))
"""


@pytest.mark.parametrize("limit", variants([1000, 3_000_001, 8_000_100], each_time=[8_000_100]))
def test_a_limit_the_system_sets_leaves_the_one_before(tmp_path: Path, limit: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIMITED, str(tmp_path), str(limit)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("kept 1\n", "")


@pytest.mark.parametrize("at", [0, 3, 9])
def test_any_write_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Whichever write to the file fails, also the retry's, the newest whole one is found."""
    store, saver = saver_of(tmp_path)
    state = {"model": {"weight": torch.rand(3_000_000)}}
    saver.save(1, state)
    saver.flush()
    first, write, calls = saver.last, os.pwrite, iter(range(1000))

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if next(calls) >= at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    saver.save(2, state)
    with pytest.raises(StorageFailed):
        saver.flush()
    assert next(calls) > at
    assert checkpoint.newest(store, None) == first
    monkeypatch.undo()
    saver.save(2, state)
    saver.flush()
    saver.close()
    store.sweep()
    assert checkpoint.newest(store, None) == saver.last
    assert {path.suffix for path in tmp_path.iterdir()} == {".sealed"}
