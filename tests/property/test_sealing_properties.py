"""Whatever is sealed comes back, in any piece and from any place."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sealing_world import KEY, all_rows, content, context, opened, root_of, sealed, sealed_folder
from variants import examples

from sealtrain.errors import SealtrainError
from sealtrain.sealing.errors import RootMismatch
from sealtrain.sealing.file import SealedWriter, open_file
from sealtrain.sealing.header import FileContext
from sealtrain.sealing.padding import padded_size
from sealtrain.sealing.writer import SealedFileInfo

few = settings(max_examples=examples(40), deadline=None)
edges = [max(16_384 * n + d, 0) for n in range(4) for d in (-1, 0, 1)]
sizes = st.one_of(st.integers(0, 70_000), st.sampled_from(edges))
policies = st.sampled_from(["none", "bucket", "fixed:1", "fixed:20000"])


@few
@given(sizes, policies, st.data())
def test_any_range_of_any_file_comes_back(size: int, padding: str, data: st.DataObject) -> None:
    plain = content(size)
    file = sealed(plain, padding=padding)
    with opened(file, root=root_of(file)) as reader:
        for _ in range(5):
            offset = data.draw(st.integers(0, size + 10))
            length = data.draw(st.integers(0, size + 10))
            reader.seek(offset)
            assert reader.read(length) == plain[offset : offset + length]
            assert bytes(reader.read_buffer_at(offset, length)) == plain[offset : offset + length]


@few
@given(st.lists(st.integers(0, 40_000), max_size=6))
def test_any_sequence_of_writes_is_one_content(lengths: list[int]) -> None:
    target = io.BytesIO()
    whole = b""
    with SealedWriter(target, data_key=KEY, context=context()) as writer:
        for number, length in enumerate(lengths):
            piece = content(length, str(number))
            writer.write(piece)
            whole += piece
        info: SealedFileInfo = writer.finish()
    assert info.size == len(target.getvalue())
    assert opened(target.getvalue(), root=info.root).read() == whole


@few
@given(st.integers(0, 1 << 45), policies)
def test_padding_never_shrinks_and_never_reveals_order(size: int, padding: str) -> None:
    padded = padded_size(padding, size)
    assert padded >= size
    assert padded_size(padding, size + 1) >= padded


@few
@given(st.binary(max_size=300))
def test_bytes_that_are_no_sealed_file_are_refused_with_a_type(data: bytes) -> None:
    for candidate in (data, b"SEALTRN\x01" + data):
        try:
            opened(candidate)
        except SealtrainError:
            continue
        raise AssertionError("noise opened")


@few
@given(
    st.text(max_size=50),
    st.integers(0, (1 << 31) - 1),
    st.dictionaries(st.text(max_size=8), st.one_of(st.text(max_size=8), st.integers(0, 1 << 50))),
)
def test_a_context_is_its_core(name: str, shard: int, binding: dict[str, Any]) -> None:
    try:
        core = context(name=name, shard=shard, binding=binding).to_core()
    except SealtrainError:
        assert any(0xD800 <= ord(c) <= 0xDFFF for c in name + "".join(map(str, binding.items())))
        return
    back = FileContext.from_core(core)
    assert back == context(name=name, shard=shard, binding=binding)


STRIPED = sealed(content(1_150_000, "striped"))
STRIPED_ROOT = root_of(STRIPED)


@few
@given(st.data())
def test_a_range_read_again_is_the_same_or_refused(data: st.DataObject) -> None:
    """Whatever was read before, wherever the file was changed since."""
    source = io.BytesIO(STRIPED)
    with open_file(source, KEY, root=STRIPED_ROOT) as reader:
        spans = st.integers(0, reader.size - 1).flatmap(
            lambda start: st.tuples(
                st.just(start), st.integers(1, min(99_000, reader.size - start))
            )
        )
        seen = {}
        for start, length in data.draw(st.lists(spans, min_size=1, max_size=3)):
            seen[start, length] = bytes(reader.read_buffer_at(start, length))
        place = data.draw(st.integers(0, len(STRIPED) - 1))
        changed = bytearray(STRIPED)
        changed[place] ^= 1 << data.draw(st.integers(0, 7))
        source.seek(0)
        source.write(changed)
        for (start, length), before in seen.items():
            try:
                again = bytes(reader.read_buffer_at(start, length))
            except RootMismatch:
                continue
            assert again == before
            first = reader.header.size + 56 + start // 16_384 * 16_400
            last = reader.header.size + 56 + ((start + length - 1) // 16_384 + 1) * 16_400
            assert not first <= place < last


values = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
records = st.lists(
    st.fixed_dictionaries(
        {
            "a": values,
            "b": st.integers(-(1 << 63), (1 << 63) - 1),
            "c": st.lists(values, max_size=3),
        }
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=examples(20), deadline=None)
@given(records)
def test_any_records_come_back(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "rows.jsonl")
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with sealed_folder(source, Path(name, "d.sealed")).open() as dataset:
            assert all_rows(dataset) == rows
