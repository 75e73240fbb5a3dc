"""Whoever stores a sealed dataset swaps, drops, rolls back or edits its files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sealing_world import (
    OTHER_KEY,
    SealedFolder,
    all_rows,
    json_lines,
    sealed_folder,
    stanza,
)

from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.sealing.description import ShardInfo, dataset_root
from sealtrain.sealing.errors import (
    FileTruncated,
    HeaderDamaged,
    NotSealed,
    RecordInvalid,
    RootMismatch,
    SealRefused,
    WrongKey,
)
from sealtrain.sealing.export import export
from sealtrain.sealing.header import FileKeys, encode_header
from sealtrain.sealing.index import Index
from sealtrain.sealing.opened_dataset import SealedDataset, read_index
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.sealing.writer import SealedWriter

pytestmark = pytest.mark.claim("C3")

ROWS = [{"id": number, "text": f"row {number} " * 30} for number in range(12_000)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SealedFolder]:
    folder = tmp_path_factory.mktemp("world")
    (folder / "a.jsonl").write_text(json_lines(ROWS))
    (folder / "b.jsonl").write_text(json_lines([row | {"id": 0} for row in ROWS]))

    def make(out: str, source: str, salt: str) -> SealedFolder:
        return sealed_folder(folder / source, folder / out, salt=salt, shard_bytes=1 << 20)

    # "old" and "new" share data key and dataset id: an earlier sealing of the same dataset.
    return {
        "new": make("new.sealed", "a.jsonl", "one"),
        "old": make("old.sealed", "b.jsonl", "one"),
        "other": make("other.sealed", "a.jsonl", "two"),
    }


@pytest.fixture
def victim(world: dict[str, SealedFolder], tmp_path: Path) -> SealedFolder:
    folder = tmp_path / "victim.sealed"
    shutil.copytree(world["new"].folder, folder)
    return replace(world["new"], folder=folder)


def read_all(sealed: SealedFolder) -> list[dict[str, object]]:
    with sealed.open() as dataset:
        return all_rows(dataset)


def test_the_untouched_copy_opens(victim: SealedFolder) -> None:
    assert read_all(victim) == ROWS


def test_an_older_sealing_of_the_same_dataset_is_refused(
    victim: SealedFolder, world: dict[str, SealedFolder]
) -> None:
    assert victim.key == world["old"].key
    assert victim.description.dataset_id == world["old"].description.dataset_id
    for name in ("index.sealed", "shard-00001.sealed"):
        kept = (victim.folder / name).read_bytes()
        shutil.copy(world["old"].folder / name, victim.folder / name)
        with pytest.raises((RootMismatch, FileTruncated)):
            read_all(victim)
        (victim.folder / name).write_bytes(kept)
    with pytest.raises(RootMismatch):
        SealedDataset.open(world["old"].folder, victim.key, root=victim.description.root)


def test_shards_of_the_same_size_do_not_change_places(victim: SealedFolder) -> None:
    names = [shard.name for shard in victim.description.shards]
    one, two = victim.folder / names[0], victim.folder / names[1]
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    with pytest.raises(SealRefused):
        read_all(victim)


def test_files_of_another_dataset_are_refused(
    victim: SealedFolder, world: dict[str, SealedFolder]
) -> None:
    for name in ("index.sealed", "shard-00000.sealed"):
        kept = (victim.folder / name).read_bytes()
        shutil.copy(world["other"].folder / name, victim.folder / name)
        with pytest.raises((WrongKey, FileTruncated)):
            read_all(victim)
        (victim.folder / name).write_bytes(kept)


@pytest.mark.parametrize("name", ["shard-00001.sealed", "index.sealed"])
def test_a_missing_or_cut_file_is_refused(victim: SealedFolder, name: str) -> None:
    path = victim.folder / name
    data = path.read_bytes()
    for length in (len(data) - 1, len(data) // 2, 100, 0):
        path.write_bytes(data[:length])
        with pytest.raises((FileTruncated, NotSealed)):
            read_all(victim)
    path.unlink()
    with pytest.raises((FileTruncated, DataInvalid)):
        read_all(victim)


@pytest.mark.parametrize("name", ["shard-00000.sealed", "index.sealed"])
def test_a_changed_byte_anywhere_in_a_folder_is_refused(victim: SealedFolder, name: str) -> None:
    path = victim.folder / name
    data = path.read_bytes()
    step = max(1, len(data) // 60)
    for place in [*range(0, 700, 29), *range(700, len(data), step), len(data) - 1]:
        changed = bytearray(data)
        changed[place] ^= 0x04
        path.write_bytes(changed)
        with pytest.raises(SealtrainError):
            read_all(victim)
        with pytest.raises(SealtrainError), victim.open() as dataset:
            export(dataset, victim.folder.parent / "out.jsonl", to="jsonl")
        assert [p.name for p in victim.folder.parent.iterdir()] == ["victim.sealed"]


STANZA_ATTACKS: dict[str, Callable[[list[object]], list[object]]] = {
    "drop one": lambda stanzas: stanzas[1:],
    "drop all": lambda _: [],
    "add one": lambda stanzas: [*stanzas, stanza("ee", "recipe")],
    "swap": lambda stanzas: stanzas[::-1],
    "replace": lambda stanzas: [stanzas[0], stanza("ee", "recipe")],
}


@pytest.mark.parametrize("name", list(STANZA_ATTACKS))
def test_stanzas_changed_without_the_data_key_are_refused(victim: SealedFolder, name: str) -> None:
    path = victim.folder / "index.sealed"
    data = path.read_bytes()
    from sealtrain.sealing.file import read_header

    header = read_header(path)
    changed = STANZA_ATTACKS[name](list(header.stanzas))
    # The attacker knows everything but the data key: keeps key check and MAC, or uses his own key.
    genuine = data[header.size - 64 : header.size]
    by_guess = encode_header(header.core, changed, FileKeys(OTHER_KEY, header.core))  # type: ignore[arg-type]  # stanzas
    for forged, error in ((by_guess[:-64] + genuine, HeaderDamaged), (by_guess, WrongKey)):
        path.write_bytes(forged + data[header.size :])
        with pytest.raises(error):
            read_all(victim)
    assert len(read_stanzas(victim.folder)[1]) == len(changed)


def forge(victim: SealedFolder, content: bytes) -> str:
    """What a dishonest owner signs: the first shard replaced, index and root made to fit."""
    index = read_index(victim.folder, victim.key, root=victim.description.root)
    root, size = _write(victim, index, "shard-00000.sealed", "arrow", content)
    info = ShardInfo(name=index.shards[0].info.name, size=size, root=root)
    return reindex(victim, info=info)


def reindex(victim: SealedFolder, **changed: Any) -> str:
    """The root of a dataset whose index says something else of its first shard."""
    index = read_index(victim.folder, victim.key, root=victim.description.root)
    forged = replace(index, shards=(replace(index.shards[0], **changed), *index.shards[1:]))
    root, _ = _write(victim, index, "index.sealed", "index", forged.to_bytes())
    return dataset_root(index.dataset_id, root, [shard.info for shard in forged.shards])


def _write(
    victim: SealedFolder, index: Index, name: str, kind: str, data: bytes
) -> tuple[str, int]:
    (victim.folder / name).unlink()
    with (victim.folder / name).open("xb") as target:
        writer = SealedWriter(target, data_key=victim.key, context=index.context(kind, 0))
        with writer:
            writer.write(data)
    info = writer.finish()
    return info.root, info.size


def test_an_owners_malformed_arrow_data_cannot_read_the_guests_memory(
    victim: SealedFolder,
) -> None:
    with victim.open() as dataset, dataset.open_file("shard-00000.sealed") as file:
        content = bytearray(file.read())
        batch = dataset.batch(0)
    size = batch.num_rows * 4
    offsets = batch.column(1).buffers()[1].to_pybytes()[: size + 4]
    place = content.index(offsets) + size
    content[place : place + 4] = (0x7FFFFF00).to_bytes(4, "little")
    root = forge(victim, bytes(content))
    with SealedDataset.open(victim.folder, victim.key, root=root) as dataset:
        with pytest.raises(RecordInvalid):
            dataset.batch(0)
        with pytest.raises(RecordInvalid):
            dataset.batch(0)  # not only the first time


def test_an_owners_arrow_file_that_is_none_is_refused(victim: SealedFolder) -> None:
    root = forge(victim, b"ARROW1\0\0" + bytes(4 << 20))
    dataset = SealedDataset.open(victim.folder, victim.key, root=root)
    with dataset, pytest.raises(RecordInvalid):
        dataset.batch(0)


def test_an_owners_arrow_file_cut_short_is_refused(victim: SealedFolder) -> None:
    root = forge(victim, b"ARROW1\0\0" + bytes(100))
    with pytest.raises(DataInvalid):
        SealedDataset.open(victim.folder, victim.key, root=root)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", ".."])
def test_a_dataset_cannot_export_outside_its_folder(tmp_path: Path, name: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_bytes(b"x")
    (tree / "b").write_bytes(b"y")
    made = sealed_folder(tree, tmp_path / "d.sealed")
    root = reindex(made, file=name)
    with (
        pytest.raises(DataInvalid),
        SealedDataset.open(made.folder, made.key, root=root) as dataset,
    ):
        export(dataset, tmp_path / "out", to="raw")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.sealed", "tree"]


def test_a_batch_is_not_trusted_because_it_was_read_before(victim: SealedFolder) -> None:
    with victim.open() as dataset:
        dataset.batch(0)
        path = victim.folder / "shard-00000.sealed"
        with path.open("r+b") as file:
            file.seek(100_000)
            file.write(bytes(64))
        with pytest.raises(SealRefused):
            dataset.batch(0)
