"""Sealed blobs: streaming, binding, and torch's own save and load over them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sealing_world import CANARY, KEY, OTHER_KEY, content, everything_below

from sealtrain.base.digests import file_sha256
from sealtrain.errors import AlreadyExists, DataInvalid, UsageError, WrongContext, WrongKey
from sealtrain.sealing.store import SealedStore

BINDING = {"run_id": "ab" * 16, "step": 50, "counter": 3}


def test_a_blob_comes_back_under_its_name_and_binding(tmp_path: Path) -> None:
    store = SealedStore(tmp_path / "s", KEY, label="checkpoint")
    with store.write("step-50/model", BINDING) as blob:
        blob.write(content(300_000))
    with store.read("step-50/model", BINDING) as blob:
        assert blob.read() == content(300_000)
    assert store.names() == ("step-50/model",)
    assert store.digest("step-50/model") == file_sha256(store.path("step-50/model"))
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
        store.digest("a")


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
