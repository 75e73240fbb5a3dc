"""Two ranks on a network that loses, delays, doubles and reorders packets.

    lossy_player.py HOW [dies]

Run under ``unshare --map-root-user --net``: makes two further namespaces, a rank in each, and a
line between them. HOW is ``bridge``: this program carries every Ethernet frame, or does not; or
``netem``: the kernel does it (``tc``). With ``dies`` no packet passes any more, from a moment in
the middle of the sums on. Prints a JSON line: what each rank returned, or its error, and what was
lost.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HOW, DIES = sys.argv[1], sys.argv[2:] == ["dies"]
HOSTS = ("10.99.0.1", "10.99.0.2")
PORT = 7000
SUMS, ELEMENTS = 6, 120_000
LOST, DOUBLED, LATE = 0.02, 0.02, 0.10
DELAY_S, LATE_S = 0.003, 0.015
ANSWER_S = 8.0 if DIES else 60.0
_CLONE_NEWNET = 0x40000000
_SIOCETHTOOL, _ETHTOOL_STXCSUM = 0x8946, 0x17


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def holder() -> subprocess.Popen[bytes]:
    """A process that keeps a namespace of its own."""
    made = subprocess.Popen(["unshare", "--net", "sleep", "300"])
    here, until = Path("/proc/self/ns/net").readlink(), time.monotonic() + 10
    while Path(f"/proc/{made.pid}/ns/net").readlink() == here and time.monotonic() < until:
        time.sleep(0.01)
    return made


def inside(pid: int, *words: str) -> None:
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *words], check=True)


def enter(pid: int) -> None:
    """Move this process into a namespace."""
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def whole_packets(interface: str) -> None:
    """Have the kernel finish packets: it leaves checksums to cards, and there is none."""
    value = ctypes.create_string_buffer(struct.pack("II", _ETHTOOL_STXCSUM, 0))
    request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


class Bridge:
    """Carries frames between two interfaces, and meddles as a bad network does."""

    def __init__(self, names: list[str]) -> None:
        self.lost = self.late = self.carried = 0
        self.dead = threading.Event()
        self._sides = []
        for name in names:
            side = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            side.bind((name, 0))
            self._sides.append(side)
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        chance = random.Random(5)  # noqa: S311  # the same losses every time
        waiting: list[tuple[float, int, int, bytes]] = []
        number = 0
        while True:
            pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
            for side in select.select(self._sides, [], [], pause)[0]:
                frame, origin = side.recvfrom(65_536)
                if origin[2] == socket.PACKET_OUTGOING:
                    continue
                if self.dead.is_set() or chance.random() < LOST:
                    self.lost += 1
                    continue
                target = 1 - self._sides.index(side)
                late = chance.random() < LATE
                self.late += late
                for _ in range(1 + (chance.random() < DOUBLED)):
                    number += 1
                    at = time.monotonic() + (LATE_S if late else DELAY_S)
                    heapq.heappush(waiting, (at, number, target, frame))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, target, frame = heapq.heappop(waiting)
                self.carried += 1
                self._sides[target].send(frame)


def sums(wire: Any, told: int) -> list[float]:
    import torch
    import torch.distributed as dist

    found = []
    for number in range(100_000 if DIES else SUMS):
        work = torch.full((ELEMENTS,), float(wire.rank + number))
        dist.all_reduce(work)
        found += [work.min().item(), work.max().item()]
        if number == 1 and DIES:
            os.write(told, b"begun\n")
    return found


def rank_in(pid: int, rank: int, keys: Any, session: bytes) -> tuple[int, int]:
    """Fork a rank into a namespace; its process id, and what it says."""
    back, there = os.pipe()
    child = os.fork()
    if child:
        os.close(there)
        return child, back
    from sealtrain.errors import SealtrainError
    from sealtrain_nodes.wire.joining import join, leave
    from sealtrain_nodes.wire.meeting import connect
    from sealtrain_nodes.wire.membership import Listener, Membership, RankPeer

    try:
        enter(pid)
        peers = (
            RankPeer((host, PORT), key.public_key) for host, key in zip(HOSTS, keys, strict=True)
        )
        wire = connect(
            Membership(tuple(peers)),
            rank,
            Listener.open(HOSTS[rank], PORT),
            keys[rank],
            session,
            timeout_s=60.0,
        )
        join(wire, timeout_s=ANSWER_S)
        try:
            said: Any = sums(wire, there)
            leave()
        except SealtrainError as error:
            said = error.code
    except BaseException as error:
        said = repr(error)
    os.write(there, json.dumps(said).encode())
    os._exit(0)


def main() -> None:
    from sealtrain_nodes.wire.identity import NodeKey

    holders = [holder() for _ in HOSTS]
    try:
        ip("link", "set", "lo", "up")
        pids = [holder.pid for holder in holders]
        if HOW == "netem":
            ip("link", "add", "eth0", "netns", str(pids[0]), "type", "veth",
               "peer", "name", "eth0", "netns", str(pids[1]))  # fmt: skip
        for number, pid in enumerate(pids):
            if HOW == "bridge":
                ip("link", "add", f"side{number}", "type", "veth",
                   "peer", "name", "eth0", "netns", str(pid))  # fmt: skip
                ip("link", "set", f"side{number}", "up")
            inside(pid, "ip", "address", "add", f"{HOSTS[number]}/24", "dev", "eth0")
            inside(pid, "ip", "link", "set", "eth0", "up")
            inside(pid, "ip", "link", "set", "lo", "up")
            if HOW == "netem":
                inside(pid, "tc", "qdisc", "add", "dev", "eth0", "root", "netem",
                       "delay", "3ms", "2ms", "loss", f"{LOST:%}", "duplicate", f"{DOUBLED:%}",
                       "reorder", f"{1 - LATE:%}")  # fmt: skip
            else:
                changer = os.fork()
                if not changer:
                    enter(pid)
                    whole_packets("eth0")
                    os._exit(0)
                assert os.waitpid(changer, 0)[1] == 0
        import torch.distributed  # noqa: F401  # once, for both ranks

        keys, session = [NodeKey.make() for _ in HOSTS], os.urandom(32)
        children = [rank_in(pid, rank, keys, session) for rank, pid in enumerate(pids)]
        bridge = Bridge(["side0", "side1"]) if HOW == "bridge" else None
        found = []
        for _, back in children:
            data = b""
            while part := os.read(back, 65_536):
                data += part
                if b"begun\n" in data and bridge is not None:
                    bridge.dead.set()
            found.append(json.loads(data.removeprefix(b"begun\n")))
        for child, _ in children:
            os.waitpid(child, 0)
        counted = [bridge.carried, bridge.lost, bridge.late] if bridge else []
        print(json.dumps({"found": found, "counted": counted}))
    finally:
        for each_holder in holders:
            each_holder.kill()
            each_holder.wait()


if __name__ == "__main__":
    main()
