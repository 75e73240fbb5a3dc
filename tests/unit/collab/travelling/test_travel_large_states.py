"""States of more than 4 GiB: measured, sent and received by their real length, in sparse memory."""

from __future__ import annotations

import json
import mmap
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from variants import variants

from sealtrain.base.secret import Secret
from sealtrain.errors import LimitExceeded
from sealtrain.recipe.errors import ModelInvalid
from sealtrain_together.channel.frames import FrameReader, FrameWriter
from sealtrain_together.travelling.measurement import fingerprint_of_bytes
from sealtrain_together.travelling.states import MAX_STATE_BYTES, STATE_ENTRY

pytestmark = [pytest.mark.long, pytest.mark.claim("C258"), pytest.mark.slow]

BEYOND = (1 << 32) + (3 << 20)
"""Bytes of the one large tensor."""
LAST = b"after 4 GiB"


@contextmanager
def sparse_state() -> Iterator[memoryview]:
    """A model state whose tensors have more than 4 GiB; nearly all of it takes no memory."""
    header = json.dumps(
        {
            "__metadata__": {STATE_ENTRY: json.dumps({"settings": {}, "step": 3})},
            "model.large": {"dtype": "U8", "shape": [BEYOND], "data_offsets": [0, BEYOND]},
            "model.small": {
                "dtype": "U8",
                "shape": [len(LAST)],
                "data_offsets": [BEYOND, BEYOND + len(LAST)],
            },
        }
    ).encode()
    size = 8 + len(header) + BEYOND + len(LAST)
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        pages[:8] = len(header).to_bytes(8, "little")
        pages[8 : 8 + len(header)] = header
        pages[size - len(LAST) :] = LAST
        view = memoryview(pages)
        try:
            yield view
        finally:
            view.release()


def test_every_byte_beyond_4_gib_is_in_the_fingerprint() -> None:
    key = os.urandom(32)
    with sparse_state() as state:
        found = fingerprint_of_bytes(state, key)
        with pytest.raises(ModelInvalid):
            fingerprint_of_bytes(state[:-1], key)
        for place in (-1, -len(LAST) - 1, -(3 << 20)):
            before = state[place]
            state[place] = before ^ 1
            assert fingerprint_of_bytes(state, key) != found, place
            state[place] = before
        assert fingerprint_of_bytes(state, key) == found


@pytest.mark.parametrize("most", variants([MAX_STATE_BYTES, BEYOND], each_time=[MAX_STATE_BYTES]))
def test_a_state_is_sent_whole_or_refused(most: int) -> None:
    left, right = socket.socketpair()
    key = Secret(os.urandom(32))
    with left, right, sparse_state() as state:
        size = len(state)
        sending = threading.Thread(target=_send, args=(left, key, state))
        sending.start()
        reader = FrameReader(right, key)
        try:
            if size > most:
                with pytest.raises(LimitExceeded):
                    reader.skip(max_bytes=most)
            else:
                reader.skip(max_bytes=most)
                assert reader.receive(max_bytes=100) == str(size).encode()
        finally:
            right.close()
            sending.join()


def _send(sock: socket.socket, key: Secret, state: memoryview) -> None:
    from sealtrain.training.errors import PeerUnreachable

    writer = FrameWriter(sock, key)
    try:
        writer.send(state)
        writer.send(str(len(state)).encode())
    except PeerUnreachable:
        return
