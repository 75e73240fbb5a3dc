"""Sealed blobs: streaming, binding, and torch's own save and load over them."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from sealing_world import CANARY, KEY, OTHER_KEY, content, context, everything_below

from sealtrain.errors import AlreadyExists, DataInvalid, StorageFailed, UsageError
from sealtrain.sealing.errors import WrongContext, WrongKey
from sealtrain.sealing.file import open_file
from sealtrain.sealing.store import THREADS, SealedStore
from sealtrain.sealing.writer import SealedWriter

BINDING = {"run_id": "ab" * 16, "step": 50, "counter": 3}


def test_a_blob_comes_back_under_its_name_and_binding(tmp_path: Path) -> None:
    store = SealedStore(tmp_path / "s", KEY, label="checkpoint")
    with store.write("step-50/model", BINDING) as blob:
        blob.write(content(300_000))
    with store.read("step-50/model", BINDING) as blob:
        assert blob.read() == content(300_000)
    assert store.names() == ("step-50/model",)
    assert store.root("step-50/model") == store.verify("step-50/model") == blob.root
    assert store.binding("step-50/model") == BINDING
    assert store.path("step-50/model").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "binding",
    [
        {"run_id": "ac" * 16, "step": 50, "counter": 3},
        {"run_id": "ab" * 16, "step": 49, "counter": 3},
        {"run_id": "ab" * 16, "step": 50, "counter": 2},
        {"run_id": "ab" * 16, "step": "50", "counter": 3},
        {"run_id": "ab" * 16, "step": 50},
        {},
    ],
)
def test_a_blob_opens_under_no_other_binding(tmp_path: Path, binding: dict[str, str | int]) -> None:
    store = SealedStore(tmp_path, KEY, label="checkpoint")
    with store.write("a", BINDING) as blob:
        blob.write(b"x")
    with pytest.raises(WrongContext):
        store.read("a", binding)


def test_a_blob_moved_to_another_name_label_or_key_is_refused(tmp_path: Path) -> None:
    store = SealedStore(tmp_path, KEY, label="checkpoint")
    with store.write("a", BINDING) as blob:
        blob.write(b"x")
    store.path("b").write_bytes(store.path("a").read_bytes())
    with pytest.raises(WrongContext):
        store.read("b", BINDING)
    with pytest.raises(WrongKey):
        SealedStore(tmp_path, KEY, label="model").read("a", BINDING)
    with pytest.raises(WrongKey):
        SealedStore(tmp_path, OTHER_KEY, label="checkpoint").read("a", BINDING)


def test_a_failed_write_leaves_the_old_blob(tmp_path: Path) -> None:
    store = SealedStore(tmp_path, KEY, label="checkpoint")
    with store.write("a", BINDING) as blob:
        blob.write(b"old")

    def fail() -> None:
        with store.write("a", BINDING) as blob:
            blob.write(content(100_000))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert store.read("a", BINDING).read() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.sealed"]
    with store.write("a", BINDING) as blob:
        blob.write(b"new")
    assert store.read("a", BINDING).read() == b"new"
    with pytest.raises(AlreadyExists), store.write("a", BINDING, overwrite=False):
        pass
    store.remove("a")
    store.remove("a")
    assert store.names() == ()


@pytest.mark.parametrize("name", ["", "../a", "/a", "a/../b", "a//b", ".a", "a b", "a/", "ä"])
def test_a_name_stays_inside_the_store(tmp_path: Path, name: str) -> None:
    store = SealedStore(tmp_path / "s", KEY, label="x")
    with pytest.raises(UsageError), store.write(name, {}):
        pass
    assert not (tmp_path / "s").exists()


def test_an_absent_blob_is_named(tmp_path: Path) -> None:
    store = SealedStore(tmp_path, KEY, label="x")
    with pytest.raises(DataInvalid):
        store.read("a", {})
    with pytest.raises(DataInvalid):
        store.root("a")
    with pytest.raises(DataInvalid):
        store.verify("a")


@pytest.mark.parametrize("size", [0, 100_000, 1 << 20, 5_000_001, (8 << 20) + 7])
def test_several_threads_seal_what_one_seals(tmp_path: Path, size: int) -> None:
    data = content(size)
    files = []
    for threads in (1, 3):
        path = tmp_path / str(threads)
        with (
            path.open("w+b") as target,
            SealedWriter(
                target, data_key=KEY, context=context(), random=bytes, threads=threads
            ) as writer,
        ):
            writer.write(data[:1000])
            writer.write(data[1000:])
        files.append(path.read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_buffers_of_any_size_become_one_content(tmp_path: Path, threads: int) -> None:
    sizes = (7, 16_384, 0, 3 << 20, 16_377, 2_000_000, 1 << 20, 100, 5)
    parts = [content(size, str(number)) for number, size in enumerate(sizes)]
    whole = b"".join(parts)
    with (tmp_path / "blob").open("w+b") as target:
        target.write(b"not ours")
        writer = SealedWriter(target, data_key=KEY, context=context(), threads=threads)
        with writer:
            writer.write(b"first")
            writer.writelines(parts)
            assert writer.tell() == len(whole) + 5
            writer.writelines([])
            writer.write(b"last")
        assert writer.finish().size == target.tell() - 8
    (tmp_path / "sealed").write_bytes((tmp_path / "blob").read_bytes()[8:])
    assert open_file(tmp_path / "sealed", KEY).read() == b"first" + whole + b"last"


class Buffer(bytearray):
    """Bytes of which one can tell whether anybody still has them."""


def test_buffers_are_made_as_they_are_sealed(tmp_path: Path) -> None:
    known: list[weakref.ref[Buffer]] = []
    together: list[int] = []

    def made() -> Iterator[Buffer]:
        for _ in range(64):
            buffer = Buffer(1_100_000)
            known.append(weakref.ref(buffer))
            together.append(sum(ref() is not None for ref in known))
            yield buffer

    with SealedStore(tmp_path, KEY, label="x").write("a", BINDING) as blob:
        blob.writelines(made())
    assert max(together) <= 2 * THREADS + 2


def test_a_buffer_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    def made() -> Iterator[bytes]:
        yield content(3_000_000)
        raise RuntimeError

    store = SealedStore(tmp_path, KEY, label="x")
    with pytest.raises(RuntimeError), store.write("a", BINDING) as blob:
        blob.writelines(made())
    assert list(tmp_path.iterdir()) == []


def test_a_retired_blobs_space_is_written_over(tmp_path: Path) -> None:
    store = SealedStore(tmp_path, KEY, label="checkpoint")
    for name, size in (("a", 3_000_000), ("b", 10)):
        with store.write(name, BINDING) as blob:
            blob.write(content(size))
    inode = store.path("a").stat().st_ino
    store.retire("a")
    store.retire("absent")
    assert store.names() == ("b",)
    with store.write("c", BINDING) as blob:
        blob.write(content(1_000_000))
    assert store.path("c").stat().st_ino == inode
    assert store.path("c").stat().st_size < 1_010_000
    assert store.read("c", BINDING).read() == content(1_000_000)
    store.retire("c")
    store.retire("b")  # one is kept at most
    (tmp_path / ".d.sealed.0123.tmp").write_bytes(b"of a crash")
    store.sweep()
    assert list(tmp_path.iterdir()) == []


def full_after(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Let the disk be full once ``room`` bytes were written at any offset."""
    left = [room]
    write = os.pwrite

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if left[0] < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= len(data)
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)


def test_a_full_disk_leaves_the_old_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SealedStore(tmp_path, KEY, label="checkpoint")
    with store.write("a", BINDING) as blob:
        blob.write(b"old")
    full_after(monkeypatch, 3_000_000)
    with pytest.raises(StorageFailed), store.write("a", BINDING) as blob:
        blob.write(content(8_000_000))
    assert store.read("a", BINDING).read() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.sealed"]


def test_torch_saves_and_loads_without_a_byte_in_the_clear(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {
        "weight": torch.arange(500_000, dtype=torch.float32),
        "note": CANARY,
        "tensor": torch.frombuffer(bytearray((CANARY * 1000).encode()), dtype=torch.uint8),
    }
    store = SealedStore(tmp_path, KEY, label="checkpoint")
    with store.write("optimizer.pt", BINDING) as blob:
        torch.save(state, blob)
    assert CANARY.encode() not in everything_below(tmp_path)
    with store.read("optimizer.pt", BINDING) as blob:
        back = torch.load(blob, weights_only=True)
    assert torch.equal(back["weight"], state["weight"])
    assert torch.equal(back["tensor"], state["tensor"])
    assert back["note"] == CANARY
