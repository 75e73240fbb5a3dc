"""Attacks on channels: whoever sits on the wire or lies about himself gets nothing through."""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from channel_world import (
    COMPOSE,
    Relay,
    acceptance,
    answering,
    called,
    conversation,
    guest,
    talking,
)
from world import signer

from sealtrain.attest.errors import ComposeHashMismatch, QuoteRootUntrusted, ReportDataMismatch
from sealtrain.attest.report_data import Binding
from sealtrain.base.secret import Secret
from sealtrain.errors import LimitExceeded, SealtrainError, SignatureInvalid
from sealtrain.training.errors import ChannelBroken, ChannelCut, ChannelRefused, PeerUnreachable
from sealtrain_together.channel import channel as channels
from sealtrain_together.channel.frames import MAX_PLAINTEXT, FrameReader, FrameWriter, derive_next
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.proofs import AcceptKey, ProveKey

pytestmark = pytest.mark.claim("C70")


def through(data: bytes) -> bytes:
    return data


class Frames:
    """A relay that lets the handshake pass and hands later frames of one direction to a test."""

    def __init__(self, handshakes: int, alter: Callable[[list[bytes]], list[bytes]]) -> None:
        self.handshakes, self.alter = handshakes, alter
        self.rest = b""
        self.frames: list[bytes] = []

    def __call__(self, data: bytes) -> bytes:
        self.rest += data
        out = b""
        while (frame := self._frame()) is not None:
            if self.handshakes:
                self.handshakes -= 1
                out += frame
                continue
            self.frames.append(frame)
            out += b"".join(self.alter(self.frames))
        return out

    def _frame(self) -> bytes | None:
        head = 4 if self.handshakes else 5
        if len(self.rest) < head:
            return None
        (size,) = struct.unpack(">I", self.rest[head - 4 : head])
        if len(self.rest) < head + size:
            return None
        frame, self.rest = self.rest[: head + size], self.rest[head + size :]
        return frame


def refused(ours: ChannelTerms, theirs: ChannelTerms) -> tuple[SealtrainError, SealtrainError]:
    """What both sides say of a handshake that must not succeed."""
    with called(theirs) as (address, outcome, thread):
        with pytest.raises(SealtrainError) as caught:
            channels.connect(address, ours, timeout=5.0).close()
        thread.join(5.0)
    assert isinstance(outcome.error, SealtrainError)
    assert outcome.channel is None
    return caught.value, outcome.error


def test_a_caller_with_another_key_is_refused_before_it_hears_a_word() -> None:
    _mine, theirs = refused(conversation(proof=ProveKey(signer("mallory"))), answering())
    assert isinstance(theirs, ChannelRefused)


def test_a_responder_with_another_key_is_refused() -> None:
    mine, _theirs = refused(conversation(), answering(proof=ProveKey(signer("mallory"))))
    assert isinstance(mine, ChannelRefused)


def test_a_borrowed_public_key_does_not_help() -> None:
    def claims_bob(binding: Binding) -> dict[str, Any]:
        return ProveKey(signer("mallory"))(binding) | {
            "public_key": ProveKey(signer("bob"))(binding)["public_key"]
        }

    mine, _theirs = refused(conversation(), answering(proof=claims_bob))
    assert isinstance(mine, SignatureInvalid)


def test_a_guest_of_another_deployment_is_refused() -> None:
    other = COMPOSE.replace(b"a-party", b"another")
    mine, _ = refused(conversation(accept=acceptance()), answering(proof=guest(other)))
    assert isinstance(mine, ComposeHashMismatch)


def test_a_guest_of_a_foreign_vendor_is_refused() -> None:
    mine, _ = refused(conversation(accept=acceptance()), answering(proof=guest(vendor="other")))
    assert isinstance(mine, QuoteRootUntrusted)


def test_a_key_is_no_guest_and_a_guest_no_key() -> None:
    mine, _ = refused(conversation(accept=acceptance()), answering())
    assert isinstance(mine, ChannelRefused)
    mine, _ = refused(conversation(), answering(proof=guest()))
    assert isinstance(mine, ChannelRefused)


def test_evidence_of_another_conversation_does_not_answer() -> None:
    genuine = guest()
    kept = genuine(Binding("channel-responder", {"hello": "of yesterday"}))
    mine, _ = refused(conversation(accept=acceptance()), answering(proof=lambda _binding: kept))
    assert isinstance(mine, ReportDataMismatch)


