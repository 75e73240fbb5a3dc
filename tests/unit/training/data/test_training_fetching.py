"""Batches from a store elsewhere: several requests at a time, bounded, in order, none twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sealing_world import SealedFolder, content, json_lines, sealed_folder
from storage_world import Server, serving
from training_world import source_of

from sealtrain.sealing.errors import RootMismatch
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.training.data.fetching import AT_A_TIME, Fetching, far
from sealtrain.training.data.stream import RecordStream, read_all

ROWS = 4500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> SealedFolder:
    """About eighteen record batches in eighteen groups."""
    place = tmp_path_factory.mktemp("far")
    rows = [{"id": n, "text": content(2000, str(n)).hex()} for n in range(ROWS)]
    (place / "records.jsonl").write_text(json_lines(rows))
    return sealed_folder(place / "records.jsonl", place / "records.sealed")


@pytest.fixture
def server(folder: SealedFolder) -> Iterator[Server]:
    with serving(folder.folder.parent) as made:
        yield made


@pytest.fixture
def remote(folder: SealedFolder, server: Server) -> Iterator[SealedDataset]:
    place = server.folder("records.sealed")
    with SealedDataset.open(place, folder.key, root=folder.description.root) as dataset:
        server.delay, server.most_at_once = 0.05, 0
        yield dataset


def groups(server: Server) -> list[str]:
    """Ranges of whole groups that were asked for."""
    asked = [headers["range"] for method, _, headers in server.seen if method == "GET"]
    return [question for question in asked if _length(question) > 1 << 19]


def _length(asked: str) -> int:
    first, last = asked.removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1


def test_all_records_are_read_with_several_requests_at_a_time(
    folder: SealedFolder, server: Server, remote: SealedDataset
) -> None:
    assert far([remote])
    with folder.open() as here:
        known = [row["id"] for batch in read_all([source_of(here)]) for row in batch.to_pylist()]
    read = [row["id"] for batch in read_all([source_of(remote)]) for row in batch.to_pylist()]
    assert read == known == list(range(ROWS))
    assert AT_A_TIME // 2 < server.most_at_once <= AT_A_TIME
    # Batches share groups; who comes second waits for the answer to the first.
    assert len(groups(server)) == len(set(groups(server)))


def test_a_stream_waits_for_several_batches_together(
    folder: SealedFolder, server: Server, remote: SealedDataset
) -> None:
    with folder.open() as here:
        known = [row["id"] for row in RecordStream([source_of(here)], seed=3).rows(0, ROWS)]
    read = [row["id"] for row in RecordStream([source_of(remote)], seed=3).rows(0, ROWS)]
    assert read == known
    assert AT_A_TIME // 2 < server.most_at_once <= AT_A_TIME
    assert len(groups(server)) == len(set(groups(server)))


def test_it_asks_no_further_ahead_than_it_says(server: Server, remote: SealedDataset) -> None:
    batches = read_all([source_of(remote)])
    next(batches)
    time.sleep(0.5)
    # Two groups a batch at most, for those asked for and the one in hand.
    assert 0 < len(groups(server)) <= 2 * (AT_A_TIME + 1)
    batches.close()  # type: ignore[attr-defined]


def test_what_is_damaged_there_is_refused_here(
    folder: SealedFolder, server: Server, remote: SealedDataset, tmp_path: Path
) -> None:
    copy = tmp_path / "records.sealed"
    copy.mkdir()
    for path in folder.folder.iterdir():
        data = bytearray(path.read_bytes())
        if path.name == "shard-00000.sealed":
            data[len(data) // 2] ^= 1
        (copy / path.name).write_bytes(data)
    server.root = tmp_path
    with pytest.raises(RootMismatch):
        list(read_all([source_of(remote)]))


def test_closing_takes_questions_back() -> None:
    begun: list[int] = []

    def slowly(number: int) -> Any:
        begun.append(number)
        time.sleep(0.02)
        return number

    fetching = Fetching(slowly)
    for number in range(50):
        fetching.ask(number)
    assert fetching.answer() == 0
    fetching.close()
    fetching.close()
    assert len(begun) < 50
