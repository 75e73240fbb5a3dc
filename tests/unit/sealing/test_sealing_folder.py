"""Sealed datasets: every format in and out, index, root, commitments, rewrap."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from sealing_world import (
    OTHER_KEY,
    OWNER_ID,
    SealedFolder,
    all_rows,
    content,
    json_lines,
    sealed_folder,
    stanza,
)

from sealtrain.errors import AlreadyExists, DataInvalid, FormatUnknown, LimitExceeded, UsageError
from sealtrain.sealing.commitments import record_commitment
from sealtrain.sealing.errors import NoStanza, WrongKey
from sealtrain.sealing.export import export
from sealtrain.sealing.file import Suite, verify_ciphertext
from sealtrain.sealing.opened_dataset import SealedDataset, contains_record
from sealtrain.sealing.rewrap import read_stanzas, rewrap

pytestmark = pytest.mark.long

ROWS: list[dict[str, Any]] = [
    {"id": number, "text": f"patient {number} " * (number % 40), "score": number / 4}
    for number in range(9000)
]


def source_of(folder: Path, kind: str) -> Path:
    path = folder / f"rows.{kind}"
    table = pa.Table.from_pylist(ROWS)
    if kind == "jsonl":
        path.write_text(json_lines(ROWS))
    elif kind == "csv":
        csv.write_csv(table, path)
    elif kind == "parquet":
        parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SealedFolder:
    folder = tmp_path_factory.mktemp("small")
    return sealed_folder(
        source_of(folder, "jsonl"),
        folder / "rows.sealed",
        shard_bytes=1 << 20,
        commitments=True,
        count_tokens=lambda batch: batch.num_rows * 3,
    )


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow"])
def test_every_format_comes_back_in_every_format(tmp_path: Path, kind: str) -> None:
    made = sealed_folder(source_of(tmp_path, kind), tmp_path / "d.sealed")
    with made.open() as dataset:
        assert all_rows(dataset) == ROWS
        assert dataset.num_rows == made.description.records == 9000
        for to in ("jsonl", "csv", "parquet", "arrow"):
            export(dataset, tmp_path / f"out.{to}", to=to)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == ROWS
    assert csv.read_csv(tmp_path / "out.csv").to_pylist() == ROWS
    assert parquet.read_table(tmp_path / "out.parquet").to_pylist() == ROWS
    assert pa.ipc.open_file(tmp_path / "out.arrow").read_all().to_pylist() == ROWS


def test_each_shard_is_an_arrow_file(small: SealedFolder) -> None:
    with small.open() as dataset:
        assert len(dataset.file_names) == 2
        rows = []
        for name in dataset.file_names:
            with dataset.open_file(name) as file, pa.ipc.open_file(file) as arrow:
                assert arrow.schema == dataset.schema
                rows += arrow.read_all().to_pylist()
        assert rows == ROWS
        with pytest.raises(FormatUnknown):
            dataset.open_file("commitments.sealed")


def test_batches_are_about_a_mebibyte_and_located_by_row(small: SealedFolder) -> None:
    with small.open() as dataset:
        assert sum(dataset.batch_rows) == 9000
        assert all(dataset.batch(n).num_rows == rows for n, rows in enumerate(dataset.batch_rows))
        for row in (0, 1, 4000, 8999):
            number, inside = dataset.locate(row)
            assert dataset.batch(number).slice(inside, 1).to_pylist() == [ROWS[row]]
        with pytest.raises(IndexError):
            dataset.locate(9000)


def test_a_batch_lies_in_pool_memory_without_copies(small: SealedFolder) -> None:
    with small.open() as dataset:
        before = pa.total_allocated_bytes()
        batch = dataset.batch(0)
        grown = pa.total_allocated_bytes() - before
    assert batch.nbytes <= grown <= batch.nbytes + (64 << 10)


def test_many_threads_read_batches(small: SealedFolder) -> None:
    found: dict[int, list[dict[str, Any]]] = {}
    with small.open() as dataset:

        def work(number: int) -> None:
            for _ in range(5):
                found[number] = dataset.batch(number).to_pylist()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(dataset.num_batches)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [row for number in sorted(found) for row in found[number]] == ROWS
    with pytest.raises(ValueError):
        dataset.batch(0)


def test_the_description_says_what_was_sealed(small: SealedFolder) -> None:
    description = small.description
    assert description.records == 9000
    assert description.tokens == 27_000
    assert [shard.name for shard in description.shards] == [
        "shard-00000.sealed",
        "shard-00001.sealed",
        "commitments.sealed",
    ]
    for shard in description.shards:
        path = small.folder / shard.name
        assert path.stat().st_size == shard.size
        assert verify_ciphertext(path) == shard.root
    assert (small.folder / "dataset.json").read_text() == description.root
    assert len(description.schema_digest) == 64


def test_only_the_index_carries_stanzas(small: SealedFolder) -> None:
    dataset_id, stanzas = read_stanzas(small.folder)
    assert dataset_id == small.description.dataset_id
    assert [item.kind for item in stanzas] == ["owner", "recipe"]
    from sealtrain.sealing.file import read_header

    for shard in small.description.shards:
        assert read_header(small.folder / shard.name).stanzas == ()


def test_raw_files_come_back_as_they_were(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    files = {"a.bin": content(100_000), "deep/er/b.txt": b"text", "empty": b""}
    for name, data in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(data)
    made = sealed_folder(tree, tmp_path / "d.sealed")
    assert made.description.records is None
    with made.open() as dataset:
        assert dataset.schema is None
        assert dataset.file_names == tuple(sorted(files))
        for name, data in files.items():
            with dataset.open_file(name) as file:
                assert file.read() == data
        export(dataset, tmp_path / "out", to="raw")
        with pytest.raises(FormatUnknown):
            export(dataset, tmp_path / "out.jsonl", to="jsonl")
    assert {
        path.relative_to(tmp_path / "out").as_posix(): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    } == files
    # What a file is called is content too: the folder does not tell.
    names = " ".join(path.name for path in made.folder.iterdir())
    assert "a.bin" not in names
    assert b"a.bin" not in b"".join(path.read_bytes() for path in made.folder.iterdir())


def test_a_single_file_exports_to_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(content(50_000))
    made = sealed_folder(tmp_path / "weights.safetensors", tmp_path / "d.sealed")
    export(made.folder, tmp_path / "back", to="raw", key=made.key, root=made.description.root)
    assert (tmp_path / "back").read_bytes() == content(50_000)
    with pytest.raises(UsageError):
        export(made.folder, tmp_path / "again", to="raw")


@pytest.mark.parametrize("padding", ["bucket", "fixed:3000000"])
@pytest.mark.parametrize("suite", list(Suite))
def test_padding_and_suite_hold_for_every_file(tmp_path: Path, padding: str, suite: Suite) -> None:
    made = sealed_folder(
        source_of(tmp_path, "jsonl"),
        tmp_path / "d.sealed",
        padding=padding,
        suite=suite,
        commitments=True,
    )
    with made.open() as dataset:
        assert all_rows(dataset) == ROWS
    if padding.startswith("fixed"):
        sizes = {path.stat().st_size // 100_000 for path in made.folder.glob("*.sealed")}
        assert len(sizes) == 1


def test_a_record_is_found_by_its_commitment(small: SealedFolder) -> None:
    with small.open() as dataset:
        assert contains_record(dataset, ROWS[17]) == (17,)
        assert contains_record(dataset, dict(reversed(ROWS[8999].items()))) == (8999,)
        assert contains_record(dataset, ROWS[17] | {"text": "another"}) == ()
        assert contains_record(dataset, ROWS[17] | {"extra": None}) == (17,)


def test_a_commitment_depends_on_key_dataset_and_record(small: SealedFolder) -> None:
    one = record_commitment(small.key, "00" * 16, ROWS[0])
    assert one != record_commitment(OTHER_KEY, "00" * 16, ROWS[0])
    assert one != record_commitment(small.key, "01" * 16, ROWS[0])
    assert one != record_commitment(small.key, "00" * 16, ROWS[1])
    with pytest.raises(DataInvalid):
        record_commitment(small.key, "00" * 16, {"a": object()})


def test_without_commitments_there_is_no_answer(tmp_path: Path) -> None:
    made = sealed_folder(source_of(tmp_path, "jsonl"), tmp_path / "d.sealed")
    with made.open() as dataset, pytest.raises(FormatUnknown):
        contains_record(dataset, ROWS[0])


def test_rewrap_changes_stanzas_and_nothing_else(tmp_path: Path) -> None:
    made = sealed_folder(source_of(tmp_path, "csv"), tmp_path / "d.sealed")
    before = {path.name: path.read_bytes() for path in made.folder.iterdir()}
    _, (owner, recipe) = read_stanzas(made.folder)
    fresh = stanza("7c", "recipe")
    rewrap(made.folder, data_key=made.key, add=[fresh], drop=[recipe])
    assert read_stanzas(made.folder)[1] == (owner, fresh)
    after = {path.name: path.read_bytes() for path in made.folder.iterdir()}
    assert after.keys() == before.keys()
    assert [name for name in before if before[name] != after[name]] == ["index.sealed"]
    assert verify_ciphertext(made.folder / "index.sealed")
    with made.open() as dataset:
        assert all_rows(dataset) == ROWS
    with pytest.raises(NoStanza):
        rewrap(made.folder, data_key=made.key, drop=[recipe])
    with pytest.raises(UsageError):
        rewrap(made.folder, data_key=made.key, drop=[owner, fresh])
    with pytest.raises(WrongKey):
        rewrap(made.folder, data_key=OTHER_KEY, add=[recipe])
    assert read_stanzas(made.folder)[1] == (owner, fresh)


def test_rewrap_back_gives_the_very_same_bytes(tmp_path: Path) -> None:
    made = sealed_folder(source_of(tmp_path, "csv"), tmp_path / "d.sealed")
    before = (made.folder / "index.sealed").read_bytes()
    fresh = stanza("7c", "recipe")
    rewrap(made.folder, data_key=made.key, add=[fresh])
    assert (made.folder / "index.sealed").read_bytes() != before
    rewrap(made.folder, data_key=made.key, drop=[fresh])
    assert (made.folder / "index.sealed").read_bytes() == before


def test_progress_adds_up_to_the_source(tmp_path: Path) -> None:
    for kind in ("jsonl", "csv", "parquet", "arrow"):
        path = source_of(tmp_path, kind)
        steps: list[int] = []
        sealed_folder(path, tmp_path / f"{kind}.sealed", progress=steps.append)
        assert sum(steps) == path.stat().st_size
        assert all(step > 0 for step in steps)


def test_what_cannot_be_sealed_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    empty, folder = tmp_path / "empty.jsonl", tmp_path / "folder"
    empty.write_text("")
    folder.mkdir()
    (tmp_path / "link").symlink_to(empty)
    data = source_of(tmp_path, "jsonl")
    attempts: list[tuple[Any, dict[str, Any], type[Exception]]] = [
        (empty, {}, DataInvalid),
        (folder, {}, DataInvalid),
        (tmp_path / "absent.jsonl", {}, DataInvalid),
        ([data, data], {}, DataInvalid),
        (data, {"layout": "zip"}, UsageError),
        (data, {"padding": "much"}, UsageError),
        (data, {"shard_bytes": 5}, UsageError),
        (data, {"layout": "raw", "commitments": True}, UsageError),
        (data, {"name": "x" * 5000}, LimitExceeded),
    ]
    present = sorted(path.name for path in tmp_path.iterdir())
    for source, options, error in attempts:
        with pytest.raises(error):
            sealed_folder(source, tmp_path / "d.sealed", **options)
        assert sorted(path.name for path in tmp_path.iterdir()) == present
    (folder / "link").symlink_to(empty)
    with pytest.raises(DataInvalid, match=r"^link "):
        sealed_folder(folder, tmp_path / "d.sealed")
    (folder / "link").unlink()
    (folder / "kept.txt").write_text("kept")
    (folder / "years").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(DataInvalid) as caught:
        sealed_folder(folder, tmp_path / "d.sealed")
    assert (caught.value.check, caught.value.got) == ("source", "years")
    sealed_folder(data, tmp_path / "d.sealed")
    with pytest.raises(AlreadyExists):
        sealed_folder(data, tmp_path / "d.sealed")


def test_the_dataset_knows_its_owner(small: SealedFolder) -> None:
    with SealedDataset.open(small.folder, small.key, root=small.description.root) as dataset:
        assert (dataset.name, dataset.owner_id, dataset.owner_name) == (
            "records",
            OWNER_ID,
            "hospital-a",
        )
        assert dataset.layout == "arrow"
        assert dataset.tokens == 27_000


def test_importing_the_package_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, sealtrain.sealing.opened_dataset, sealtrain.sealing.sealer\n"
        "import sealtrain.sealing.store\n"
        "print([m for m in ('pyarrow', 'numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "column", [["a", None, ""], [1, None, 3], [None, None, None], [True, None, False]]
)
def test_a_gap_in_a_single_column_stays_a_record_in_csv(tmp_path: Path, column: list[Any]) -> None:
    """Readers of CSV skip an empty line: such a record was lost."""
    parquet.write_table(pa.table({"c": column}), tmp_path / "t.parquet")
    made = sealed_folder(tmp_path / "t.parquet", tmp_path / "d.sealed")
    with made.open() as dataset:
        export(dataset, tmp_path / "out.csv", to="csv")
    assert csv.read_csv(tmp_path / "out.csv").num_rows == len(column)
