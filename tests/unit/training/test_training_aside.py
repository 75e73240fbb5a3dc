"""Decryption in a process of its own: the same records, every failure told, nothing left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sealing_world import sealed_folder
from training_world import source_of

from sealtrain.errors import ChunkDamaged, DecryptionLost, RootMismatch
from sealtrain.sealing.dataset import SealedDataset
from sealtrain.training.loaders.aside import Aside
from sealtrain.training.loaders.stream import RecordStream

ROWS = 40_000
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, never written
SUPPORT = Path(__file__).resolve().parents[2] / "support"


def process_of(dataset: SealedDataset, *, slots: int, largest: int = 16 << 20) -> Aside[int]:
    return Aside(dataset.batch, slots=slots, largest=largest)


def read(process: Aside[int], number: int) -> pa.RecordBatch:
    process.ask(number)
    return process.answer()


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


def test_it_gives_what_reading_in_place_gives(dataset: SealedDataset) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    assert Aside.helps([dataset])
    aside = RecordStream([source_of(dataset)], ["id"], seed=3)
    in_place = RecordStream([source_of(dataset)], ["id"], seed=3, ahead=0)
    stop = ROWS + 5000  # into the second epoch
    assert [row["id"] for row in aside.rows(7, stop)] == [
        row["id"] for row in in_place.rows(7, stop)
    ]


def test_answers_come_in_the_order_of_questions(dataset: SealedDataset) -> None:
    numbers = [5, 0, 3, 3, 1]
    with closing(process_of(dataset, slots=2)) as process:
        for number in numbers:
            process.ask(number)
        for number in numbers:
            assert process.answer().equals(dataset.batch(number))


def test_batches_that_are_kept_keep_their_bytes(dataset: SealedDataset) -> None:
    kept = []
    with closing(process_of(dataset, slots=3)) as process:
        for number in range(8):
            kept.append(read(process, number))
    for number, batch in enumerate(kept):
        assert batch.equals(dataset.batch(number))


def test_a_batch_too_long_for_a_slot_comes_all_the_same(dataset: SealedDataset) -> None:
    with closing(process_of(dataset, slots=1, largest=1)) as process:
        for number in range(3):
            assert read(process, number).equals(dataset.batch(number))


def test_answers_stay_when_the_memory_they_were_made_in_is_used_again() -> None:
    room = pa.allocate_buffer(8 * ROWS)

    def prepare(number: int) -> pa.RecordBatch:
        with memoryview(room) as given, given.cast("B") as view:
            view[:] = number.to_bytes(8, "little") * ROWS
        return pa.record_batch([pa.Array.from_buffers(pa.int64(), ROWS, [None, room])], ["id"])

    with closing(Aside(prepare, slots=2, largest=1 << 20)) as process:
        for number in range(4):  # two of them find no slot
            process.ask(number)
        answers = [process.answer() for _ in range(4)]
    for number, answer in enumerate(answers):
        assert answer.column("id").unique().to_pylist() == [number]


def test_batches_that_find_no_slot_are_read_too(
    dataset: SealedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    ask = Aside.ask

    def counted(process: Aside[Any], question: Any) -> None:
        found.append(bool(process._free))
        ask(process, question)

    monkeypatch.setattr(Aside, "ask", counted)
    monkeypatch.setattr("sealtrain.training.loaders.stream.AHEAD_BATCHES", 1)
    # A round of the only lane goes through several batches, all held until it is put together.
    aside = RecordStream([source_of(dataset)], ["id"], seed=3, lanes=1)
    in_place = RecordStream([source_of(dataset)], ["id"], seed=3, lanes=1, ahead=0)
    assert list(aside.rows(0, 9000)) == list(in_place.rows(0, 9000))
    assert set(found) == {True, False} if Aside.helps([dataset]) else not found


def test_a_slot_is_used_again_once_its_batch_is_gone(dataset: SealedDataset) -> None:
    with closing(process_of(dataset, slots=1)) as process:
        places = set()
        for number in range(4):
            batch = read(process, number)
            places.add(batch.column("id").buffers()[1].address // (16 << 20))
            del batch
        assert len(places) == 1


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
            closing(process_of(opened, slots=4)) as process,
            pytest.raises((RootMismatch, ChunkDamaged)) as refused,
        ):
            [read(process, number) for number in range(len(opened.batch_rows))]
    assert refused.value.exit_code == 3
    assert refused.value.hint


def test_a_process_that_was_killed_is_an_error_not_a_wait(dataset: SealedDataset) -> None:
    with closing(process_of(dataset, slots=2)) as process:
        read(process, 0)
        (child,) = multiprocessing.active_children()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(10)
        with pytest.raises(DecryptionLost) as lost:
            read(process, 1)
    assert lost.value.got == "signal SIGKILL"


def test_the_process_ends_with_its_reader(dataset: SealedDataset) -> None:
    rows = RecordStream([source_of(dataset)], ["id"], seed=1).rows()
    for _ in range(ROWS // 2):
        next(rows)
    assert len(multiprocessing.active_children()) == int(Aside.helps([dataset]))
    rows.close()
    assert multiprocessing.active_children() == []


def test_the_process_ends_when_its_parent_is_killed(folder: Any, tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import multiprocessing, sys, time
        sys.path.insert(0, {str(SUPPORT)!r})
        from pathlib import Path
        from sealing_world import repeatable
        from sealtrain.sealing.datakey import DataKey
        from sealtrain.sealing.dataset import SealedDataset
        from sealtrain.training.loaders.aside import Aside
        folder = Path({str(folder.folder)!r})
        key = DataKey.generate(repeatable("aside"))
        opened = SealedDataset.open(folder, key, root={folder.description.root!r})
        process = Aside(opened.batch, slots=2, largest=16 << 20)
        process.ask(0)
        process.answer()
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
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        status = Path(f"/proc/{child}/stat")
        if not status.exists() or status.read_text().split(")")[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the process outlived its parent")


def test_the_shared_memory_has_no_name(dataset: SealedDataset) -> None:
    before = set(SHARED_MEMORY.iterdir())
    with closing(process_of(dataset, slots=2)) as process:
        batch = read(process, 0)
        shared = [
            line
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "rw-s" in line and "/dev/zero" in line
        ]
        assert shared  # anonymous shared memory, as the kernel shows it
        assert all("(deleted)" in line for line in shared)
        assert set(SHARED_MEMORY.iterdir()) == before
        del batch
