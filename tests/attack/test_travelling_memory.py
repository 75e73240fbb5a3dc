"""Holders of a travelling run that are started again, on a disk that somebody else writes to."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from collecting import COLLECTING

from sealtrain.consortium.receipts import Anchor
from sealtrain.errors import AlreadyExists, DataInvalid, LimitExceeded, StorageFailed
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain_together.travelling.holder_memory import GivenFile, GivenTrips, GivingBounds

if not COLLECTING:
    from travel_world import KEYS, RUN_ID

pytestmark = pytest.mark.claim("C282")
BOUNDS = GivingBounds(max_bytes=100, timeout=1.0, patience=1.0, forgives=3)
EVERY = 4

if not COLLECTING:

    class Disk:
        """A holder's folder and the brokers that anchor it; each process reads both anew."""

        def __init__(self, folder: Path) -> None:
            self.path = folder / "given.jsonl"
            self.anchors: list[Anchor] = []
            self._open: GivenFile | None = None

        def close(self) -> None:
            if self._open is not None:
                self._open.close()

        def file(self, holder: str = "clinic-a", run_id: str = RUN_ID) -> GivenFile:
            return GivenFile(self.path, KEYS[holder], run_id, every=EVERY, anchor=self._anchor)

        def process(self) -> GivenTrips:
            """A holder that is started again; the process before it is dead."""
            self.close()
            self._open = file = self.file()
            before = file.read(self.anchors[-1] if self.anchors else None)
            file.begin()
            return GivenTrips(RUN_ID, BOUNDS, remember=file.keep, before=before)

        def _anchor(self, counter: int, trip: int, digest: str, *, wait: bool) -> None:
            assert wait == (trip == 0)
            assert not self.anchors or counter > self.anchors[-1].counter
            self.anchors.append(Anchor(counter=counter, digest=digest))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with closing(Disk(tmp_path)) as disk:
        yield disk


def give(trips: GivenTrips, first: int, end: int) -> None:
    for trip in range(first, end):
        trips.begins(RUN_ID, trip, 10 * trip, 10 * (trip + 1))
        trips.wrote(trip, 10)


def test_a_holder_that_is_started_again_knows_what_it_gave(disk: Disk) -> None:
    give(disk.process(), 0, 6)
    again = disk.process()
    assert again.sizes == (10,) * 6
    with pytest.raises(DataInvalid):
        give(again, 5, 6)
    with pytest.raises(CheckpointRefused, match="older state"):
        again.goes_on(RUN_ID, 2)
    again.goes_on(RUN_ID, 4)
    give(disk.process(), 6, 7)  # the forgiveness came to nothing: nothing was given after it
    disk.process().goes_on(RUN_ID, 4)
    give(again := disk.process(), 7, 10)
    assert sum(again.sizes) == BOUNDS.max_bytes
    with pytest.raises(LimitExceeded):
        give(disk.process(), 10, 11)


@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "started again"])
def test_no_number_of_takeovers_leads_further_back_than_one(restarts: bool, disk: Disk) -> None:
    trips = disk.process()
    give(trips, 0, 9)
    for trip in (6, 5, 3, 0, 6):
        trips = disk.process() if restarts else trips
        if trip == 6:
            trips.goes_on(RUN_ID, trip)
            continue
        with pytest.raises(CheckpointRefused) as caught:
            trips.goes_on(RUN_ID, trip)
        assert caught.value.check == "trips"


def test_what_was_forgiven_stays_forgiven_and_counts_as_bytes_that_left(disk: Disk) -> None:
    trips = disk.process()
    give(trips, 0, 6)
    trips.goes_on(RUN_ID, 4)
    trips.begins(RUN_ID, 5, 60, 100)
    again = disk.process()
    assert again.sizes == (10, 10, 10, 10, 40)
    # 100 different bytes are gone, though only 80 count.
    with pytest.raises(LimitExceeded):
        again.begins(RUN_ID, 6, 100, 110)
    again.begins(RUN_ID, 6, 90, 100)


