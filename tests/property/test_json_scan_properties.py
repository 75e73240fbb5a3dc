"""One reading of JSON lines calls nothing good that the two readings of sealing would refuse."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.sealing.tabular import jsonl
from sealtrain.sealing.tabular.batches import open_records
from sealtrain.sealing.tabular.jsonscan import LinesScan, Undecided

WHOLE = [1, -4, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1]
KINDS = (
    [None, "a", "2024-05-06", "2024-05-06 12:00:00"],
    [None, *WHOLE[:2], 0.5],
    [None, True, False],
    [None, [], [1], [2**53 + 1], [0.5, 3], [None]],
    [None, ["x"], [], ["2024-05-06"]],
    [None, {}, {"p": 1}, {"p": None, "q": "a"}, {"q": None}, {"p": 0.5}],
    [None, [{"p": 1}], [{"q": "2024-05-06"}], [{"p": 2**53 + 1}], []],
    WHOLE,
    [*WHOLE, 0.5, 1e300],
    [2**63, 2**70, 1],
)


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """Fields of one kind of value, seldom of two, and seldom a line that is no record."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    odd = draw(
        st.sampled_from([None, None, "[1]", '{"a": 1', '{"a": 1, "a": 2}', '{"a": "\\ud800"}'])
    )
    texts = []
    for _ in range(draw(st.integers(1, 10))):
        record: dict[str, Any] = {}
        for name, kind in zip("abc", kinds, strict=False):
            if draw(st.integers(0, 3)):
                record[name] = draw(st.sampled_from(kind))
        texts.append(json.dumps(record))
    if draw(st.integers(0, 4)) == 0:
        texts[-1] = json.dumps({"a": draw(st.sampled_from(draw(st.sampled_from(KINDS))))})
    if odd is not None and draw(st.integers(0, 4)) == 0:
        texts.insert(draw(st.integers(0, len(texts))), odd)
    return texts


def plain(value: Any) -> Any:
    """A value without fields that are null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def form(kind: Any) -> Any:
    """A type or schema without the order of its names, which no judge asks for."""
    if isinstance(kind, pa.Schema) or pa.types.is_struct(kind):
        return sorted((field.name, form(field.type)) for field in kind)
    return ["list", form(kind.value_type)] if pa.types.is_list(kind) else str(kind)


@pytest.mark.claim("C578")
@settings(deadline=None, max_examples=examples(50))
@given(texts=lines(), block=st.integers(4, 120), cut=st.integers(0, 10))
def test_what_is_read_once_is_what_is_read_twice(texts: list[str], block: int, cut: int) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "BLOCK_BYTES", block)
        paths = []
        for number, part in enumerate((texts[:cut], texts[cut:])):
            if part:
                path = Path(name) / f"{number}.jsonl"
                path.write_text("".join(f"{text}\n" for text in part))
                paths.append(path)
        try:
            scan = LinesScan(paths)
            once = [row for batch in scan.batches() for row in batch.to_pylist()]
        except Undecided:
            event("undecided")
            return
        event("decided")
        schema, batches = open_records(paths, lambda _: None)
        twice = pa.Table.from_batches(batches, schema=schema)
    assert form(scan.schema) == form(schema)
    if not schema.names:  # records without a field fit no recipe
        return
    assert [plain(row) for row in once] == [plain(row) for row in twice.to_pylist()]


def test_good_records_are_decided_by_one_reading(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    rows = [
        {"a": "2024-05-06", "n": number, "h": []} | ({"late": [{"p": 1.5}]} if number > 50 else {})
        for number in range(100)
    ] + [{"a": "later", "n": 0.5, "h": ["x"]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "BLOCK_BYTES", 200)
        scan = LinesScan([path])
        assert sum(batch.num_rows for batch in scan.batches()) == len(rows)
    assert form(scan.schema) == form(open_records([path], lambda _: None)[0])


@pytest.mark.parametrize("text", ["", "\n", "[]\n", "no json\n"])
def test_a_file_without_records_is_left_to_the_reader(tmp_path: Path, text: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(text)
    with pytest.raises(Undecided):
        LinesScan([path])
