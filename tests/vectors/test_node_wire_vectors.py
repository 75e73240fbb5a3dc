"""Wires between nodes against an independent generator (tools/vectorgen/node_wire.py)."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.base.secret import Secret
from sealtrain.training.errors import ChannelBroken
from sealtrain_nodes.relay import FrameRelay
from sealtrain_nodes.wire.frames import (
    HEAD,
    OVERHEAD,
    FrameOpener,
    Position,
    Sealer,
    form_of,
)
from sealtrain_nodes.wire.handshake import derive_keys, secret_info
from sealtrain_nodes.wire.link import HandedLink
from sealtrain_nodes.wire.membership import Membership, RankPeer

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "vectors" / "node-wire"


def vectors(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())["cases"]


def frames_of(vector: dict[str, Any]) -> list[bytes]:
    wire, found = bytes.fromhex(vector["wire"]), []
    while wire:
        _, size, _ = HEAD.unpack_from(wire)
        found.append(wire[: size + OVERHEAD])
        wire = wire[size + OVERHEAD :]
    return found


@pytest.mark.parametrize("vector", vectors("keys"), ids=lambda vector: vector["name"])
def test_keys_are_the_vectors(vector: dict[str, Any]) -> None:
    nodes = [bytes.fromhex(node) for node in vector["nodes"]]
    membership = Membership(tuple(RankPeer(("node", 1), node) for node in nodes))
    assert membership.digest == vector["hello"]["membership"]
    assert secret_info(vector["hello"]).hex() == vector["info"]
    secret = Secret(bytes.fromhex(vector["secret"]))
    keys = derive_keys(vector["hello"], vector["answer"], secret, peer=0)
    assert keys.initiator.reveal().hex() == vector["initiator_key"]
    assert keys.responder.reveal().hex() == vector["responder_key"]


@pytest.mark.parametrize("vector", vectors("frames")["forms"], ids=lambda vector: vector["form"])
def test_forms_are_the_vectors(vector: dict[str, Any]) -> None:
    assert form_of(vector["text"]).hex() == vector["form"]


@pytest.mark.parametrize(
    "vector", vectors("frames")["directions"], ids=lambda vector: vector["name"]
)
def test_frames_are_the_vectors(vector: dict[str, Any]) -> None:
    key, per_key = Secret(bytes.fromhex(vector["key"])), vector["frames_per_key"]
    sealer, opener = Sealer(key, frames_per_key=per_key), FrameOpener(key, frames_per_key=per_key)
    wire = frames_of(vector)
    assert len(wire) == len(vector["frames"])
    for frame, (kind, form, plain) in zip(wire, vector["frames"], strict=True):
        text = bytes.fromhex(plain)
        room = memoryview(bytearray(len(frame)))
        assert sealer.seal(kind, bytes.fromhex(form), memoryview(text), room) == len(frame)
        assert room == frame
        assert HEAD.unpack_from(frame) == (kind, len(text), bytes.fromhex(form))
        back = bytearray(len(text))
        opener.open(memoryview(frame), memoryview(back))
        assert back == text


@pytest.mark.claim("C156")
def test_a_frame_opens_once_in_its_place_and_unaltered() -> None:
    (vector,) = (each for each in vectors("frames")["directions"] if each["name"] == "pieces")
    wire = frames_of(vector)
    altered = [
        [
            wire[0],
            bytes(
                [
                    byte ^ (1 << (place % 8)) if at == place else byte
                    for at, byte in enumerate(wire[1])
                ]
            ),
        ]
        for place in range(len(wire[1]))
        if not 4 <= place < 8  # the length, which the reader compares before it opens
    ]
    orders = [[wire[0], wire[0]], [wire[1]], [wire[0], wire[2]], [wire[0], wire[1][:-1]], *altered]
    for order in orders:
        opener = FrameOpener(Secret(bytes.fromhex(vector["key"])))
        *right, wrong = order
        for frame in right:
            opener.open(memoryview(frame), memoryview(bytearray(len(frame) - OVERHEAD)))
        room = memoryview(bytearray(len(wrong) - OVERHEAD))
        with pytest.raises(ChannelBroken, check=carries(check="frame")):
            opener.open(memoryview(wrong), room)


@pytest.mark.claim("C763")
@pytest.mark.parametrize("vector", vectors("scripts"), ids=lambda vector: vector["name"])
def test_frames_of_scripts_are_the_vectors(vector: dict[str, Any]) -> None:
    """Out of a rank's frames come those of the network, and out of these the rank's again."""
    within, unused = bytes.fromhex(vector["inner"]["key"]), bytes(32)
    session = Position(key=Secret(bytes.fromhex(vector["key"])), number=1)
    wire = bytes.fromhex(vector["inner"]["wire"])

    seen = carried_by((within, unused), session, written_by_rank=wire)
    at = 0
    for frame in vector["network"]:
        cell = seen[at : at + frame["size"]]
        assert hashlib.sha256(cell).hexdigest() == frame["sha256"]
        at += frame["size"]
    assert at == len(seen)
    assert carried_by((unused, within), session, written_by_rank=None, network=seen) == wire


def carried_by(
    keys: tuple[bytes, bytes],
    session: Position,
    *,
    written_by_rank: bytes | None,
    network: bytes = b"",
) -> bytes:
    """What a keeper makes of what its rank, or the network, sends and ends."""
    ours, its = socket.socketpair()
    given = iter(keys)
    relay = FrameRelay(random=lambda _size: next(given))
    handed = relay.carry(HandedLink(rank=1, sock=its, sends=session, receives=session))
    source, sink = (ours, handed.sock) if written_by_rank is None else (handed.sock, ours)
    sent = network if written_by_rank is None else written_by_rank
    found = b""

    def write() -> None:
        source.sendall(sent)
        source.shutdown(socket.SHUT_WR)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    while data := sink.recv(1 << 20):
        found += data
    writing.join()
    ours.close()
    handed.sock.close()
    relay.close()
    return found


def test_a_second_run_of_the_generator_writes_the_same(tmp_path: Path) -> None:
    script = REPOSITORY / "tools/vectorgen/node_wire.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    for path in FOLDER.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
