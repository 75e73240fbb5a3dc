"""Checkpoints of one length: how it is fixed, kept and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealtrain.sealing.checkpointstore import CheckpointStore, checkpoint_length
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.sealing.store import SealedStore

KEY = DataKey(b"c" * 32)


def store_in(folder: Path) -> CheckpointStore:
    return CheckpointStore(folder, KEY, label="run")


def seal(store: CheckpointStore, number: int, content: bytes) -> str:
    with store.write(f"c{number}", {"counter": number}) as file:
        file.writelines([memoryview(content)])
        return file.finish().root


@pytest.mark.claim("C556")
@pytest.mark.parametrize("room", [0, 1, 190_000, 262_144, 1 << 24, (1 << 24) + 1, 7 << 30])
def test_a_length_has_few_values_and_room_for_more(room: int) -> None:
    length = checkpoint_length(room)
    assert length >= room + room // 64 + (64 << 10) + 8
    assert length == 1 << 18 or length < 1.0625 * (room + room // 64 + (64 << 10) + 8)
    assert length >> (length.bit_length() - 5) << (length.bit_length() - 5) == length


def test_contents_of_all_sizes_have_one_length_and_read_as_they_were(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.memory(1_200_000)
    contents = [b"", b"\0\0", b"a" * 1_200_000, b"b" * 70_000, b"0" * 1_250_000]
    roots = [seal(store, number, content) for number, content in enumerate(contents)]
    assert len({path.stat().st_size for path in tmp_path.iterdir()}) == 1
    for number, (root, content) in enumerate(zip(roots, contents, strict=True)):
        with store.read(f"c{number}", {"counter": number}, root=root) as file:
            assert (file.size, file.read()) == (len(content), content)


def test_a_run_that_continues_keeps_the_length_whatever_room_is_asked_for(tmp_path: Path) -> None:
    first = store_in(tmp_path)
    root = seal(first, 1, b"a" * 100)
    again = store_in(tmp_path)
    again.memory(50_000_000)
    again.read("c1", {"counter": 1}, root=root).close()
    seal(again, 2, b"b" * 100_000)
    assert len({path.stat().st_size for path in tmp_path.iterdir()}) == 1


@pytest.mark.claim("C556")
def test_a_content_that_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    seal(store, 1, bytes(1000))
    most = checkpoint_length(0) - 8
    seal(store, 2, bytes(most))
    with pytest.raises(CheckpointRefused):
        seal(store, 3, bytes(most + 1))
    parts = [memoryview(bytes(most)), memoryview(b"x")]
    with (
        pytest.raises(CheckpointRefused),
        store.write("c3", {"counter": 3}) as file,
    ):
        file.writelines(parts)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_checkpoint_of_another_length_or_none_is_refused(tmp_path: Path) -> None:
    with SealedStore(tmp_path, KEY, label="run").write("c1", {"counter": 1}) as file:
        file.write(b"a")
    with pytest.raises(CheckpointRefused):
        store_in(tmp_path).read("c1", {"counter": 1})
    longer = store_in(tmp_path)
    longer.memory(1 << 20)
    root = seal(longer, 2, b"a")
    shorter = store_in(tmp_path)
    seal(shorter, 3, b"a")
    with pytest.raises(CheckpointRefused):
        shorter.read("c2", {"counter": 2}, root=root)
