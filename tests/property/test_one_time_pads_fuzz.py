"""Whatever arrives at a server, a guest or a reader of pools is refused as ours, or is right."""

from __future__ import annotations

import io
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from otp_world import in_thread, random_matrix

from sealtrain.collab.otp import wire
from sealtrain.collab.otp.pool import MAGIC, _header
from sealtrain.collab.otp.serving import Server, _Conversation
from sealtrain.errors import SealtrainError

MATRIX = random_matrix(3, 2)
anything = st.binary(max_size=200)
near_requests = st.builds(
    lambda head, direction, rows, rest: head + direction + rows + rest,
    st.sampled_from([MATRIX.digest, bytes(32)]),
    st.integers(0, 3).map(lambda number: number.to_bytes(4, "big")),
    st.integers(0, 1 << 21).map(lambda number: number.to_bytes(4, "big")),
    anything,
)


@pytest.fixture(scope="module")
def servers() -> object:
    with in_thread("accelerator") as accelerator, in_thread("dealer") as dealer:
        accelerator.keep(MATRIX.values)
        yield accelerator, dealer


@given(kind=st.integers(0, 255), body=st.one_of(anything, near_requests))
@settings(max_examples=50, deadline=None)
def test_a_request_is_answered_or_refused(
    servers: tuple[Server, Server], kind: int, body: bytes
) -> None:
    for server in servers:
        conversation = object.__new__(_Conversation)  # without a connection
        conversation.server, conversation._masks, conversation._answers = server, None, None
        for number in (kind, wire.MATRIX, wire.PRODUCT, wire.BEGIN, wire.PADS):
            with suppress(SealtrainError):
                assert len(conversation._answer(number, bytearray(body))) <= wire.MAX_FRAME


@given(front=st.sampled_from([b"", MAGIC]), rest=anything)
@settings(max_examples=50, deadline=None)
def test_a_pool_begins_as_one_or_is_refused(front: bytes, rest: bytes) -> None:
    for data in (front + rest, front + len(rest).to_bytes(4, "big") + rest):
        with pytest.raises(SealtrainError):
            _header(io.BytesIO(data))
