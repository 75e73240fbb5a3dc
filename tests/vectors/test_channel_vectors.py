"""Channels against vectors of an independent generator (tools/vectorgen/channel.py)."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.secret import Secret
from sealtrain.training.errors import ChannelBroken
from sealtrain_together.channel.channel import AttestedChannel
from sealtrain_together.channel.frames import FrameReader, FrameWriter
from sealtrain_together.channel.handshake import answer_info, derive_keys, finish_info
from sealtrain_together.channel.proofs import Peer

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "channel"


def vectors(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())["cases"]


@pytest.mark.parametrize("vector", vectors("keys"), ids=lambda vector: vector["name"])
def test_keys_are_the_vectors(vector: dict[str, Any]) -> None:
    hello, answer, finish = vector["hello"], dict(vector["answer"]), dict(vector["finish"])
    proofs = answer.pop("proof"), finish.pop("proof")
    first = {"hello": hello, "answer": answer}
    assert answer_info(hello, answer["public_key"], answer["nonce"]) == (
        vector["answer_info"].encode()
    )
    assert finish_info(first) == vector["finish_info"].encode()
    answered, finished = (sha256_hex(canonical_json(proof)) for proof in proofs)
    keys = derive_keys(
        first | {"answered": answered, "finish": finish, "finished": finished},
        responder=Secret(bytes.fromhex(vector["responder_secret"])),
        initiator=Secret(bytes.fromhex(vector["initiator_secret"])),
        peer=Peer(kind="signature"),
    )
    assert keys.initiator.reveal().hex() == vector["initiator_key"]
    assert keys.responder.reveal().hex() == vector["responder_key"]
    for label, exported in vector["exported"].items():
        near, far = socket.socketpair()
        with near, far:
            channel = AttestedChannel(
                near,
                sends=FrameWriter(near, keys.initiator),
                receives=FrameReader(near, keys.responder),
                keys=keys,
            )
            assert channel.export(label).reveal().hex() == exported


def receive(vector: dict[str, Any], received: list[str], count: int) -> None:
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(5.0)
        near.sendall(bytes.fromhex(vector["wire"]))
        near.shutdown(socket.SHUT_WR)
        reader = FrameReader(far, Secret(bytes.fromhex(vector["key"])))
        for _ in range(count):
            message = reader.receive(max_bytes=100)
            assert message is not None
            received.append(message.decode())


@pytest.mark.parametrize(
    "vector", vectors("records")["received"], ids=lambda vector: vector["name"]
)
def test_messages_are_the_vectors(vector: dict[str, Any]) -> None:
    received: list[str] = []
    receive(vector, received, len(vector["messages"]))
    assert received == vector["messages"]


@pytest.mark.parametrize("vector", vectors("records")["broken"], ids=lambda vector: vector["name"])
def test_a_record_out_of_place_breaks_the_channel(vector: dict[str, Any]) -> None:
    received: list[str] = []
    with pytest.raises(ChannelBroken):
        receive(vector, received, len(vector["messages"]) + 1)
    assert received == vector["messages"]
