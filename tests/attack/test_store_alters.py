"""An owner who runs its own store answers later reads with other bytes, sealed with its own key.

Every chunk of what it serves authenticates: tags alone would let it through. Arrow data is read by
native code, so one altered offset would make a record of whatever lies in the guest's memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from sealing_world import (
    KEY,
    SealedFolder,
    content,
    forged,
    json_lines,
    root_of,
    sealed,
    sealed_folder,
)
from storage_world import serving
from training_world import source_of

from sealtrain.sealing.chunked import CHUNK_BYTES, HEADER_BYTES
from sealtrain.sealing.errors import FileTruncated, RootMismatch
from sealtrain.sealing.file import Suite, open_file, verify_ciphertext
from sealtrain.sealing.hashtree import GROUP_CHUNKS
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.store import SealedStore
from sealtrain.training.data.stream import RecordStream

pytestmark = pytest.mark.claim("C100")

GROUP = GROUP_CHUNKS * CHUNK_BYTES
FAR_AWAY = 3_000_000


def tokens(folder: Path, **options: Any) -> SealedFolder:
    source = folder / "tokens.parquet"
    rows = pa.array([[7] * 64 for _ in range(50)], pa.list_(pa.uint16()))
    parquet.write_table(pa.table({"tokens": rows}), source)
    return sealed_folder(source, folder / "tokens.sealed", **options)


def texts(folder: Path, **options: Any) -> SealedFolder:
    source = folder / "texts.jsonl"
    source.write_text(json_lines([{"text": f"row {n:03d} " * 8} for n in range(50)]))
    return sealed_folder(source, folder / "texts.sealed", **options)


def past_its_end(width: int) -> Callable[[bytearray], None]:
    """Make the last of fifty rows, each ``width`` long, run far past the batch."""

    def edit(plain: bytearray) -> None:
        place = plain.index(struct.pack("<3i", 48 * width, 49 * width, 50 * width)) + 8
        plain[place : place + 4] = struct.pack("<i", 50 * width + FAR_AWAY)

    return edit


FORMS = {"tokens": (tokens, past_its_end(64)), "texts": (texts, past_its_end(8 * 8))}


def serve_other_bytes(made: SealedFolder, edit: Callable[[bytearray], None]) -> None:
    shard = made.folder / "shard-00000.sealed"
    other = forged(shard.read_bytes(), made.key, edit)
    with shard.open("r+b") as file:  # the same file: what a store or a disk does
        file.write(other)


@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("form", list(FORMS))
def test_offsets_forged_after_the_first_read_reach_no_memory(
    tmp_path: Path, form: str, suite: Suite
) -> None:
    make, edit = FORMS[form]
    made = make(tmp_path, suite=suite)
    with made.open() as dataset:
        honest = dataset.batch(0)
        assert honest.num_rows == 50
        serve_other_bytes(made, edit)
        for _ in range(3):
            with pytest.raises(RootMismatch) as refused:
                dataset.batch(0)
        assert refused.value.exit_code == 3
        assert honest.equals(honest)


def test_other_records_are_refused_as_forged_offsets_are(tmp_path: Path) -> None:
    made = texts(tmp_path)

    def other(plain: bytearray) -> None:
        place = plain.index(b"row 001")
        plain[place : place + 7] = b"row 002"

    with made.open() as dataset:
        dataset.batch(0)
        serve_other_bytes(made, other)
        with pytest.raises(RootMismatch):
            dataset.batch(0)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_stream_stops_in_the_epoch_in_which_its_store_alters_a_batch(
    tmp_path: Path, ahead: int
) -> None:
    make, edit = FORMS["tokens"]
    made = make(tmp_path)
    with made.open() as dataset:
        stream = RecordStream([source_of(dataset)], seed=1, ahead=ahead)
        assert all(len(row["tokens"]) == 64 for row in stream.rows(0, 50))
        serve_other_bytes(made, edit)
        with pytest.raises(RootMismatch):
            list(stream.rows(50, 150))


def test_a_store_elsewhere_alters_a_batch(tmp_path: Path) -> None:
    make, edit = FORMS["texts"]
    made = make(tmp_path)
    with serving(tmp_path) as server:
        place = server.folder("texts.sealed", kept_bytes=1)
        with SealedDataset.open(place, made.key, root=made.description.root) as dataset:
            before = dataset.batch(0)
            serve_other_bytes(made, edit)
            place.size("dataset.json")
            place.read("dataset.json", 4 << 20)  # what was kept of the shard is forgotten
            with pytest.raises(RootMismatch):
                dataset.batch(0)
            assert before.num_rows == 50


def flip(place: int) -> Callable[[bytearray], None]:
    def edit(plain: bytearray) -> None:
        plain[place] ^= 1

    return edit


def test_a_file_of_which_no_descriptor_is_kept_is_exchanged(tmp_path: Path) -> None:
    plain = content(100_000, "exchanged")
    genuine = sealed(plain)
    path, other = tmp_path / "one.sealed", tmp_path / "other.sealed"
    path.write_bytes(genuine)
    other.write_bytes(forged(genuine, KEY, flip(50_000)))
    with open_file(path, KEY, root=root_of(genuine), keep_open=False) as file:
        assert file.readall() == plain
        other.replace(path)
        file.seek(0)
        with pytest.raises(RootMismatch):
            file.readall()


def test_a_checkpoint_altered_between_two_reads_is_refused(tmp_path: Path) -> None:
    store = SealedStore(tmp_path, KEY, label="checkpoint")
    state = content(3 * GROUP + 5000, "state")
    with store.write("one", {"step": 1}) as writer:
        writer.write(state)
    path = store.path("one")
    genuine = path.read_bytes()
    with store.read("one", {"step": 1}, root=store.verify("one")) as file:
        assert file.read(200_000) == state[:200_000]
        for place in (0, 190_000, GROUP + 7):  # read before, before, and never
            key = KEY.derive("store", "checkpoint")
            path.write_bytes(forged(genuine, key, flip(place)))
            buffer = bytearray(20_000)
            with pytest.raises(RootMismatch):
                file.pread_into(place - place % CHUNK_BYTES, buffer)
            assert not any(buffer)
        path.write_bytes(genuine)
        file.seek(0)
        assert file.readall() == state


class Changing:
    """A store that answers a range differently each time, the last way for ever."""

    def __init__(self, *versions: bytes) -> None:
        self.size = len(versions[0])
        self.versions = versions
        self.reads: list[tuple[int, int]] = []

    def read_into(self, offset: int, view: memoryview[Any]) -> int:
        turn = sum(1 for place, _ in self.reads if place == offset)
        self.reads.append((offset, len(view)))
        data = self.versions[min(turn, len(self.versions) - 1)][offset : offset + len(view)]
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        pass


def test_what_was_hashed_is_what_is_decrypted() -> None:
    plain = content(2 * GROUP, "twice")
    genuine = sealed(plain)
    store = Changing(genuine, forged(genuine, KEY, flip(5)))
    with open_file(store, KEY, root=root_of(genuine)) as file:
        before = len(store.reads)
        assert file.read(GROUP) == plain[:GROUP]
        assert len(store.reads) == before + 1  # one copy for the hash and for the cipher
        with pytest.raises(RootMismatch):
            file.pread_into(0, bytearray(GROUP))


def test_a_stripe_that_is_good_in_one_place_is_good_in_no_other() -> None:
    genuine = sealed(content(GROUP, "stripe"))
    stripe = 4 * (CHUNK_BYTES + 16)
    store = Changing(genuine)
    with open_file(store, KEY, root=root_of(genuine)) as file:
        file.pread_into(0, bytearray(100))
        start = file.header.size + HEADER_BYTES
        one, two = genuine[start : start + stripe], genuine[start + stripe : start + 2 * stripe]
        store.versions = (genuine[:start] + two + one + genuine[start + 2 * stripe :],)
        for place in (0, 5 * CHUNK_BYTES):
            with pytest.raises(RootMismatch):
                file.pread_into(place, bytearray(100))


@pytest.mark.parametrize("kept", [0, 1, 1_000_000])
@pytest.mark.parametrize("before", [False, True])
def test_a_read_that_comes_short_is_refused_where_it_happens(kept: int, before: bool) -> None:
    genuine = sealed(content(3 * GROUP, "short"))
    store = Changing(genuine)
    with open_file(store, KEY, root=root_of(genuine)) as file:
        if before:
            file.pread_into(GROUP, bytearray(50_000))
        store.versions = (genuine[: file.header.size + kept],)
        buffer = bytearray(b"\xee" * 60_000)
        with pytest.raises(FileTruncated):
            file.pread_into(GROUP, buffer)
        assert set(buffer) == {0xEE}


def test_an_audit_of_a_file_that_becomes_shorter_is_refused() -> None:
    """The first group's bytes are no answer to the question for the second one."""
    genuine = sealed(content(GROUP, "same") * 2)

    class Ending(Changing):
        def read_into(self, offset: int, view: memoryview[Any]) -> int:
            return 0 if len(self.reads) > 6 else super().read_into(offset, view)

    store = Ending(genuine)
    with pytest.raises(FileTruncated):
        verify_ciphertext(store)
    assert verify_ciphertext(Changing(genuine)) == root_of(genuine)
