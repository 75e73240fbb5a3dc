"""The output store: whole files, index last, and believed as little as a disk."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from storage_world import Server, serving

from sealtrain.base.canonical import canonical_json
from sealtrain.errors import SealtrainError
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.store import SealedStore
from sealtrain.storage.errors import OutputStoreInvalid, StorageUnreachable
from sealtrain.storage.outputs import OutputStore, parse_index

RUN, COMPOSE = "ab" * 16, "cd" * 32
ONE = "checkpoints/checkpoint-00000001-0000000010.sealed"
TWO = "checkpoints/checkpoint-00000002-0000000020.sealed"
KEY = DataKey(bytes(32))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "store") as running:
        running.root.mkdir()
        yield running


def blob(out: Path, part: str, name: str, content: bytes = b"state") -> None:
    with SealedStore(out / part, KEY, label=part).write(name, {}) as file:
        file.write(content)


def checkpoint(out: Path, counter: int, content: bytes = b"state") -> None:
    blob(out, "checkpoints", f"checkpoint-{counter:08d}-{counter * 10:010d}", content)
    blob(out, "journal", f"journal-{counter:08d}")


def finished(out: Path) -> None:
    blob(out, "model", "model.safetensors")
    (out / "manifest.json").write_bytes(b"{}")


def store_at(server: Server, name: str = "run") -> OutputStore:
    return OutputStore(server.folder(name), COMPOSE)


def index_at(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((server.root / "run" / "index.json").read_bytes())
    return found


def in_store(server: Server) -> set[str]:
    root = server.root / "run"
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def requests(server: Server, method: str) -> list[str]:
    return [path.removeprefix("/run/") for event, path, _ in server.seen if event == method]


@pytest.mark.claim("C733")
def test_a_checkpoint_is_in_the_store_with_all_its_shards(server: Server, tmp_path: Path) -> None:
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    for number in (0, 1):
        name = f"rank-{number:04d}/shard-00000001-0000000010-of-0002"
        blob(out, "checkpoints", name, b"piece")
    checkpoint(out, 1)
    store = store_at(server)
    left = store.leave(out, run_id=RUN, state="checkpointed", attempts=1)
    assert left.holds_checkpoint(1)
    shards = {f"checkpoints/rank-{n:04d}/shard-00000001-0000000010-of-0002.sealed" for n in (0, 1)}
    assert shards < set(left.files)
    less = {name: pieces for name, pieces in left.files.items() if name != min(shards)}
    assert not left.model_copy(update={"files": less}).holds_checkpoint(1)
    # Of an attempt with another number of ranks one shard was left: it stands for nothing.
    other = {min(shards).replace("0002.sealed", "0003.sealed"): left.files[min(shards)]}
    assert left.model_copy(update={"files": left.files | other}).holds_checkpoint(1)
    taking = store_at(server)
    taking.read()
    taking.take(fresh)
    taken = {path.relative_to(fresh).as_posix() for path in fresh.rglob("*.sealed")}
    assert taken == set(left.files)


def test_a_run_is_left_and_taken_over(server: Server, tmp_path: Path) -> None:
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    checkpoint(out, 1)
    store = store_at(server)
    assert store.read() is None
    left = store.leave(out, run_id=RUN, state="checkpointed", attempts=1)
    assert left.holds_checkpoint(1)
    assert not left.holds_checkpoint(2)
    assert requests(server, "PUT")[-1] == "index.json"
    other = store_at(server)
    assert other.read() == left
    other.take(fresh)
    assert (fresh / ONE).read_bytes() == (out / ONE).read_bytes()
    assert (fresh / "journal/journal-00000001.sealed").is_file()


def test_only_what_is_new_is_sent_and_what_went_is_deleted(server: Server, tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)
    store = store_at(server)
    store.leave(tmp_path, run_id=RUN, state="checkpointed")
    sent = len(requests(server, "PUT"))
    checkpoint(tmp_path, 2)
    (tmp_path / ONE).unlink()
    store.leave(tmp_path, run_id=RUN, state="checkpointed")
    assert requests(server, "PUT")[sent:] == [TWO, "journal/journal-00000002.sealed", "index.json"]
    assert requests(server, "DELETE") == [ONE]
    assert in_store(server) == {*index_at(server)["files"], "index.json"}


def test_a_store_that_deletes_nothing_is_good_enough(server: Server, tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)
    store = store_at(server)
    store.leave(tmp_path, run_id=RUN, state="checkpointed")
    (tmp_path / ONE).unlink()
    server.keeps = True
    handled = store.leave(tmp_path, run_id=RUN, state="waiting", code="approvals-missing")
    assert ONE not in handled.files
    assert ONE in in_store(server)
    assert index_at(server)["code"] == "approvals-missing"


def test_in_the_end_model_and_manifest_take_the_place_of_the_states(
    server: Server, tmp_path: Path
) -> None:
    checkpoint(tmp_path, 1)
    store = store_at(server)
    store.leave(tmp_path, run_id=RUN, state="checkpointed")
    finished(tmp_path)
    store.leave(tmp_path, run_id=RUN, state="completed")
    names = {"model/model.safetensors.sealed", "manifest.json"}
    assert set(index_at(server)["files"]) == names
    assert in_store(server) == {*names, "index.json"}


@pytest.mark.claim("C134")
def test_nothing_that_is_not_a_whole_sealed_file_is_sent(server: Server, tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)
    torn = (tmp_path / ONE).read_bytes()
    (tmp_path / TWO).write_bytes(torn[:-1])
    (tmp_path / "checkpoints" / "rows.jsonl").write_text('{"text": "a record"}')
    (tmp_path / "journal" / "journal-00000009.sealed").write_text('{"text": "a record"}')
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.safetensors").write_text("a model")
    store_at(server).leave(tmp_path, run_id=RUN, state="checkpointed")
    assert in_store(server) == {ONE, "journal/journal-00000001.sealed", "index.json"}


@pytest.mark.claim("C134")
def test_a_name_is_out_of_the_index_while_its_file_is_replaced(
    server: Server, tmp_path: Path
) -> None:
    checkpoint(tmp_path, 1, b"one branch")
    store = store_at(server)
    store.leave(tmp_path, run_id=RUN, state="checkpointed")
    checkpoint(tmp_path, 1, b"another")
    seen: list[bytes] = []
    real = server.folder("run")

    watched = OutputStore(real, COMPOSE)
    watched.read()
    put = real.put

    def noting(name: str, path: str) -> None:
        seen.append((server.root / "run/index.json").read_bytes() if name == ONE else b"")
        put(name, path)

    real.put = noting  # type: ignore[method-assign]
    watched.leave(tmp_path, run_id=RUN, state="checkpointed")
    (before,) = [parse_index(event) for event in seen if event]
    assert ONE not in before.files
    assert ONE in index_at(server)["files"]


@pytest.mark.claim("C134")
@pytest.mark.parametrize("name", [ONE, "journal/journal-00000001.sealed"])
@pytest.mark.parametrize("lie", ["a byte", "shorter", "missing"])
def test_what_a_store_alters_is_refused(
    name: str, lie: str, server: Server, tmp_path: Path
) -> None:
    checkpoint(tmp_path / "out", 1)
    store_at(server).leave(tmp_path / "out", run_id=RUN, state="checkpointed")
    there = server.root / "run" / name
    data = bytearray(there.read_bytes())
    data[len(data) // 2] ^= 1
    if lie == "missing":
        there.unlink()
    else:
        there.write_bytes(data if lie == "a byte" else data[:-1])
    taking = store_at(server)
    taking.read()
    with pytest.raises(OutputStoreInvalid, check=carries(check="pieces")):
        taking.take(tmp_path / "fresh")
    assert not (tmp_path / "fresh" / name).exists()


def test_the_store_of_another_document_is_refused_and_left_alone(
    server: Server, tmp_path: Path
) -> None:
    OutputStore(server.folder("run"), "ef" * 32).leave(tmp_path, run_id=None, state="waiting")
    with pytest.raises(OutputStoreInvalid, check=carries(check="compose_hash")):
        store_at(server).read()
    assert index_at(server)["compose_hash"] == "ef" * 32


@pytest.mark.claim("C136")
def test_a_guest_given_up_for_lost_writes_nothing_over_its_successors_states(
    server: Server, tmp_path: Path
) -> None:
    lost, successor = tmp_path / "lost", tmp_path / "successor"
    checkpoint(lost, 1)
    first = store_at(server)
    first.leave(lost, run_id=RUN, state="checkpointed")
    second = store_at(server)
    second.read()
    second.take(successor)
    checkpoint(successor, 2)
    second.leave(successor, run_id=RUN, state="checkpointed")
    before = in_store(server), index_at(server)
    with pytest.raises(OutputStoreInvalid, check=carries(check="index")):
        first.leave(lost, run_id=RUN, state="failed", code="lease-stale")
    assert (in_store(server), index_at(server)) == before
    second.leave(successor, run_id=RUN, state="checkpointed")


def test_an_index_that_arrived_without_an_answer_is_the_guests_own(
    server: Server, tmp_path: Path
) -> None:
    checkpoint(tmp_path, 1)
    store = store_at(server)
    folder = server.folder("run")
    put = folder.put

    def silent(name: str, path: str) -> None:
        put(name, path)
        if name == "index.json":
            raise StorageUnreachable("no answer", check="storage")

    folder.put = silent  # type: ignore[method-assign]
    store = OutputStore(folder, COMPOSE)
    with pytest.raises(StorageUnreachable):
        store.leave(tmp_path, run_id=RUN, state="checkpointed")
    folder.put = put  # type: ignore[method-assign]
    assert store.leave(tmp_path, run_id=RUN, state="checkpointed").holds_checkpoint(1)


VALID = {
    "version": 1,
    "compose_hash": COMPOSE,
    "run_id": RUN,
    "state": "checkpointed",
    "code": None,
    "attempts": 1,
    "files": {ONE: {"size": 1, "sha256": ["ab" * 32]}},
}


@pytest.mark.claim("C134")
@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"compose_hash": "cd"},
        {"run_id": None},
        {"run_id": "../../x"},
        {"state": "finished"},
        {"code": "approvals-missing"},
        {"state": "failed", "code": "A record said so"},
        {"state": "failed", "code": "a-record-said-so"},
        {"attempts": -1},
        {"files": {"../run.json": {"size": 0, "sha256": []}}},
        {"files": {"model/../../x.sealed": {"size": 0, "sha256": []}}},
        {"files": {"manifest.json": {"size": 0, "sha256": []}}},
        {"files": {ONE: {"size": 1, "sha256": []}}},
        {"files": {ONE: {"size": 1 << 50, "sha256": ["ab" * 32]}}},
        {"message": "x"},
    ],
    ids=str,
)
def test_an_index_that_breaks_the_specification_is_refused(change: dict[str, Any]) -> None:
    assert parse_index(canonical_json(VALID)).holds_checkpoint(1) is False
    with pytest.raises(OutputStoreInvalid):
        parse_index(canonical_json(VALID | change))


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b" " + canonical_json(VALID)])
def test_an_index_that_is_not_canonical_json_is_refused(data: bytes) -> None:
    with pytest.raises(OutputStoreInvalid):
        parse_index(data)


def test_a_huge_index_is_refused(server: Server) -> None:
    (server.root / "run").mkdir()
    (server.root / "run" / "index.json").write_bytes(bytes((4 << 20) + 1))
    with pytest.raises(OutputStoreInvalid):
        store_at(server).read()


def test_a_store_that_is_away_leaves_its_index_as_it_was(server: Server, tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)
    store = store_at(server)
    before = store.leave(tmp_path, run_id=RUN, state="checkpointed")
    checkpoint(tmp_path, 2)
    server.failures = 100
    with pytest.raises(StorageUnreachable):
        store.leave(tmp_path, run_id=RUN, state="checkpointed")
    assert store.index == before
    server.failures = 0
    assert store.leave(tmp_path, run_id=RUN, state="checkpointed").holds_checkpoint(2)


@pytest.mark.claim("C134")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_what_a_script_puts_in_a_files_place_is_neither_sent_nor_waited_for(
    server: Server, tmp_path: Path
) -> None:
    """A pipe would keep the guest's supervisor for good; a link, send what else the guest holds."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    checkpoint(out, 1)
    checkpoint(elsewhere, 1, b"of another run")
    for at, place in enumerate(("checkpoints/checkpoint-00000002-0000000002.sealed", TWO)):
        with contextlib.suppress(FileNotFoundError):
            (out / place).unlink()
        if at == 0:
            os.mkfifo(out / place)
        else:
            (out / place).symlink_to(elsewhere / ONE)
    store = store_at(server)
    store.leave(out, run_id=RUN, state="checkpointed")
    assert in_store(server) == {ONE, "journal/journal-00000001.sealed", "index.json"}

    (out / "checkpoints").rename(out / "kept")
    (out / "checkpoints").symlink_to(elsewhere / "checkpoints")
    store.leave(out, run_id=RUN, state="checkpointed")
    assert ONE not in index_at(server)["files"]


