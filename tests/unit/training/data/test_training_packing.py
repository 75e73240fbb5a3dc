"""Packing loses no token, begins again anywhere, and its digest can be recomputed."""

from __future__ import annotations

import hashlib
from itertools import islice, pairwise
from typing import Any

import pyarrow as pa
import pytest
from carrying import carries
from collecting import COLLECTING
from training_world import PlainDataset, source_of

from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.training.data.stream import RecordStream
from sealtrain.training.models.base import byte_tokenizer

if not COLLECTING:
    from sealtrain.training.data.packing import PackedStream, text_encoder, token_encoder, windows

EOS = 258


def stream_of(*documents: list[int], kind: pa.DataType | None = None) -> RecordStream:
    batches = [
        pa.RecordBatch.from_arrays(
            [pa.array(part, pa.list_(pa.uint16()) if kind is None else kind)], names=["tokens"]
        )
        for part in (documents[::2], documents[1::2])
        if part
    ]
    return RecordStream([source_of(PlainDataset(batches))], seed=5)


def packed(stream: RecordStream, size: int, *, digest: bool = True) -> PackedStream:
    kind = stream.schema.field("tokens").type
    encode = token_encoder(kind, vocabulary=1000, eos=EOS)
    return PackedStream(stream, "tokens", encode, size, digest=digest)


DOCUMENTS = [[n] * (n % 9) for n in range(1, 40)]


def blocks(one: PackedStream, count: int) -> list[list[int]]:
    return [row["input_ids"].tolist() for row in islice(one.rows(), count)]


@pytest.mark.parametrize("size", [2, 3, 16, 100])
def test_blocks_are_the_streams_records_one_after_the_other(size: int) -> None:
    stream = stream_of(*DOCUMENTS)
    got = [token for block in blocks(packed(stream, size), 600 // size) for token in block]
    wanted = [token for row in stream.rows(0, 300) for token in (*row["tokens"], EOS)]
    assert got == wanted[: len(got)]


@pytest.mark.parametrize("size", [2, 7, 64])
def test_every_place_begins_again_with_the_same_blocks_and_digest(size: int) -> None:
    stream = stream_of(*DOCUMENTS)
    first = packed(stream, size)
    marks, seen = [first.mark()], []
    for row in islice(first.rows(), 60):
        seen.append(row["input_ids"].tolist())
        marks.append(first.mark())
    for at in (0, 1, 2, 17, 41):
        other = packed(stream, size)
        other.seek(marks[at])
        assert blocks(other, 60 - at) == seen[at:]
        assert other.mark() == marks[60]


def test_the_digest_is_the_one_of_the_specification() -> None:
    one = packed(stream_of(*DOCUMENTS), 8)
    digest = hashlib.sha256(b"sealtrain/tokens/v1").digest()
    for block in blocks(one, 5):
        digest = hashlib.sha256(
            digest + b"".join(token.to_bytes(4, "little") for token in block)
        ).digest()
    assert one.mark()["tokens_sha256"] == digest.hex()
    other = packed(stream_of(*DOCUMENTS), 8, digest=False)
    blocks(other, 5)
    assert "tokens_sha256" not in other.mark()
    assert {name: one.mark()[name] for name in ("row", "token")} == other.mark()


def test_records_without_a_token_do_not_go_on_for_ever() -> None:
    stream = stream_of([], [], [])
    encode = token_encoder(stream.schema.field("tokens").type, vocabulary=9, eos=None)
    with pytest.raises(DataInvalid, check=carries(code="data-invalid")):
        next(PackedStream(stream, "tokens", encode, 4, digest=False).rows())


@pytest.mark.parametrize(
    ("kind", "rows"),
    [(pa.list_(pa.uint16()), [[1, 1000]]), (pa.list_(pa.int32()), [[-1]])],
)
def test_a_token_the_model_does_not_have_is_refused_unquoted(kind: Any, rows: Any) -> None:
    with pytest.raises(RecordInvalid) as caught:
        next(packed(stream_of(*rows, kind=kind), 2).rows())
    assert "1000" not in str(caught.value)
    assert caught.value.expected == "0 … 999"


def test_an_empty_value_among_tokens_is_refused() -> None:
    stream = stream_of([1, None], kind=pa.list_(pa.int32()))  # type: ignore[list-item]
    with pytest.raises(RecordInvalid, check=carries(check="tokens")):
        next(packed(stream, 2).rows())


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.string(), pa.list_(pa.bool_())])
def test_a_column_of_anything_else_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch):
        token_encoder(kind, vocabulary=10, eos=None)


def test_sliced_columns_give_their_own_tokens() -> None:
    column = pa.array([[1, 2], [3], [], [4, 5, 6]], pa.large_list(pa.int64())).slice(1, 3)
    encode = token_encoder(column.type, vocabulary=10, eos=None)
    assert [tokens.tolist() for tokens in encode(column)] == [[3], [], [4, 5, 6]]


def test_text_ends_with_the_end_token_if_wanted() -> None:
    tokenizer = byte_tokenizer()
    texts = pa.array(["ab", "", "c"])
    with_end = [item.tolist() for item in text_encoder(tokenizer, append_eos=True)(texts)]
    without = [item.tolist() for item in text_encoder(tokenizer, append_eos=False)(texts)]
    assert [ids[-1] for ids in with_end] == [tokenizer.eos_token_id] * 3
    assert [ids[:-1] for ids in with_end] == without
    assert [len(ids) for ids in without] == [2, 0, 1]


@pytest.mark.parametrize("size", [2, 5, 1000])
def test_windows_predict_every_token_but_the_first_once(size: int) -> None:
    import numpy as np

    documents = [np.arange(at, at + 7) for at in range(0, 49, 7)]
    cut = [window.tolist() for window in windows(documents, size)]
    assert [token for window in cut for token in window[1:]] == list(range(1, 49))
    assert all(len(window) <= size for window in cut)
    assert all(b[0] == a[-1] for a, b in pairwise(cut))
