"""Token shards: every token arrives, in order, under its own width; what is no shard is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sealing_world import sealed_folder

from sealtrain.errors import DataInvalid, UsageError
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.tabular.tokens import TokenShards


def numbers(count: int, seed: int = 1, top: int = 50_000) -> Any:
    return np.random.default_rng(seed).integers(0, top, count)


def header(magic: int, count: int) -> bytes:
    return struct.pack("<256i", magic, 1, count, *[0] * 253)


def read(sealed: Any) -> list[list[int]]:
    batches = [sealed.batch(number) for number in range(len(sealed.batch_rows))]
    return [row for batch in batches for row in batch.column("tokens").to_pylist()]


def seal(folder: Path, *shards: bytes, dtype: str | None = None, row_tokens: int = 10) -> Any:
    paths = []
    for number, data in enumerate(shards):
        paths.append(folder / f"{number}.bin")
        paths[-1].write_bytes(data)
    how = TokenShards(dtype=dtype, row_tokens=row_tokens)
    return sealed_folder(
        paths if len(paths) > 1 else paths[0],
        folder / "X.sealed",
        form="tokens",
        token_shards=how,
    ).open()


@pytest.mark.parametrize(("dtype", "top"), [("uint16", 1 << 16), ("uint32", 1 << 32)])
def test_raw_shards_keep_every_token_in_order(dtype: str, top: int, tmp_path: Path) -> None:
    first, second = numbers(1234, 1, top), numbers(77, 2, top)
    shards = [tokens.astype(dtype).tobytes() for tokens in (first, second)]
    sealed = seal(tmp_path, *shards, dtype=dtype)
    rows = read(sealed)
    assert [token for row in rows for token in row] == [*first.tolist(), *second.tolist()]
    assert {len(row) for row in rows} == {10, 4, 7}
    assert str(sealed.schema.field("tokens").type).startswith(f"list<item: {dtype}")
    assert sealed.tokens == 1311
    assert sealed.records == 124 + 8


@pytest.mark.parametrize(("magic", "dtype"), [(20240520, "uint16"), (20240801, "uint32")])
@pytest.mark.parametrize("declared", [True, False])
def test_a_header_says_how_wide_and_is_no_token(
    magic: int, dtype: str, declared: bool, tmp_path: Path
) -> None:
    tokens = numbers(95)
    data = header(magic, 95) + tokens.astype(dtype).tobytes()
    sealed = seal(tmp_path, data, dtype=dtype if declared else None)
    assert [token for row in read(sealed) for token in row] == tokens.tolist()


def test_shards_larger_than_a_batch_are_streamed(tmp_path: Path) -> None:
    tokens = numbers(1_500_000).astype("uint16")
    sealed = seal(tmp_path, tokens.tobytes(), dtype="uint16", row_tokens=4096)
    assert len(sealed.batch_rows) > 1
    assert [token for row in read(sealed) for token in row] == tokens.tolist()


@pytest.mark.parametrize(
    ("shards", "dtype", "error"),
    [
        ([b"\x01\x02\x03"], "uint16", RecordInvalid),
        ([b"\x01\x02" * 600], None, UsageError),
        ([header(20240520, 9) + b"\0" * 17], None, RecordInvalid),
        ([header(20240520, 9) + b"\0" * 18], "uint32", SchemaMismatch),
        ([header(20240520, 2) + b"\0" * 4, header(20240801, 1) + b"\0" * 4], None, SchemaMismatch),
        ([b""], "uint16", DataInvalid),
        ([header(20240520, 0)], None, DataInvalid),
    ],
)
def test_what_is_no_shard_is_refused_and_leaves_nothing(
    shards: list[bytes], dtype: str | None, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        seal(tmp_path, *shards, dtype=dtype)
    assert not list(tmp_path.glob("*.sealed*"))


@pytest.mark.parametrize("how", [{"dtype": "int64"}, {"row_tokens": 0}, {"row_tokens": 1 << 23}])
def test_what_no_shard_can_be_is_a_usage_error(how: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        TokenShards(**how)