def test_a_proof_sent_back_to_its_maker_does_not_answer() -> None:
    """Reflection: alice talks to somebody who shows her what she would show."""
    both = AcceptKey(frozenset({signer("alice").public, signer("bob").public}))

    def reflected(binding: Binding) -> dict[str, Any]:
        return ProveKey(signer("alice"))(Binding("channel-initiator", binding.transcript))

    mine, _ = refused(conversation(accept=both), answering(proof=reflected))
    assert isinstance(mine, SignatureInvalid)


@pytest.mark.parametrize(
    "changed",
    [{"purpose": "other-talk"}, {"context": {"run": "1", "trip": 3}}, {"context": {}}],
    ids=["purpose", "trip", "empty"],
)
def test_a_call_about_something_else_is_refused_before_anything_is_shown(
    changed: dict[str, Any],
) -> None:
    def never(_binding: Binding) -> dict[str, Any]:
        raise AssertionError("a proof was made for a conversation that is not due")

    _mine, theirs = refused(conversation(**changed), answering(proof=never))
    assert isinstance(theirs, ChannelRefused)


def _man_in_the_middle(field: str, value: object) -> Relay:
    """Replaces one field of the answer."""
    done = itertools.count()
    gathered = bytearray()

    def alter(data: bytes) -> bytes:
        gathered.extend(data)
        if len(gathered) < 4:
            return b""
        (size,) = struct.unpack(">I", gathered[:4])
        if len(gathered) < 4 + size or next(done):
            return b""
        document = json.loads(gathered[4 : 4 + size]) | {field: value}
        body = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        return struct.pack(">I", len(body)) + body

    return alter


@pytest.mark.parametrize("field", ["public_key", "nonce", "sealed"])
def test_no_field_of_the_answer_can_be_exchanged(field: str) -> None:
    kept: dict[str, str] = {}

    def keeps(binding: Binding) -> dict[str, Any]:
        kept.update(binding.transcript["answer"])
        return ProveKey(signer("bob"))(binding)

    with talking(theirs=answering(proof=keeps)):
        pass
    relay = (through, _man_in_the_middle(field, kept[field]))
    with pytest.raises((SignatureInvalid, ChannelBroken)), talking(relay=relay):
        pytest.fail("a channel opened with an exchanged field")


def _drain(channel: channels.AttestedChannel, received: list[bytes]) -> None:
    for _ in range(4):
        message = channel.receive(max_bytes=100)
        assert message is not None, "an end was received that nobody sent"
        received.append(message)


@pytest.mark.parametrize(
    ("name", "alter"),
    [
        ("flipped", lambda seen: [seen[-1][:-1] + bytes([seen[-1][-1] ^ 1])]),
        ("retyped", lambda seen: [b"\x01" + seen[-1][1:]]),
        ("repeated", lambda seen: [seen[-1], seen[-1]]),
        ("dropped", lambda seen: [] if len(seen) == 1 else [seen[-1]]),
        ("swapped", lambda seen: [] if len(seen) == 1 else [seen[1], seen[0]]),
        ("shorter", lambda seen: [b"\x02" + struct.pack(">I", 16) + seen[-1][-16:]]),
        ("endless", lambda seen: [b"\x02" + struct.pack(">I", MAX_PLAINTEXT + 17) + seen[-1]]),
        ("unknown", lambda seen: [b"\x09" + seen[-1][1:]]),
    ],
)
def test_nothing_but_what_was_sent_next_is_received(
    name: str, alter: Callable[[list[bytes]], list[bytes]]
) -> None:
    frames = Frames(2, alter)
    with talking(relay=(frames, through)) as (mine, theirs):
        mine.send(b"first")
        mine.send(b"second")
        mine.close()  # so that a swallowed frame ends in the end of the stream
        received: list[bytes] = []
        with pytest.raises((ChannelBroken, PeerUnreachable)):
            _drain(theirs, received)
        assert received in ([], [b"first"]), name
        with pytest.raises(ChannelBroken):
            theirs.receive(max_bytes=100)


def test_a_record_sent_back_to_its_sender_is_refused() -> None:
    sent: list[bytes] = []

    def keep(frames: list[bytes]) -> list[bytes]:
        sent.append(frames[-1])
        return [frames[-1]]

    def reflect(_records: list[bytes]) -> list[bytes]:
        return [sent[0]]

    relay = (
        Frames(2, keep),
        Frames(1, lambda seen: seen[-1:] if len(seen) == 1 else reflect(seen)),
    )
    with talking(relay=relay) as (mine, theirs):
        mine.send(b"to bob")
        assert theirs.receive(max_bytes=10) == b"to bob"
        theirs.send(b"to alice")
        with pytest.raises(ChannelBroken):
            mine.receive(max_bytes=10)