@pytest.mark.claim("C134")
def test_a_file_that_is_swapped_after_it_was_measured_is_not_sent(
    server: Server, tmp_path: Path
) -> None:
    """Neither by a link in its place, nor by another file."""
    out, secret = tmp_path / "out", tmp_path / "ticket.json"
    checkpoint(out, 1)
    secret.write_text('{"secret": "of the store"}')
    folder = server.folder("run")
    real, sent = folder.forget, []

    def swapping(name: str) -> None:
        if name == ONE and not sent:
            sent.append(name)
            (out / ONE).unlink()
            (out / ONE).symlink_to(secret)
        real(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "forget", swapping)
        OutputStore(folder, COMPOSE).leave(out, run_id=RUN, state="checkpointed")
    assert sent == [ONE]
    assert ONE not in index_at(server)["files"]
    kept = [path.read_bytes() for path in server.root.rglob("*") if path.is_file()]
    assert not any(b"of the store" in data for data in kept)


@pytest.mark.parametrize("place", [".checkpoint-00000001-0000000010.sealed.tmp", "checkpoints"])
def test_what_is_brought_back_is_written_through_no_link(
    server: Server, tmp_path: Path, place: str
) -> None:
    checkpoint(tmp_path / "out", 1)
    store_at(server).leave(tmp_path / "out", run_id=RUN, state="checkpointed")
    again, elsewhere = tmp_path / "again", tmp_path / "elsewhere"
    elsewhere.mkdir()
    again.mkdir()
    if place == "checkpoints":
        (again / place).symlink_to(elsewhere)
    else:
        (again / "checkpoints").mkdir()
        (elsewhere / "kept").write_text("kept")
        (again / "checkpoints" / place).symlink_to(elsewhere / "kept")
    store = OutputStore(server.folder("run"), COMPOSE)
    store.read()
    with pytest.raises(SealtrainError):
        store.take(again)
    assert [path.read_text() for path in elsewhere.iterdir()] == (
        [] if place == "checkpoints" else ["kept"]
    )
