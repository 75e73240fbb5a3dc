"""Publishing: what arrives is what was sealed, once, and visible only when complete."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from carrying import carries
from sealing_world import SealedFolder, all_rows, json_lines, sealed_folder, signed
from storage_world import Server, serving

from sealtrain.errors import AlreadyExists
from sealtrain.sealing.errors import NotSealed, RootMismatch
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.storage.errors import StorageUnreachable
from sealtrain.storage.publish import publish

ROWS = [{"text": f"{n} " + "word " * 180, "n": n} for n in range(4000)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SealedFolder:
    folder = tmp_path_factory.mktemp("sealed")
    source = folder / "rows.jsonl"
    source.write_text(json_lines(ROWS))
    return sealed_folder(source, folder / "a.sealed", shard_bytes=1 << 20, sign=signed)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "store") as running:
        yield running


def sent(server: Server) -> list[str]:
    return [path.rsplit("/", 1)[-1] for method, path, _ in server.seen if method == "PUT"]


def test_what_is_published_is_what_was_sealed(server: Server, made: SealedFolder) -> None:
    told: list[int] = []
    done = publish(made.folder, server.folder("p/a.sealed"), read_back=True, progress=told.append)
    assert done.files == done.sent == len(list(made.folder.iterdir()))
    assert sum(told) == done.size
    assert sent(server)[-1] == "dataset.json"
    for path in made.folder.iterdir():
        assert (server.root / "p/a.sealed" / path.name).read_bytes() == path.read_bytes()
    folder = server.folder("p/a.sealed")
    with SealedDataset.open(folder, made.key, root=made.description.root) as dataset:
        assert all_rows(dataset) == ROWS


@pytest.mark.claim("C33")
def test_interrupted_it_sends_only_what_is_missing(server: Server, made: SealedFolder) -> None:
    there = server.root / "a.sealed"
    there.mkdir(parents=True)
    whole, torn = sorted(made.folder.glob("shard-*"))
    (there / whole.name).write_bytes(whole.read_bytes())
    (there / torn.name).write_bytes(torn.read_bytes()[:1000])
    done = publish(made.folder, server.folder("a.sealed"))
    assert sorted(sent(server)) == sorted([torn.name, "index.sealed", "dataset.json"])
    assert done.sent == 3
    assert publish(made.folder, server.folder("a.sealed")).sent == 0


@pytest.mark.claim("C33")
def test_a_store_that_gives_up_leaves_no_dataset(server: Server, made: SealedFolder) -> None:
    server.failures = 10_000
    with pytest.raises(StorageUnreachable):
        publish(made.folder, server.folder("a.sealed"))
    server.failures = 0
    assert not (server.root / "a.sealed" / "dataset.json").exists()
    assert publish(made.folder, server.folder("a.sealed")).sent == 4


def test_failures_that_pass_are_waited_for(server: Server, made: SealedFolder) -> None:
    server.failures = 3
    publish(made.folder, server.folder("a.sealed"), read_back=True)


def test_an_audit_finds_what_the_store_altered(server: Server, made: SealedFolder) -> None:
    publish(made.folder, server.folder("a.sealed"))
    shard = server.root / "a.sealed" / "shard-00000.sealed"
    data = bytearray(shard.read_bytes())
    data[500_000] ^= 1
    shard.write_bytes(data)
    assert publish(made.folder, server.folder("a.sealed")).sent == 0
    with pytest.raises(RootMismatch):
        publish(made.folder, server.folder("a.sealed"), read_back=True)


def test_another_dataset_is_never_overwritten(
    server: Server, made: SealedFolder, tmp_path: Path
) -> None:
    publish(made.folder, server.folder("a.sealed"))
    source = tmp_path / "rows.jsonl"
    source.write_text(json_lines(ROWS[:10]))
    other = sealed_folder(source, tmp_path / "b.sealed", salt="other", sign=signed)
    before = len(server.seen)
    with pytest.raises(AlreadyExists, check=carries(check="publish")):
        publish(other.folder, server.folder("a.sealed"))
    assert not any(method == "PUT" for method, _, _ in server.seen[before:])


def test_a_damaged_or_incomplete_folder_is_not_sent(
    server: Server, made: SealedFolder, tmp_path: Path
) -> None:
    with pytest.raises(NotSealed):
        publish(tmp_path, server.folder("a.sealed"))
    source = tmp_path / "rows.jsonl"
    source.write_text(json_lines(ROWS[:10]))
    other = sealed_folder(source, tmp_path / "b.sealed", sign=signed)
    shard = other.folder / "shard-00000.sealed"
    data = bytearray(shard.read_bytes())
    data[900] ^= 1
    shard.write_bytes(data)
    with pytest.raises(RootMismatch):
        publish(other.folder, server.folder("a.sealed"))
    assert sent(server) == []


def test_a_token_is_sent_and_never_said(server: Server, made: SealedFolder) -> None:
    server.denies = True
    with pytest.raises(StorageUnreachable) as caught:
        publish(made.folder, server.folder("a.sealed", token="hidden-token"))
    assert any(h.get("authorization") == "Bearer hidden-token" for _, _, h in server.seen)
    assert "hidden-token" not in str(caught.value.to_dict())


@pytest.mark.claim("C102")
def test_a_dataset_json_too_long_to_be_one_is_not_written_over(
    server: Server, made: SealedFolder
) -> None:
    there = server.root / "a.sealed"
    there.mkdir(parents=True)
    (there / "dataset.json").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(AlreadyExists):
        publish(made.folder, server.folder("a.sealed"))
    assert not sent(server)
    assert (there / "dataset.json").stat().st_size == (1 << 20) + 1


@pytest.mark.claim("C110")
def test_only_files_that_the_owner_signed_are_sent(
    server: Server, made: SealedFolder, tmp_path: Path
) -> None:
    folder = tmp_path / "a.sealed"
    shutil.copytree(made.folder, folder)
    shard = folder / "shard-00000.sealed"
    for name in ("extra.sealed", "commitments.sealed", "shard-00009.sealed"):
        shutil.copy(shard, folder / name)
    publish(folder, server.folder("a.sealed"))
    assert sorted(sent(server)) == sorted(path.name for path in made.folder.iterdir())


def test_commitments_are_sent_with_the_rest(server: Server, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json_lines(ROWS[:10]))
    folder = sealed_folder(source, tmp_path / "c.sealed", sign=signed, commitments=True).folder
    publish(folder, server.folder("c.sealed"))
    assert "commitments.sealed" in sent(server)


@pytest.mark.claim("C110")
def test_a_shard_of_another_sealing_is_not_sent(
    server: Server, made: SealedFolder, tmp_path: Path
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json_lines(ROWS))
    other = sealed_folder(
        source, tmp_path / "b.sealed", salt="other", shard_bytes=1 << 20, sign=signed
    )
    shutil.copy(made.folder / "shard-00000.sealed", other.folder / "shard-00000.sealed")
    with pytest.raises(RootMismatch):
        publish(other.folder, server.folder("b.sealed"))
    assert sent(server) == []
    (other.folder / "shard-00001.sealed").unlink()
    with pytest.raises(NotSealed):
        publish(other.folder, server.folder("b.sealed"))
