"""Nodes that are not of the run, and a network that meddles with those that are."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING
from polling import wait_until
from variants import variants

from sealtrain.errors import SealtrainError, UsageError
from sealtrain.training.errors import ChannelBroken, ChannelCut, ChannelRefused, PeerUnreachable
from sealtrain_nodes.wire.identity import NodeKey
from sealtrain_nodes.wire.meeting import Wire
from sealtrain_nodes.wire.membership import Listener, Membership, RankPeer

if not COLLECTING:
    import torch
    import torch.distributed as dist
    from wire_world import Relay, World, in_threads, ranks

pytestmark = pytest.mark.long

SHORT = 3.0
CANARY = b"canary-of-a-gradient-0123456789!"


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    while World.made:
        World.made.pop().close()


def refused(found: Any, check: str) -> bool:
    return isinstance(found, ChannelRefused) and found.check == check


def swapped(world: World, rank: int, key: NodeKey) -> Membership:
    """The membership as somebody with another key would write it."""
    peers = list(world.membership.peers)
    peers[rank] = RankPeer(peers[rank].address, key.public_key)
    return Membership(tuple(peers))


# --- Who may take part --------------------------------------------------------------------------


@pytest.mark.claim("C155")
def test_a_node_with_another_key_is_refused_by_the_rank_it_calls() -> None:
    world = World.of(2)
    impostor = NodeKey.make()
    first, second = in_threads(
        [
            lambda: world.connect(0, timeout_s=SHORT),
            lambda: world.connect(
                1, key=impostor, membership=swapped(world, 1, impostor), timeout_s=SHORT
            ),
        ]
    )
    assert refused(first, "key")
    assert isinstance(second, SealtrainError)


@pytest.mark.claim("C155")
def test_a_node_with_another_key_is_refused_by_the_rank_that_calls_it() -> None:
    world = World.of(2)
    impostor = NodeKey.make()
    first, second = in_threads(
        [
            lambda: world.connect(
                0, key=impostor, membership=swapped(world, 0, impostor), timeout_s=SHORT
            ),
            lambda: world.connect(1),
        ]
    )
    assert isinstance(first, SealtrainError)
    assert refused(second, "key")


@pytest.mark.claim("C155")
def test_a_rank_does_not_pass_for_another_with_the_key_of_its_own_node() -> None:
    world = World.of(3)
    third = world.keys[2]
    # It names itself rank 1, and everything else is right.
    lies = World(
        keys=[world.keys[0], third, third],
        listeners=[Listener.open("127.0.0.1") for _ in range(3)],
        membership=world.membership,
        session=world.session,
    )
    with pytest.raises(UsageError, check=carries(check="membership")):
        lies.connect(1)

    class Claiming(Membership):
        def peer(self, rank: int) -> RankPeer:
            known = super().peer(rank)
            return RankPeer(known.address, third.public_key) if rank == 1 else known

    claimed = Claiming(world.membership.peers)
    first, _ = in_threads(
        [
            lambda: world.connect(0, timeout_s=SHORT),
            lambda: lies.connect(1, membership=claimed, timeout_s=SHORT),
        ]
    )
    assert refused(first, "key")
    lies.close()


@pytest.mark.claim("C155")
def test_ranks_of_one_node_are_told_apart_by_their_statement() -> None:
    made = [NodeKey.make(), NodeKey.make()]
    keys = [made[0], made[0], made[1]]
    listeners = [Listener.open("127.0.0.1") for _ in range(3)]
    addresses = [listener.address for listener in listeners]

    def membership(order: tuple[int, ...]) -> Membership:
        return Membership(
            tuple(
                RankPeer(addresses[other], key.public_key)
                for other, key in zip(order, keys, strict=True)
            )
        )

    crossed = membership((1, 0, 2))
    world = World(keys, listeners, membership((0, 1, 2)), os.urandom(32))
    found = in_threads(
        [
            lambda: world.connect(0, timeout_s=SHORT),
            lambda: world.connect(1, timeout_s=SHORT),
            lambda: world.connect(2, membership=crossed, timeout_s=SHORT),
        ]
    )
    assert refused(found[0], "to")
    assert refused(found[1], "to")
    assert isinstance(found[2], SealtrainError)


@pytest.mark.claim("C155")
@pytest.mark.parametrize("check", variants(["session", "membership"], each_time=["session"]))
def test_a_node_of_another_session_or_membership_is_refused(check: str) -> None:
    world = World.of(2)
    other: dict[str, Any] = {"session_id": os.urandom(32)}
    if check == "membership":
        more = RankPeer(("127.0.0.1", 9), NodeKey.make().public_key)
        other = {"membership": Membership((*world.membership.peers, more))}
    first, _ = in_threads(
        [
            lambda: world.connect(0, timeout_s=SHORT),
            lambda: world.connect(1, timeout_s=SHORT, **other),
        ]
    )
    assert refused(first, check)


@pytest.mark.claim("C155")
def test_a_recorded_join_is_refused_when_it_is_sent_again() -> None:
    relay = Relay()
    world = World.of(2)
    relay.listen(world.membership.peer(0).address)
    relay.start()
    wires = in_threads(
        [
            lambda: world.connect(0),
            lambda: world.connect(1, membership=world.reached_by(1, relay.address)),
        ]
    )
    assert all(isinstance(wire, Wire) for wire in wires)
    in_threads([wire.close for wire in wires])
    relay.close()
    recorded = bytes(relay.ways[0])
    again = World(
        world.keys, [Listener.open("127.0.0.1") for _ in range(2)], world.membership, world.session
    )

    def replay() -> bytes:
        with socket.create_connection(again.listeners[0].address, timeout=SHORT) as sock:
            sock.sendall(recorded)
            sock.settimeout(SHORT)
            answer = b""
            while part := sock.recv(65_536):
                answer += part
            return answer

    first, answer = in_threads([lambda: again.connect(0, timeout_s=SHORT), replay])
    assert isinstance(first, ChannelRefused | PeerUnreachable)
    # What came back is a handshake of TLS and an alert; no statement and no frame.
    assert not isinstance(answer, bytes) or len(answer) < 2_000
    again.close()


def speak(address: tuple[str, int], words: bytes) -> None:
    with socket.create_connection(address) as sock:
        sock.sendall(words)
        sock.settimeout(SHORT)
        while sock.recv(4096):
            pass


def old_tls(address: tuple[str, int]) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(address, timeout=SHORT) as sock:
        try:
            context.wrap_socket(sock)
        except (ssl.SSLError, OSError) as error:
            return type(error).__name__
    return "connected"


@pytest.mark.claim("C155")
def test_strangers_at_the_listener_do_not_keep_the_ranks_from_meeting() -> None:
    world = World.of(2)
    address = world.membership.peer(0).address
    silent = [socket.create_connection(address) for _ in range(20)]
    found = in_threads(
        [
            lambda: world.connect(0),
            lambda: speak(address, b"GET / HTTP/1.1\r\nHost: node\r\n\r\n"),
            lambda: speak(address, b"\x16\x03\x01\xff\xff" + bytes(70_000)),
            lambda: speak(address, os.urandom(4096)),
            lambda: old_tls(address),
            lambda: (time.sleep(0.5), world.connect(1))[1],
        ]
    )
    assert isinstance(found[0], Wire)
    assert isinstance(found[5], Wire)
    assert found[4] != "connected"
    in_threads([found[0].close, found[5].close])
    for sock in silent:
        sock.close()


@pytest.mark.claim("C272")
@pytest.mark.claim("C551")
@pytest.mark.parametrize("proven", ["before", "meanwhile"])
def test_strangers_that_hold_every_place_keep_no_rank_out(proven: str) -> None:
    """More silent connections than a rank answers at a time, and each that is ended comes again."""
    world = World.of(3)
    address, over = world.membership.peer(0).address, threading.Event()
    held: list[socket.socket] = []

    def crowd() -> None:
        while not over.wait(0.002):
            with suppress(OSError):
                held.append(socket.create_connection(address, timeout=1))

    crowding = [threading.Thread(target=crowd, daemon=True) for _ in range(3)]
    held += [socket.create_connection(address, timeout=5) for _ in range(150)]
    for caller in crowding:
        caller.start()
    late = 0.0 if proven == "before" else 1.5
    try:
        found = in_threads(
            [
                lambda: world.connect(0, timeout_s=12.0),
                lambda: (time.sleep(late), world.connect(1, timeout_s=12.0))[1],
                lambda: (time.sleep(late), world.connect(2, timeout_s=12.0))[1],
            ]
        )
    finally:
        over.set()
        for caller in crowding:
            caller.join(5)
        for sock in held:
            sock.close()
    assert [type(value) for value in found] == [Wire] * 3
    in_threads([item.close for item in found])


@pytest.mark.claim("C155")
def test_ranks_that_stay_away_are_named() -> None:
    world = World.of(3)
    with pytest.raises(PeerUnreachable, check=carries(check="membership", got="rank 1, rank 2")):
        world.connect(0, timeout_s=0.5)
    world.close()


def test_a_key_is_shown_nowhere_and_stays_in_no_file() -> None:
    key = NodeKey.make(lambda size: b"k" * size)
    assert "kkkk" not in repr(vars(key))
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    key.context(ssl.PROTOCOL_TLS_CLIENT, [NodeKey.make().public_key])
    assert {path.name for path in Path("/proc/self/fd").iterdir()} <= before


# --- What the network does ----------------------------------------------------------------------


def sums(rank: int, wire: Wire) -> list[float]:
    """Two reductions of some megabytes."""
    found = []
    for number in range(2):
        work = torch.full((1_000_000,), float(rank + number))
        dist.all_reduce(work)
        found += [work.min().item(), work.max().item()]
    return found


RIGHT = [1.0, 1.0, 3.0, 3.0]


def flipped(_way: int, number: int, frame: bytes) -> list[bytes]:
    """One bit of a ciphertext."""
    return [frame[:5000] + bytes([frame[5000] ^ 4]) + frame[5001:]] if number == 3 else [frame]


def tag_flipped(_way: int, number: int, frame: bytes) -> list[bytes]:
    return [frame[:-1] + bytes([frame[-1] ^ 1])] if number == 3 else [frame]


def form_changed(_way: int, number: int, frame: bytes) -> list[bytes]:
    return [frame[:8] + bytes([frame[8] ^ 1]) + frame[9:]] if number == 3 else [frame]


def dropped(_way: int, number: int, frame: bytes) -> list[bytes]:
    return [] if number == 3 else [frame]


def repeated(_way: int, number: int, frame: bytes) -> list[bytes]:
    return [frame, frame] if number == 2 else [frame]


def shortened(_way: int, number: int, frame: bytes) -> list[bytes]:
    """A length that says less than was sent."""
    if number != 3:
        return [frame]
    return [frame[:4] + struct.pack(">I", 16) + frame[8:16] + frame[16:48]]


def oversized(_way: int, number: int, frame: bytes) -> list[bytes]:
    return [frame[:4] + b"\xff\xff\xff\xff" + frame[8:]] if number == 3 else [frame]


def ended(_way: int, number: int, frame: bytes) -> list[bytes]:
    """An end that nobody said."""
    return [b"\x02" + bytes(15) + bytes(16)] if number == 3 else [frame]


def garbage(_way: int, number: int, frame: bytes) -> list[bytes]:
    return [os.urandom(len(frame))] if number == 3 else [frame]


def cut(_way: int, number: int, frame: bytes) -> list[bytes] | None:
    return None if number == 3 else [frame]


class Moved:
    """Two frames of a direction change places."""

    def __init__(self) -> None:
        self.held: dict[int, bytes] = {}

    def __call__(self, way: int, number: int, frame: bytes) -> list[bytes]:
        if number == 2:
            self.held[way] = frame
            return []
        return [frame, self.held[way]] if number == 3 else [frame]


class Reflected:
    """A rank gets back what it sent itself."""

    def __init__(self) -> None:
        self.sent: dict[int, bytes] = {}

    def __call__(self, way: int, number: int, frame: bytes) -> list[bytes]:
        if number == 2:
            self.sent[way] = frame
        own = self.sent.get(1 - way)
        return [own if number == 3 and own is not None else frame]


@pytest.mark.claim("C156")
@pytest.mark.parametrize(
    "meddle",
    [
        flipped,
        *(
            pytest.param(meddle, marks=pytest.mark.nightly)
            for meddle in (tag_flipped, form_changed)
        ),
        dropped,
        repeated,
        *(
            pytest.param(meddle, marks=pytest.mark.nightly)
            for meddle in (shortened, oversized, ended, garbage)
        ),
        Moved(),
        Reflected(),
    ],
    ids=lambda meddle: getattr(meddle, "__name__", type(meddle).__name__.lower()),
)
def test_a_frame_that_was_meddled_with_ends_the_group_and_no_sum_is_wrong(
    meddle: Callable[[int, int, bytes], list[bytes]],
) -> None:
    found = ranks(2, sums, through=Relay(meddle), timeout_s=6.0)
    kinds = {type(each) for each in found}
    assert kinds <= {ChannelBroken, ChannelCut}, found
    assert ChannelBroken in kinds
    assert {each.check for each in found} <= {"frame", "peer", "wire"}


@pytest.mark.claim("C156")
def test_a_wire_that_is_cut_in_the_middle_of_a_tensor_ends_the_group() -> None:
    for found in ranks(2, sums, through=Relay(cut), timeout_s=6.0):
        assert isinstance(found, ChannelCut)
        assert found.check in ("wire", "peer")


if not COLLECTING:

    class Crumbled(Relay):
        """A network that delivers a few bytes at a time, and pauses."""

        def _pass(self, target: socket.socket, data: bytes) -> None:
            view, step = memoryview(data), 1
            while view:
                target.sendall(view[:step])
                view = view[step:]
                step = min(step * 3, 40_000)
            time.sleep(0.001)


@pytest.mark.claim("C156")
def test_a_network_that_breaks_up_the_stream_changes_nothing() -> None:
    assert ranks(2, sums, through=Crumbled()) == [RIGHT, RIGHT]


@pytest.mark.claim("C156")
def test_traffic_between_nodes_shows_nothing_of_a_tensor() -> None:
    def work(rank: int, wire: Wire) -> bytes:
        secret = torch.frombuffer(bytearray(CANARY * 40_000), dtype=torch.uint8)
        dist.broadcast(secret if rank == 0 else torch.empty_like(secret), 0)
        if rank == 1:
            dist.send(secret[:3200], 0)
            return CANARY
        back = torch.empty(3200, dtype=torch.uint8)
        dist.recv(back, 1)
        return back.numpy().tobytes()[: len(CANARY)]

    relay = Relay()
    assert ranks(2, work, through=relay) == [CANARY, CANARY]
    assert len(relay.seen) > 40_000 * len(CANARY)
    for start in range(0, len(CANARY) - 7):
        assert CANARY[start : start + 8] not in relay.seen
    assert b"membership" not in relay.seen  # statements are encrypted, too


# --- What a rank does ---------------------------------------------------------------------------


@pytest.mark.claim("C157")
def test_a_silent_rank_ends_the_group_in_time() -> None:
    gave_up = mmap.mmap(-1, 1)  # shared by the ranks

    def work(rank: int, wire: Wire) -> None:
        if rank == 1:
            wait_until(lambda: gave_up[0], 20)
        try:
            dist.all_reduce(torch.ones(100_000))
        finally:
            gave_up[0] = 1

    begin = time.monotonic()
    first, second = ranks(2, work, timeout_s=1.0)
    assert isinstance(first, PeerUnreachable)
    assert first.check == "timeout"
    assert isinstance(second, SealtrainError)
    assert time.monotonic() - begin < 12


@pytest.mark.claim("C157")
def test_a_rank_that_answers_a_little_at_a_time_ends_the_group_in_time() -> None:
    class Slow(Relay):
        def _pass(self, target: socket.socket, data: bytes) -> None:
            if len(data) < 60_000:
                target.sendall(data)
                return
            for start in range(0, len(data), 4096):
                target.sendall(data[start : start + 4096])
                time.sleep(0.05)

    first, second = ranks(2, sums, through=Slow(), timeout_s=1.0)
    assert {type(first), type(second)} <= {PeerUnreachable, ChannelCut}
    assert PeerUnreachable in {type(first), type(second)}


@pytest.mark.claim("C157")
def test_a_rank_that_is_killed_is_named_by_all_others() -> None:
    def work(rank: int, wire: Wire) -> Any:
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                dist.all_reduce(torch.ones(100_000))
        except SealtrainError as error:
            found = error
        try:
            dist.barrier()
        except SealtrainError as error:
            assert error is found is wire.failure  # noqa: PT017
        return type(found).__name__, wire.lost_rank

    found = ranks(3, work)
    assert found == [("ChannelCut", 1), None, ("ChannelCut", 1)]


@pytest.mark.claim("C157")
@pytest.mark.parametrize("number", range(3))
def test_two_of_three_ranks_that_are_killed_at_once_end_the_third(number: int) -> None:
    def work(rank: int, wire: Wire) -> Any:
        whole = torch.full((400_000,), 1.0)
        dist.barrier()
        if rank:
            threading.Timer(0.1 * number, os.kill, (os.getpid(), signal.SIGKILL)).start()
        sums = set()
        try:
            while True:
                work = whole.clone()
                dist.all_reduce(work)
                sums |= {work.min().item(), work.max().item()}
        except SealtrainError as error:
            return type(error).__name__, wire.lost_rank, sorted(sums)

    first, *others = ranks(3, work)
    assert others == [None, None]
    kind, lost, sums = first
    assert kind == "ChannelCut"
    assert lost in (1, 2)
    assert sums in ([], [3.0])


@pytest.mark.claim("C157")
def test_the_end_of_a_rank_that_meant_it_is_told_from_a_cut() -> None:
    def work(rank: int, wire: Wire) -> str:
        dist.barrier()
        if rank == 0:
            with pytest.raises(ChannelCut) as found:
                dist.all_reduce(torch.ones(8))
            return str(found.value.check)
        return "left"

    assert ranks(2, work) == ["end", "left"]


@pytest.mark.claim("C157")
def test_a_lost_rank_ends_a_backward_pass_of_ddp_with_its_error() -> None:
    def work(rank: int, wire: Wire) -> Any:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
        before = [each.clone() for each in model.parameters()]
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises((SealtrainError, RuntimeError)):
            model(torch.ones(2, 300)).sum().backward()
        same = all(map(torch.equal, before, model.parameters()))
        return type(wire.failure).__name__, wire.lost_rank, same

    assert ranks(2, work) == [("ChannelCut", 1, True), None]