def test_a_stream_that_is_cut_is_no_end() -> None:
    lines: list[socket.socket] = []
    with talking(on_line=lines.append) as (mine, theirs):
        mine.send(b"one")
        lines[0].close()
        assert theirs.receive(max_bytes=10) == b"one"
        with pytest.raises(ChannelCut):
            theirs.receive(max_bytes=10)


def _fail_after(channel: channels.AttestedChannel, said: bytes) -> None:
    with channel:
        channel.send(said)
        raise RuntimeError


def test_who_fails_in_the_middle_does_not_say_that_it_is_over() -> None:
    with talking() as (mine, theirs):
        with pytest.raises(RuntimeError):
            _fail_after(mine, b"part of the work")
        assert theirs.receive(max_bytes=100) == b"part of the work"
        with pytest.raises(ChannelBroken):
            theirs.receive(max_bytes=100)


def test_a_message_longer_than_allowed_closes_the_channel() -> None:
    with talking() as (mine, theirs):
        mine.send(os.urandom(101))
        with pytest.raises(LimitExceeded):
            theirs.receive(max_bytes=100)
        with pytest.raises(ChannelBroken):
            theirs.receive(max_bytes=1000)


def test_records_before_a_ratchet_do_not_open_with_the_key_after_it() -> None:
    """Who takes the keys of today from memory reads nothing that was recorded before."""
    near, far = socket.socketpair()
    with near, far:
        writer = FrameWriter(near, Secret(bytes(32)))
        reader = FrameReader(far, Secret(bytes(32)))
        writer.send(b"yesterday")
        recorded = far.recv(100)
        near.sendall(recorded)
        assert reader.receive(max_bytes=100) == b"yesterday"
        writer.control(3)
        stepped = far.recv(100)
        writer.send(b"today")
        today = far.recv(100)
        near.sendall(stepped + today)
        assert reader.receive(max_bytes=100) == b"today"
        stolen = derive_next(Secret(bytes(32)), b"ratchet")
        near.sendall(today)
        assert FrameReader(far, stolen).receive(max_bytes=100) == b"today"
        replay = FrameReader(far, stolen)
        near.sendall(recorded)
        with pytest.raises(ChannelBroken):
            replay.receive(max_bytes=100)


def test_both_ends_export_one_secret_that_is_another_one_for_every_channel() -> None:
    exported = []
    for _ in range(2):
        with talking() as (mine, theirs):
            exported.append(mine.export("a-use"))
            assert theirs.export("a-use") == exported[-1]
            for end in (mine, theirs):  # once, whatever for
                for label in ("a-use", "another-use"):
                    with pytest.raises(ChannelBroken):
                        end.export(label)
    assert exported[0] != exported[1]


def test_ends_that_want_it_for_different_things_have_different_secrets() -> None:
    with talking() as (mine, theirs):
        assert mine.export("a-use") != theirs.export("another-use")


def test_a_channel_that_is_closed_exports_nothing() -> None:
    with talking() as (mine, _theirs):
        mine.close()
        with pytest.raises(ChannelBroken):
            mine.export("a-use")


def test_what_is_exported_does_not_pass_and_follows_the_ratchet_of_no_direction() -> None:
    passed = b""

    def listening(data: bytes) -> bytes:
        nonlocal passed
        passed += data
        return data

    with talking(relay=(listening, listening)) as (mine, theirs):
        mine.send(b"before")
        mine.ratchet()
        assert theirs.receive(max_bytes=6) == b"before"
        secret = mine.export("a-use")
        assert theirs.export("a-use") == secret
        mine.send(b"after")
        assert theirs.receive(max_bytes=5) == b"after"
    assert secret.reveal() not in passed


def test_a_caller_that_speaks_slowly_is_left_when_its_handshake_had_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each byte comes well within the time for a byte; all of them never do."""
    monkeypatch.setattr(channels, "HANDSHAKE_SECONDS", 0.5)
    with (
        called(answering()) as (address, outcome, thread),
        socket.create_connection(address) as caller,
    ):
        caller.sendall(struct.pack(">I", 1000))
        until = time.monotonic() + 30
        with suppress(OSError):
            while thread.is_alive() and time.monotonic() < until:
                caller.sendall(b" ")
                time.sleep(0.05)
        thread.join(1)
        assert isinstance(outcome.error, PeerUnreachable)
