"""Types of JSON records do not depend on where blocks and files end, nor on the order."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.sealing.tabular import jsonl
from sealtrain.sealing.tabular.batches import open_records

LEAVES = (
    st.none() | st.integers(-9, 9),
    st.none() | st.integers(-9, 9) | st.sampled_from([0.5, -2.25]),
    st.none() | st.sampled_from(["a", "ä", "", "2024-05-06", "2024-05-06 12:00:00"]),
    st.none() | st.booleans(),
)


def values(depth: int) -> st.SearchStrategy[st.SearchStrategy[Any]]:
    """Strategies whose values all have one type, or are null or empty somewhere inside."""
    leaf = st.sampled_from(LEAVES)
    if not depth:
        return leaf
    inner = values(depth - 1)
    lists = inner.map(lambda item: st.none() | st.lists(item, max_size=3))
    objects = st.dictionaries(st.sampled_from("pqr"), inner, min_size=1, max_size=3).map(
        lambda fields: st.none() | st.fixed_dictionaries({}, optional=fields)
    )
    return leaf | lists | objects


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, Any]]:
    fields = draw(st.dictionaries(st.sampled_from("abcd"), values(2), min_size=1, max_size=3))
    record = st.fixed_dictionaries({"n": st.integers(0, 99)}, optional=fields)
    return draw(st.lists(record, min_size=1, max_size=12))


def read(folder: Path, files: list[list[dict[str, Any]]]) -> pa.Table:
    paths = []
    for number, rows in enumerate(files):
        path = folder / f"{number}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths.append(path)
    schema, batches = open_records(paths, lambda _: None)
    return pa.Table.from_batches(batches, schema=schema)


def types_of(schema: pa.Schema) -> Any:
    """Columns and types without the order in which names were seen."""

    def form(kind: pa.DataType) -> Any:
        if pa.types.is_struct(kind):
            return sorted((field.name, form(field.type)) for field in kind)
        return ["list", form(kind.value_type)] if pa.types.is_list(kind) else str(kind)

    return sorted((field.name, form(field.type)) for field in schema)


def same(left: Any, right: Any) -> bool:
    """Whether two values are one, where a field that is null may be absent."""
    if isinstance(left, dict) and isinstance(right, dict):
        return all(same(left.get(name), right.get(name)) for name in {*left, *right})
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.claim("C511")
@settings(deadline=None, max_examples=examples(60))
@given(rows=records(), block=st.integers(4, 200), data=st.data())
def test_types_do_not_depend_on_blocks_files_or_order(
    rows: list[dict[str, Any]], block: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(rows)))
    mixed = data.draw(st.permutations(rows))
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        whole = read(Path(name), [rows])
        patch.setattr(jsonl, "BLOCK_BYTES", block)
        in_blocks = read(Path(name), [rows])
        parts = [part for part in (mixed[:cut], mixed[cut:]) if part]
        in_files = read(Path(name), parts)
    assert in_blocks.schema == whole.schema
    assert in_blocks.to_pylist() == whole.to_pylist()
    assert all(map(same, rows, whole.to_pylist()))
    assert types_of(in_files.schema) == types_of(whole.schema)
    assert all(map(same, [row for part in parts for row in part], in_files.to_pylist()))
