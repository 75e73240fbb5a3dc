"""Batches from a process of its own: the same records, every failure told, nothing left behind."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from polling import wait_until
from sealing_world import sealed_folder
from training_world import source_of

from sealtrain.sealing.errors import RootMismatch
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.training.data.prefetch_process import PrefetchProcess
from sealtrain.training.data.rank_part import RankPart
from sealtrain.training.data.stream import RecordStream, read_all
from sealtrain.training.errors import DecryptionLost

pytestmark = pytest.mark.long

ROWS = 40_000
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, never written
SUPPORT = Path(__file__).resolve().parents[3] / "support"


def process_of(
    dataset: SealedDataset, numbers: Iterable[int], **options: Any
) -> PrefetchProcess[int]:
    settings: dict[str, Any] = {"largest": dataset.largest_batch}
    return PrefetchProcess(iter(numbers), dataset.batch, **settings | options)


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch.column("id").to_pylist()]


def write_arrow(path: Path) -> Path:
    table = pa.table({"id": list(range(ROWS)), "text": [f"{n:05d}" * 500 for n in range(ROWS)]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("aside")
    return sealed_folder(write_arrow(place / "big.arrow"), place / "big.sealed", salt="aside")


@pytest.fixture
def dataset(folder: Any) -> Iterator[SealedDataset]:
    with folder.open() as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    assert multiprocessing.active_children() == []


def test_a_stream_gives_what_reading_in_place_gives(dataset: SealedDataset) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    assert PrefetchProcess.helps([dataset])
    ahead = RecordStream([source_of(dataset)], ["id"], seed=3)
    in_place = RecordStream([source_of(dataset)], ["id"], seed=3, ahead=0)
    stop = ROWS + 5000  # into the second epoch
    assert list(ahead.rows(7, stop)) == list(in_place.rows(7, stop))


@pytest.mark.parametrize("start", [0, 3, ROWS - 10])
def test_every_rank_gives_its_rows(dataset: SealedDataset, start: int) -> None:
    ahead = RecordStream([source_of(dataset)], ["id"], seed=3)
    in_place = RecordStream([source_of(dataset)], ["id"], seed=3, ahead=0)
    for rank in range(3):
        part = RankPart(rank=rank, world=3, step=24)
        mine = rows_of(ahead.rounds(start, start + 9000, part=part))
        assert mine == rows_of(in_place.rounds(start, start + 9000, part=part))


def test_all_records_are_read_in_their_order(dataset: SealedDataset) -> None:
    assert rows_of(read_all([source_of(dataset)], ["id"])) == list(range(ROWS))


def test_batches_come_in_the_order_of_the_iterator(dataset: SealedDataset) -> None:
    numbers = [5, 0, 3, 3, 1]
    with closing(process_of(dataset, numbers, slots=2)) as process:
        for number, batch in zip(numbers, process, strict=True):
            assert batch.equals(dataset.batch(number))


@pytest.mark.parametrize("slots", [2, 3, 20])
def test_batches_that_are_kept_keep_their_bytes(dataset: SealedDataset, slots: int) -> None:
    with closing(process_of(dataset, range(8), slots=slots)) as process:
        kept = list(process)
    for number, batch in enumerate(kept):
        assert batch.equals(dataset.batch(number))


@pytest.mark.parametrize("largest", [0, 500_000])
def test_a_batch_too_long_for_a_slot_comes_all_the_same(
    dataset: SealedDataset, largest: int
) -> None:
    with closing(process_of(dataset, range(3), largest=largest)) as process:
        for number, batch in enumerate(process):
            assert batch.equals(dataset.batch(number))


def test_the_side_that_is_ahead_finishes_a_batch(dataset: SealedDataset) -> None:
    def finish(number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(number, 1)

    slots = 8
    process = process_of(dataset, range(30), finish=finish, slots=slots)
    with closing(process):
        batch, finished = process.take()  # the process was not ahead when it began
        assert not finished
        assert batch.equals(dataset.batch(0))
        del batch
        time.sleep(0.5)  # and it is now
        taken = [process.take() for _ in range(slots)]
        assert not taken[0][1]
        assert taken[-1][1]
        for number, (batch, finished) in enumerate(taken, 1):
            whole = dataset.batch(number)
            assert batch.equals(finish(number, whole) if finished else whole)
        del batch, taken
        rest = [process.take() for _ in range(30 - slots - 1)]
        with pytest.raises(IndexError):
            process.take()
        assert len(rest) == 21


def test_batches_stay_when_the_memory_they_were_made_in_is_used_again() -> None:
    room = pa.allocate_buffer(8 * ROWS)

    def numbered(number: int) -> pa.RecordBatch:
        with memoryview(room) as given, given.cast("B") as view:
            view[:] = number.to_bytes(8, "little") * ROWS
        return pa.record_batch([pa.Array.from_buffers(pa.int64(), ROWS, [None, room])], ["id"])

    with closing(PrefetchProcess(iter(range(4)), numbered, largest=8 * ROWS, slots=3)) as process:
        answers = list(process)
    for number, answer in enumerate(answers):
        assert answer.column("id").unique().to_pylist() == [number]


def test_words_of_a_process_that_is_done_are_read(dataset: SealedDataset) -> None:
    with closing(process_of(dataset, range(4))) as process:
        batches = iter(process)
        seen = rows_of([next(batches)])  # and its slot is free again, for nobody
        (child,) = multiprocessing.active_children()
        child.join()
        assert seen + rows_of(batches) == rows_of(dataset.batch(number) for number in range(4))


def test_it_works_no_further_ahead_than_its_slots(dataset: SealedDataset) -> None:
    counter = mmap.mmap(-1, 8)  # shared with the process

    def counted(number: int) -> pa.RecordBatch:
        counter[0] += 1
        return dataset.batch(number)

    largest = dataset.largest_batch
    with closing(PrefetchProcess(iter(range(30)), counted, largest=largest, slots=4)) as process:
        batches = iter(process)
        next(batches)
        time.sleep(0.5)
        assert 1 < counter[0] <= 6
        assert sum(1 for _ in batches) == 29


def test_a_slot_is_used_again_once_its_batch_is_gone(dataset: SealedDataset) -> None:
    with closing(process_of(dataset, range(40), slots=3)) as process:
        places = set()
        for batch in process:
            places.add(batch.column("id").buffers()[1].address)
            del batch
    assert len(places) <= 3


def test_damage_is_refused_with_the_same_error(folder: Any, tmp_path: Path) -> None:
    with folder.open() as healthy:
        copy = tmp_path / "copy.sealed"
        copy.mkdir()
        for file in folder.folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        shard = copy / "shard-00000.sealed"
        damaged = bytearray(shard.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        shard.write_bytes(damaged)
        with (
            SealedDataset.open(copy, folder.key, root=healthy.root) as opened,
            closing(process_of(opened, range(opened.num_batches))) as process,
            pytest.raises(RootMismatch) as refused,
        ):
            list(process)
    assert refused.value.exit_code == 3
    assert refused.value.owner == "hospital-a"
    assert refused.value.hint


@pytest.mark.claim("C100")
def test_what_is_altered_between_two_epochs_is_refused(folder: Any, tmp_path: Path) -> None:
    copy = shutil.copytree(folder.folder, tmp_path / "copy.sealed")
    with SealedDataset.open(copy, folder.key, root=folder.description.root) as opened:
        stream = RecordStream([source_of(opened)], ["id"], seed=3)
        rows = stream.rows()
        seen = {next(rows)["id"] for _ in range(ROWS)}
        assert len(seen) == ROWS
        for shard in copy.glob("shard-*.sealed"):
            with shard.open("r+b") as file:
                for place in range(100_000, shard.stat().st_size, 1 << 19):
                    file.seek(place)
                    file.write(b"other bytes")
        with pytest.raises(RootMismatch) as refused:
            list(islice(rows, ROWS))
    assert refused.value.owner == "hospital-a"


def test_a_process_that_was_killed_is_an_error_not_a_wait(dataset: SealedDataset) -> None:
    with closing(process_of(dataset, range(40), slots=2)) as process:
        batches = iter(process)
        next(batches)
        (child,) = multiprocessing.active_children()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(10)
        with pytest.raises(DecryptionLost) as lost:
            list(batches)
    assert lost.value.got == "signal SIGKILL"


def test_the_process_ends_with_its_reader(dataset: SealedDataset) -> None:
    rows = RecordStream([source_of(dataset)], ["id"], seed=1).rows()
    for _ in range(ROWS // 2):
        next(rows)
    assert len(multiprocessing.active_children()) == int(PrefetchProcess.helps([dataset]))
    rows.close()
    assert multiprocessing.active_children() == []


def test_a_signal_to_the_whole_group_does_not_end_it(dataset: SealedDataset) -> None:
    """The reader decides when it ends: a run that is told to end still reads to its checkpoint."""
    with closing(process_of(dataset, range(40), slots=2)) as process:
        batches = iter(process)
        next(batches)
        [child] = multiprocessing.active_children()
        assert child.pid is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(child.pid, number)
        assert sum(1 for _ in batches) == 39
    assert multiprocessing.active_children() == []


def test_a_process_that_is_left_open_ends_with_its_reader(folder: Any) -> None:
    program = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(SUPPORT)!r})
        from pathlib import Path
        from sealing_world import repeatable
        from sealtrain.sealing.datakey import DataKey
        from sealtrain.sealing.opened_dataset import SealedDataset
        from sealtrain.training.data.prefetch_process import PrefetchProcess
        folder = Path({str(folder.folder)!r})
        key = DataKey.generate(repeatable("aside"))
        opened = SealedDataset.open(folder, key, root={folder.description.root!r})
        process = PrefetchProcess(iter(range(40)), opened.batch, largest=2 << 20, slots=2)
        next(iter(process))
        """
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_the_process_ends_when_its_parent_is_killed(folder: Any, tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import multiprocessing, sys, time
        sys.path.insert(0, {str(SUPPORT)!r})
        from pathlib import Path
        from sealing_world import repeatable
        from sealtrain.sealing.datakey import DataKey
        from sealtrain.sealing.opened_dataset import SealedDataset
        from sealtrain.training.data.prefetch_process import PrefetchProcess
        folder = Path({str(folder.folder)!r})
        key = DataKey.generate(repeatable("aside"))
        opened = SealedDataset.open(folder, key, root={folder.description.root!r})
        process = PrefetchProcess(iter(range(40)), opened.batch, largest=2 << 20, slots=2)
        next(iter(process))
        print(multiprocessing.active_children()[0].pid, flush=True)
        time.sleep(60)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    status = Path(f"/proc/{child}/stat")
    wait_until(
        lambda: not status.exists() or status.read_text().split(")")[1].split()[0] == "Z", 20
    )


def test_the_shared_memory_has_no_name(dataset: SealedDataset) -> None:
    before = set(SHARED_MEMORY.iterdir())
    with closing(process_of(dataset, range(40), slots=2)) as process:
        batch = next(iter(process))
        shared = [
            line
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "rw-s" in line and "/dev/zero" in line
        ]
        assert shared  # anonymous shared memory, as the kernel shows it
        assert all("(deleted)" in line for line in shared)
        assert set(SHARED_MEMORY.iterdir()) == before
        del batch
