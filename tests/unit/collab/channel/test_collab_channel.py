"""Channels between two parties: messages of any length, both ways, in order."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time

import pytest
from channel_world import acceptance, answering, conversation, guest, talking
from world import signer

from sealtrain.base.canonical import canonical_json
from sealtrain.training.errors import ChannelBroken, ChannelCut, PeerUnreachable
from sealtrain_together.channel import channel as channels
from sealtrain_together.channel.answers import receive_answer, receive_answer_into
from sealtrain_together.channel.frames import MAX_PLAINTEXT


def test_both_sides_know_who_is_there() -> None:
    with talking() as (mine, theirs):
        assert mine.peer.public_key == signer("bob").public
        assert theirs.peer.public_key == signer("alice").public
        assert mine.peer.verdict is None


def test_two_guests_prove_themselves_to_each_other() -> None:
    ours, theirs = (make(proof=guest(), accept=acceptance()) for make in (conversation, answering))
    with talking(ours, theirs) as (mine, other):
        assert mine.peer.simulated
        assert other.peer.simulated
        mine.send(b"hello")
        assert other.receive(max_bytes=5) == b"hello"


@pytest.mark.parametrize(
    "size", [0, 1, MAX_PLAINTEXT - 1, MAX_PLAINTEXT, MAX_PLAINTEXT + 1, 3 * MAX_PLAINTEXT]
)
def test_messages_of_any_length_arrive_whole(size: int) -> None:
    message = os.urandom(size)
    with talking() as (mine, theirs):
        sender = threading.Thread(target=mine.send, args=(message,))
        sender.start()
        received = theirs.receive(max_bytes=size)
        sender.join()
        assert received is not None
        assert hashlib.sha256(received).digest() == hashlib.sha256(message).digest()


def test_a_message_is_decrypted_into_the_place_it_belongs() -> None:
    message = os.urandom(2 * MAX_PLAINTEXT + 5)
    place = bytearray(len(message) + 3)
    with talking() as (mine, theirs):
        sender = threading.Thread(target=mine.send, args=(message,))
        sender.start()
        assert theirs.receive_into(memoryview(place)) == len(message)
        sender.join()
    assert bytes(place) == message + b"\0\0\0"


def test_directions_ratchet_independently() -> None:
    with talking() as (mine, theirs):
        for number in range(3):
            mine.send(bytes([number]))
            mine.ratchet()
            theirs.send(bytes([number + 100]))
            assert theirs.receive(max_bytes=1) == bytes([number])
            assert mine.receive(max_bytes=1) == bytes([number + 100])


def test_an_end_that_was_said_is_an_end() -> None:
    with talking() as (mine, theirs):
        mine.send(b"all")
        mine.close()
        assert theirs.receive(max_bytes=3) == b"all"
        assert theirs.receive(max_bytes=3) is None
        with pytest.raises(ChannelBroken):
            mine.send(b"more")


def _an_end_between_an_answer_and_its_payload(theirs: channels.AttestedChannel) -> None:
    theirs.send(canonical_json({"ok": {}, "payload": 3}))
    theirs.close()


def test_an_end_where_a_message_has_to_come_is_a_cut_and_no_attack() -> None:
    with talking() as (mine, theirs):
        theirs.close()
        with pytest.raises(ChannelCut):
            mine.expect(max_bytes=3)
    with talking() as (mine, theirs):
        _an_end_between_an_answer_and_its_payload(theirs)
        with pytest.raises(ChannelCut):
            receive_answer(mine, max_bytes=100, max_data_bytes=3)
    with talking() as (mine, theirs):
        _an_end_between_an_answer_and_its_payload(theirs)
        with pytest.raises(ChannelCut):
            receive_answer_into(mine, memoryview(bytearray(3)), max_bytes=100)


def test_nobody_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(PeerUnreachable):
        channels.connect(address, conversation(), timeout=0.5)


def test_silence_is_unreachable() -> None:
    with (
        talking(on_line=lambda line: line.settimeout(0.1)) as (mine, _theirs),
        pytest.raises(PeerUnreachable),
    ):
        mine.receive(max_bytes=1)


@pytest.mark.claim("C611")
def test_another_process_of_the_guest_goes_on_after_the_handshake() -> None:
    near, far = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_one() -> None:
            sock, _ = listener.accept()
            with channels.accept(sock, answering(), timeout=10.0) as theirs:
                far.sendall(theirs.export("a label").reveal())
                theirs.send(theirs.expect(max_bytes=8))

        thread = threading.Thread(target=answer_one)
        thread.start()
        sock, keys = channels.reach(listener.getsockname()[:2], conversation(), timeout=10.0)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with channels.go_on(sock, keys) as ours:
                    ours.send(b"question")
                    answered = ours.expect(max_bytes=8) == b"question"
                    same = ours.export("a label").reveal() == near.recv(32)
                    status = 0 if answered and same else 1
            finally:
                os._exit(status)
        sock.close()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        thread.join()
    near.close()
    far.close()


@pytest.mark.claim("C611")
def test_a_peer_that_speaks_slowly_and_proves_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "HANDSHAKE_SECONDS", 0.5)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            sock, _ = listener.accept()
            with sock, contextlib.suppress(OSError):
                sock.sendall((1 << 16).to_bytes(4, "big"))  # of a message that never comes whole
                while not over.wait(0.05):
                    sock.sendall(b"\0")

        thread = threading.Thread(target=trickle)
        thread.start()
        began = time.monotonic()
        try:
            with pytest.raises(PeerUnreachable):
                channels.reach(listener.getsockname()[:2], conversation(), timeout=30.0)
        finally:
            over.set()
            thread.join()
    assert time.monotonic() - began < 20.0