def test_a_folder_that_was_put_back_or_emptied_is_refused(disk: Disk) -> None:
    give(disk.process(), 0, 1)
    old = disk.path.read_bytes()
    give(disk.process(), 1, 7)
    whole = disk.path.read_bytes()
    first, *rest = whole.splitlines(keepends=True)
    for there in (
        old,
        b"",
        b"".join(rest),
        first + b"".join(rest[1:]),
        whole.replace(b'"end":20', b'"end":21'),
        whole[:-1].replace(b"\n", b"\n\n", 1),
        b"\x00" * len(whole),
    ):
        disk.path.write_bytes(there)
        with pytest.raises(CheckpointRefused) as caught:
            disk.process()
        assert caught.value.check == "memory"
    disk.path.unlink()
    with pytest.raises(CheckpointRefused):
        disk.process()
    disk.close()
    disk.path.write_bytes(whole)
    assert len(disk.process().sizes) == 7


def test_the_brokers_anchor_the_first_write_and_soon_the_others(disk: Disk) -> None:
    give(disk.process(), 0, 7)
    assert [anchor.counter for anchor in disk.anchors] == [1, 5]
    disk.process()  # what an earlier process did not have anchored, too
    assert disk.anchors[-1].counter == 9


@pytest.mark.parametrize("when", ["it begins", "it gives"])
def test_nothing_leaves_after_the_brokers_refused_to_anchor(when: str, tmp_path: Path) -> None:
    def anchor(counter: int, _trip: int, _digest: str, *, wait: bool) -> None:
        assert wait == (counter == 1)
        if (when == "it begins") == wait:
            raise CheckpointRefused("another guest went on", check="checkpoint")

    file = GivenFile(tmp_path / "given.jsonl", KEYS["clinic-a"], RUN_ID, every=2, anchor=anchor)
    trips = GivenTrips(RUN_ID, BOUNDS, remember=file.keep)

    def process() -> None:
        file.read(None)
        file.begin()
        give(trips, 0, 3)

    with closing(file), pytest.raises(CheckpointRefused, match="another guest"):
        process()
    assert trips.sizes == (() if when == "it begins" else (10,))


def test_two_processes_of_a_holder_do_not_write_one_file(disk: Disk) -> None:
    give(disk.process(), 0, 3)
    other = disk.file()
    with closing(other), pytest.raises(AlreadyExists):
        other.read(disk.anchors[-1])
    give(disk.process(), 3, 4)


def test_a_write_that_a_death_cut_off_does_not_count_once_its_bytes_are_asked_for_again(
    disk: Disk,
) -> None:
    trips = disk.process()
    give(trips, 0, 5)
    trips.begins(RUN_ID, 5, 50, 60)
    again = disk.process()
    assert again.sizes == (10,) * 6
    for trip in range(6, 11):
        again.begins(RUN_ID, trip, 10 * trip - 10, 10 * trip)
        again.wrote(trip, 10)
    assert sum(again.sizes) == BOUNDS.max_bytes
    later = disk.process()
    assert sum(later.sizes) == BOUNDS.max_bytes
    with pytest.raises(LimitExceeded):  # different bytes stay bounded, whatever is asked for again
        later.begins(RUN_ID, 11, 95, 105)


def test_a_full_disk_is_told_as_such(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    trips = disk.process()

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFailed):
        give(trips, 0, 9)


@pytest.mark.parametrize(("holder", "run_id"), [("clinic-b", None), ("clinic-a", "00" * 16)])
def test_a_file_of_another_holder_or_run_says_nothing(
    holder: str, run_id: str | None, disk: Disk
) -> None:
    give(disk.process(), 0, 3)
    disk.close()
    there = disk.path.read_bytes()
    with closing(disk.file(holder, run_id or RUN_ID)) as file:
        assert file.read(None) == []
    disk.path.write_bytes(there)
    with closing(disk.file(holder, run_id or RUN_ID)) as file, pytest.raises(CheckpointRefused):
        file.read(disk.anchors[-1])


def test_a_holder_serves_one_run(disk: Disk) -> None:
    trips = disk.process()
    for asked in (lambda: trips.goes_on("00" * 16, 0),
                  lambda: trips.begins("00" * 16, 0, 0, 10)):  # fmt: skip
        with pytest.raises(DataInvalid) as caught:
            asked()
        assert caught.value.check == "run"
    assert len(disk.path.read_bytes().splitlines()) == 1


def test_a_line_that_a_crash_tore_costs_only_itself(disk: Disk) -> None:
    give(disk.process(), 0, 4)
    with disk.path.open("ab") as file:
        file.write(b'{"end":50,"ma')
    again = disk.process()
    assert len(again.sizes) == 4
    give(again, 4, 6)
    assert len(disk.process().sizes) == 6
