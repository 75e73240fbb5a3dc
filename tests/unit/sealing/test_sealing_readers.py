"""Libraries that know nothing of sealing read a sealed file as if it were a plain one."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from collecting import COLLECTING
from fsspec.spec import AbstractFileSystem
from pyarrow import csv, parquet
from sealing_world import json_lines, opened, root_of, sealed

from sealtrain.sealing.file import SealedFile

if not COLLECTING:  # an array of Arrow loads pandas
    TABLE = pa.table({"id": list(range(20_000)), "text": [f"row {i} " * 9 for i in range(20_000)]})


def sealed_copy(data: bytes) -> SealedFile:
    file = sealed(data)
    return opened(file, root=root_of(file))


def test_pyarrow_reads_parquet() -> None:
    sink = io.BytesIO()
    parquet.write_table(TABLE, sink, row_group_size=3000)
    with sealed_copy(sink.getvalue()) as file:
        assert parquet.ParquetFile(file).read_row_group(2).num_rows == 3000
        file.seek(0)
        assert parquet.read_table(file).equals(TABLE)


def test_pyarrow_reads_arrow_files_and_streams() -> None:
    for make, read in [
        (pa.ipc.new_file, pa.ipc.open_file),
        (pa.ipc.new_stream, pa.ipc.open_stream),
    ]:
        sink = io.BytesIO()
        with make(sink, TABLE.schema) as writer:
            writer.write_table(TABLE, max_chunksize=1000)
        with sealed_copy(sink.getvalue()) as file:
            assert read(file).read_all().equals(TABLE)


def test_pyarrow_reads_csv() -> None:
    sink = io.BytesIO()
    csv.write_csv(TABLE, sink)
    with sealed_copy(sink.getvalue()) as file:
        assert csv.read_csv(file).equals(TABLE)


def test_safetensors_reads_it() -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    tensors = {"weight": np.arange(100_000, dtype=np.float32).reshape(100, 1000)}
    with sealed_copy(safetensors.save(tensors)) as file:
        back = safetensors.load(file.read())
    assert np.array_equal(back["weight"], tensors["weight"])


class MemoryOfSealedFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """The least file system that hands sealed files to libraries which take paths."""

    protocol = "sealedtest"
    files: dict[str, bytes] = {}  # noqa: RUF012 - one registry for the instances fsspec makes

    def _open(self, path: str, mode: str = "rb", **_: Any) -> SealedFile:
        assert mode == "rb"
        return sealed_copy(self.files[self._strip_protocol(path)])

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        if name not in self.files:
            raise FileNotFoundError(name)
        return {"name": name, "size": len(self.files[name]), "type": "file"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        found = [self.info(name) for name in self.files]
        return found if detail else [item["name"] for item in found]


@pytest.fixture
def sealed_paths() -> Iterator[dict[str, bytes]]:
    fsspec.register_implementation("sealedtest", MemoryOfSealedFiles, clobber=True)
    MemoryOfSealedFiles.files.clear()
    yield MemoryOfSealedFiles.files
    MemoryOfSealedFiles.files.clear()


def test_datasets_streams_json_lines_and_parquet(
    sealed_paths: dict[str, bytes], tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"id": number, "text": f"text {number}"} for number in range(3000)]
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), sink)
    sealed_paths["rows.jsonl"] = json_lines(rows).encode()
    sealed_paths["rows.parquet"] = sink.getvalue()
    for builder, name in [("json", "rows.jsonl"), ("parquet", "rows.parquet")]:
        stream = datasets.load_dataset(
            builder,
            data_files=f"sealedtest://{name}",
            split="train",
            streaming=True,
            cache_dir=str(tmp_path),
        )
        assert list(stream) == rows
    assert json.dumps(rows[7]) not in "".join(str(path) for path in tmp_path.rglob("*"))
