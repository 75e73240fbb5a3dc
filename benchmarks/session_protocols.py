"""What the wire between ranks and the attested channel cost: a handshake, and a GiB of frames.

    python benchmarks/session_protocols.py [--json] [--handshakes 40] [--mebibytes 1024]

Both ends are threads of this process, on a socket pair. Figures are processor time of both ends
together (the network costs each the same): of a handshake the median, of frames the whole. Guests
are simulated, so evidence is made and verified as that of hardware is, under another root.

==============  ==================================================================================
``wire``        spec/node-wire.md: TLS 1.3 under keys of the membership, then one sealed secret
``keys``        spec/attested-channel.md, both ends prove a key
``guests``      the same, both ends prove a guest
``wire_gib``    a GiB in frames of the wire, written into place
``channel_gib`` a GiB in messages of the channel
==============  ==================================================================================
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from measured_on import machine
from sealtrain.base.secret import Secret
from sealtrain_nodes.wire.frames import HEAD, OVERHEAD, FrameOpener, Sealer
from sealtrain_nodes.wire.handshake import Meeting
from sealtrain_nodes.wire.handshake import initiate as wire_initiate
from sealtrain_nodes.wire.handshake import respond as wire_respond
from sealtrain_nodes.wire.identity import NodeKey
from sealtrain_nodes.wire.membership import Membership, RankPeer
from sealtrain_together.channel.frames import FrameReader, FrameWriter
from sealtrain_together.channel.handshake import initiate, respond

WORLDS = Path(__file__).resolve().parents[1] / "tests" / "support"  # guests and keys that prove
FRAME = 512 << 10
MESSAGE = 8 << 20

Way = Callable[[socket.socket], object]


class WireStream:
    """A connection as the wire's handshake takes it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sendall = sock.sendall
        self._socket = sock

    def receive(self, size: int) -> bytes:
        """Up to so many bytes."""
        return self._socket.recv(size)


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--json", action="store_true")
    asked.add_argument("--handshakes", type=int, default=40)
    asked.add_argument("--mebibytes", type=int, default=1024)
    given = asked.parse_args()
    sys.path.insert(0, str(WORLDS))
    ways = {"wire": wire(), "keys": channel(guests=False), "guests": channel(guests=True)}
    found: dict[str, Any] = {"machine": machine("cryptography")}
    for name, (each_name, other) in ways.items():
        times = [together(each_name, other) for _ in range(given.handshakes)]
        found[name] = round(1000 * statistics.median(times), 2)
    gib = given.mebibytes / 1024
    found["wire_gib"] = round(together(*wire_frames(given.mebibytes << 20)) / gib, 2)
    found["channel_gib"] = round(together(*channel_frames(given.mebibytes << 20)) / gib, 2)
    if given.json:
        print(json.dumps(found))
        return
    print("machine      " + ", ".join(map(str, found.pop("machine").values())))
    for name, value in found.items():
        print(f"{name:<12} {value:.2f} {'s' if name.endswith('gib') else 'ms'}")


def together(one: Way, other: Way) -> float:
    """Processor seconds of both ends of a connection."""
    first, second = socket.socketpair()
    with first, second:
        before = time.process_time()
        thread = threading.Thread(target=other, args=(second,))
        thread.start()
        one(first)
        thread.join()
        return time.process_time() - before


def wire() -> tuple[Way, Way]:
    """Two nodes of one rank each."""
    keys = (NodeKey.make(), NodeKey.make())
    places = tuple(RankPeer(("127.0.0.1", 1), key.public_key) for key in keys)
    membership, session = Membership(places), os.urandom(32)
    lower, higher = (
        Meeting(membership=membership, rank=rank, key=key, session=session, random=os.urandom)
        for rank, key in enumerate(keys)
    )
    # A rank makes its contexts once for all peers.
    client = keys[1].context(ssl.PROTOCOL_TLS_CLIENT, [keys[0].public_key])
    server = keys[0].context(ssl.PROTOCOL_TLS_SERVER, [keys[1].public_key])
    return (
        lambda sock: wire_initiate(WireStream(sock), higher, 0, client),
        lambda sock: wire_respond(WireStream(sock), lower, server),
    )


def channel(*, guests: bool) -> tuple[Way, Way]:
    """Two ends that prove keys, or guests."""
    from channel_world import acceptance, answering, conversation, guest

    ours, theirs = conversation(), answering()
    if guests:
        ours, theirs = (
            replace(talk, proof=guest(), accept=acceptance()) for talk in (ours, theirs)
        )
    return lambda sock: initiate(sock, ours), lambda sock: respond(sock, theirs)


def wire_frames(size: int) -> tuple[Way, Way]:
    """So many bytes, in frames of the wire."""
    key, plain = bytes(32), memoryview(bytearray(FRAME))

    def send(sock: socket.socket) -> None:
        sealer, frame = Sealer(Secret(key)), memoryview(bytearray(FRAME + OVERHEAD))
        for _ in range(size // FRAME):
            sock.sendall(frame[: sealer.seal(1, bytes(8), plain, frame)])

    def receive(sock: socket.socket) -> None:
        opener, frame = FrameOpener(Secret(key)), memoryview(bytearray(FRAME + OVERHEAD))
        target = memoryview(bytearray(FRAME))
        for _ in range(size // FRAME):
            sock.recv_into(frame, flags=socket.MSG_WAITALL)
            assert HEAD.unpack_from(frame)[1] == FRAME
            opener.open(frame, target)

    return send, receive


def channel_frames(size: int) -> tuple[Way, Way]:
    """So many bytes, in messages of the channel."""
    key, message = bytes(32), bytearray(MESSAGE)
    times = max(1, size // MESSAGE)

    def send(sock: socket.socket) -> None:
        writer = FrameWriter(sock, Secret(key))
        for _ in range(times):
            writer.send(message)

    def receive(sock: socket.socket) -> None:
        reader, target = FrameReader(sock, Secret(key)), memoryview(bytearray(MESSAGE))
        for _ in range(times):
            assert reader.receive_into(target) == MESSAGE

    return send, receive


if __name__ == "__main__":
    main()
