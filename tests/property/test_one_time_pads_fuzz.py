"""Whatever arrives at a server, a guest or a reader of pools is refused as ours, or is right."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from channel_world import talking
from collecting import COLLECTING
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.base.byte_budget import ByteBudget
from sealtrain.base.canonical import canonical_json
from sealtrain.base.secret import Secret
from sealtrain.errors import SealtrainError
from sealtrain_together.channel.answers import receive_answer
from sealtrain_together.channel.channel import AttestedChannel

if not COLLECTING:
    from pads_world import DEVICE, accelerating, random_matrix

    from sealtrain_together.pads import wire
    from sealtrain_together.pads.dealer import Session
    from sealtrain_together.pads.multiplying import Matrices
    from sealtrain_together.pads.pool import MAGIC, Pool

    MATRIX = random_matrix(3, 2)
anything = st.binary(max_size=200)
near_requests = st.builds(
    lambda head, direction, rows, rest: head + direction + rows + rest,
    st.deferred(lambda: st.sampled_from([MATRIX.digest, bytes(32)])),
    st.integers(0, 3).map(lambda number: number.to_bytes(4, "big")),
    st.integers(0, 1 << 21).map(lambda number: number.to_bytes(4, "big")),
    anything,
)


@pytest.fixture(scope="module")
def accelerator() -> Iterator[tuple[str, int]]:
    with accelerating() as address:
        yield address


@given(kind=st.integers(0, 255), body=st.one_of(anything, near_requests))
@settings(max_examples=examples(50), deadline=None)
def test_an_accelerator_answers_a_request_or_refuses_it(
    accelerator: tuple[str, int], kind: int, body: bytes
) -> None:
    for number in (kind, wire.MATRIX, wire.PRODUCT):
        with socket.create_connection(accelerator, timeout=10) as connection:
            frames = wire.Frames(connection, seconds=10)
            frames.send(wire.MATRIX, *wire.describe_matrix(MATRIX.values))
            assert frames.receive() == (wire.MATRIX | wire.ANSWER, MATRIX.digest)
            frames.send(number, body)
            answered = frames.receive()
            assert answered is not None
            assert answered[0] in (number | wire.ANSWER, wire.REFUSED)


near_messages = st.fixed_dictionaries(
    {"do": st.sampled_from(["matrix", "deal", "begin", "", None, 1, []])},
    optional={
        name: st.one_of(
            st.integers(-1, 1 << 20),
            st.deferred(
                lambda: st.sampled_from(
                    [MATRIX.digest.hex(), "00" * 32, "forward", "backward", None]
                )
            ),
        )
        for name in ("outputs", "inputs", "matrix", "direction", "first", "rows")
    },
).map(canonical_json)


@given(message=st.one_of(st.binary(max_size=2000), near_messages))
@settings(max_examples=examples(50), deadline=None)
def test_a_dealer_answers_a_message_or_refuses_it(message: bytes) -> None:
    ended: list[SealtrainError | None] = []

    def serve(channel: AttestedChannel) -> None:
        with Matrices(ByteBudget(1 << 20), "cpu") as matrices:
            matrices.reserve(MATRIX.values.numel())
            matrices.keep(MATRIX.values)
            try:
                Session(Secret(bytes(32)), matrices, DEVICE).attend(channel)
                ended.append(None)
            except SealtrainError as error:
                ended.append(error)

    with talking() as (guest, dealer):
        thread = threading.Thread(target=serve, args=(dealer,))
        thread.start()
        guest.send(message)
        with suppress(SealtrainError):
            receive_answer(guest, max_bytes=1 << 14, max_data_bytes=1 << 20)
        guest.close()
        thread.join(10)
    assert len(ended) == 1  # and nothing but an error of ours


@given(front=st.deferred(lambda: st.sampled_from([b"", MAGIC])), rest=anything)
@settings(max_examples=examples(50), deadline=None)
def test_a_pool_begins_as_one_or_is_refused(front: bytes, rest: bytes) -> None:
    for data in (front + rest, front + len(rest).to_bytes(4, "big") + rest):
        with NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            with pytest.raises(SealtrainError):
                Pool(Path(file.name), Secret(bytes(32)))
