"""What a lead and its nodes say to each other while a run trains, where one of them is hostile."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from carrying import carries
from channel_world import acceptance, guest
from manifest_world import World
from meeting_world import NOW, RUN_ID, Lead, Node, Run, nodes_world, receipt_of
from polling import wait_until
from world import digest

from sealtrain.base.encoding import to_base64
from sealtrain.consortium.errors import ApprovalRevoked
from sealtrain.errors import LeaseStale, LimitExceeded, NodeLost, Refused, SealtrainError
from sealtrain.release.errors import DatasetWithdrawn
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import CheckpointRefused, NotSealed, SealRefused
from sealtrain.sealing.store import SealedStore
from sealtrain.training.checkpoints.checkpoint import CheckpointRef, load
from sealtrain.training.checkpoints.shardnames import ShardRef
from sealtrain.training.checkpoints.shards import open_shard
from sealtrain.training.errors import ChannelBroken, ChannelCut, PeerUnreachable, RankLost
from sealtrain_nodes.company import NodeCompany
from sealtrain_nodes.errors import NodeRefused
from sealtrain_nodes.guest.lead import LeadNode
from sealtrain_nodes.guest.leadchannel import LeadChannel
from sealtrain_nodes.messages import PURPOSE, send
from sealtrain_together.channel.channel import AttestedChannel, accept
from sealtrain_together.channel.handshake import ChannelTerms

pytestmark = pytest.mark.claim("C161")

NODES, RANKS = 3, 2
SESSION = digest("session", 16)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return nodes_world(tmp_path_factory.mktemp("nodes"), nodes=NODES, ranks=RANKS)


# -- hostile nodes ---------------------------------------------------------------------------------


Receive = Callable[[BinaryIO, int], None]
"""Writes so many bytes of node 0 to a file."""


def receives_nothing(_file: BinaryIO, size: int) -> None:
    raise AssertionError(f"{size} bytes that nobody announced")


def receives(data: bytes) -> Receive:
    def receive(file: BinaryIO, size: int) -> None:
        assert size == len(data)
        file.write(data)

    return receive


class Training:
    """A lead that trains, and its two nodes."""

    def __init__(self, lead: LeadNode, run: Run, nodes: list[Node]) -> None:
        self.lead, self.run, self.nodes = lead, run, nodes

    def end(self) -> SealtrainError:
        """What the lead's lease keeper is told to end training with."""
        found = wait_until(lambda: self.run.lease_keeper.told, 10)[0]
        assert isinstance(found, SealtrainError)
        return found


@contextmanager
def training(world: World, folder: Path) -> Iterator[Training]:
    run = Run(world, folder)
    with Lead(run) as meeting, ExitStack() as stack:
        nodes = _introduced(world, meeting, stack)
        lead = meeting.met()
        lead.begin(None)
        store = SealedStore(folder, DataKey(bytes(32)), label=RUN_ID)
        for node in nodes:
            assert node.channel.take_checkpoint(store, receives_nothing) is None
        with lead.listen():
            yield Training(lead, run, nodes)


def _introduced(world: World, meeting: Lead, stack: ExitStack) -> list[Node]:
    """Two nodes that joined and know each other."""
    nodes = [stack.enter_context(Node(world, n, meeting.address)) for n in (1, 2)]
    for node in nodes:
        node.welcomed()
    ready = [threading.Thread(target=_introduce, args=(node, stack)) for node in nodes]
    for party in ready:
        party.start()
    for party in ready:
        party.join(20)
    return nodes


def _introduce(node: Node, stack: ExitStack) -> None:
    stack.enter_context(node.introduced())


@pytest.fixture
def trained(world: World, tmp_path: Path) -> Iterator[Training]:
    with training(world, tmp_path) as found:
        yield found


def test_an_honest_run_ends_when_all_nodes_are_done(trained: Training) -> None:
    (event, fields), *rest = trained.run.log
    assert (event, rest) == ("nodes.joined", [])
    assert [node["run_id"] for node in fields["nodes"]] == list(trained.lead.run_ids)
    assert len({node["evidence"] for node in fields["nodes"]}) == NODES - 1
    assert len(trained.run.receipts) == NODES - 1
    one, two = trained.nodes
    one.channel.tell("releases", {"releases": one.releases()})
    one.channel.tell("done", {})
    two.channel.tell("done", {})
    trained.lead.finish()
    assert len(trained.run.receipts) == NODES
    assert trained.run.lease_keeper.told == []


@pytest.mark.claim("C261")
def test_a_run_whose_receipts_have_no_room_ends_before_a_step_and_says_so_to_its_nodes(
    world: World, tmp_path: Path
) -> None:
    run = Run(world, tmp_path)

    def full(_receipts: list[dict[str, Any]]) -> None:
        raise LimitExceeded("no room", check="receipts")

    run.keep_receipts = full  # type: ignore[method-assign]
    with Lead(run, use=lambda lead: lead.begin(None)) as meeting, ExitStack() as stack:
        nodes = _introduced(world, meeting, stack)
        assert isinstance(meeting.ended(), LimitExceeded)
        store = SealedStore(tmp_path, DataKey(bytes(32)), label=RUN_ID)
        for node in nodes:
            with pytest.raises(LimitExceeded):
                node.channel.take_checkpoint(store, receives_nothing)


def test_a_node_that_is_done_is_heard_no_more(trained: Training) -> None:
    """Whatever it says then changes neither receipts nor the end of the run."""
    one, two = trained.nodes
    for node in (one, two):
        node.channel.tell("done", {})
    trained.lead.finish()
    kept = len(trained.run.receipts)
    one.channel.tell("releases", {"releases": one.releases()})
    one.channel.tell("stopping", {"code": "approval-revoked"})
    two.channel.close()
    time.sleep(0.3)
    assert (len(trained.run.receipts), trained.run.lease_keeper.told) == (kept, [])


def test_a_node_that_is_done_too_early_does_not_end_the_run(trained: Training) -> None:
    one, two = trained.nodes
    one.channel.tell("done", {})
    two.channel.close()
    with pytest.raises(NodeLost):
        trained.lead.finish()


@pytest.mark.claim("C542")
def test_a_node_that_says_nothing_keeps_no_lead_beyond_its_lease(trained: Training) -> None:
    one, _two = trained.nodes
    one.channel.tell("done", {})
    trained.run.lease_seconds = 0.0
    began = time.monotonic()
    with pytest.raises(NodeLost):
        trained.lead.finish()
    assert time.monotonic() - began < 10


SPEECH: dict[str, tuple[Callable[[Node], tuple[str, Any]], type[SealtrainError]]] = {
    "ready twice": (
        lambda node: ("ready", {
            "ports": [1, 2], "public_key": to_base64(bytes(32)), "releases": node.releases(),
            "from": "2026-01-01T00:00:00Z",
        }),
        ChannelBroken,
    ),
    "nothing": (lambda _node: ("done", None), ChannelBroken),
    "unknown": (lambda _node: ("begin", {"checkpoint": None}), ChannelBroken),
    "not due": (lambda _node: ("refused", {"code": "node-lost", "message": "x"}), ChannelBroken),
    "too long": (lambda _node: ("stopping", {"code": "a" * (5 << 20)}), ChannelBroken),
    "a code of another form": (lambda _node: ("stopping", {"code": "Á"}), ChannelBroken),
    "no receipts": (lambda _node: ("releases", {"releases": []}), ChannelBroken),
    "garbage for receipts": (
        lambda _node: (
            "releases", {"releases": [{"receipt": {}, "proof": {}, "rotations": []}]}
        ),
        NodeRefused,
    ),
    "receipts of another node": (
        lambda node: ("releases", {"releases": node.world.record(
            receipt_of(node.world, 2, node.welcome.session)
        )}),
        NodeRefused,
    ),
    "receipts of another session": (
        lambda node: ("releases", {"releases": node.releases(session=SESSION)}), NodeRefused,
    ),
    "the lead's receipts": (
        lambda node: ("releases", {"releases": node.world.record(node.world.receipt())}),
        NodeRefused,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("said", "error"), SPEECH.values(), ids=SPEECH)
def test_a_node_that_says_what_no_node_says_ends_the_run(
    trained: Training, said: Callable[[Node], tuple[str, Any]], error: type[SealtrainError]
) -> None:
    one, two = trained.nodes
    kept = list(trained.run.receipts)
    one.channel.tell(*said(one))
    assert type(trained.end()) is error
    two.channel.tell("done", {})
    with pytest.raises(error):
        trained.lead.finish()
    assert trained.run.receipts == kept
    # A rank that fails meanwhile is not the cause.
    assert type(trained.lead.why(RankLost("a rank", check="ranks"))) is error


def test_a_node_that_dies_ends_training_and_is_blamed_first(trained: Training) -> None:
    one, two = trained.nodes
    two.channel.close()
    assert isinstance(trained.end(), NodeLost)
    one.channel.close()
    blamed = trained.lead.why(ChannelBroken("a connection", check="channel"))
    assert isinstance(blamed, NodeLost)
    assert blamed.message.startswith("node 2 ")
    own = LeaseStale("mine", check="lease")
    assert trained.lead.why(own) is own


@pytest.mark.claim("C162")
@pytest.mark.parametrize("refused", [ApprovalRevoked, DatasetWithdrawn, LeaseStale])
def test_the_refusal_of_one_nodes_lease_ends_the_run_with_it(
    trained: Training, refused: type[Refused]
) -> None:
    trained.nodes[0].channel.tell("stopping", {"code": refused.code})
    assert type(trained.end()) is refused


@pytest.mark.claim("C162")
@pytest.mark.parametrize("code", ["run-stopped", "refused", "internal", "usage"])
def test_a_node_that_has_to_end_otherwise_is_lost(trained: Training, code: str) -> None:
    trained.nodes[0].channel.tell("stopping", {"code": code})
    found = trained.end()
    assert (type(found), found.got) == (NodeLost, code)


@pytest.mark.claim("C138")
@pytest.mark.parametrize("code", ["never-heard-of", "patient-4711-was-positive", "Run-Stopped"])
def test_a_node_says_no_word_that_is_no_code(trained: Training, code: str) -> None:
    trained.nodes[0].channel.tell("stopping", {"code": code})
    assert type(trained.end()) is ChannelBroken


# -- hostile leads ---------------------------------------------------------------------------------


Act = Callable[[AttestedChannel], object]


@contextmanager
def led(world: World, *acts: Act) -> Iterator[Node]:
    """A node of a lead that is proven, and says what a test says; it waits for the node between."""
    compose = world.locked.compose_bytes
    listener = socket.create_server(("127.0.0.1", 0))

    def lead() -> None:
        sock, _address = listener.accept()
        conversation = ChannelTerms(
            purpose=PURPOSE,
            context=None,
            proof=guest(compose),
            accept=acceptance(compose),
            random=lambda size: bytes(range(size)),
        )
        with suppress(SealtrainError), accept(sock, conversation, timeout=10.0) as channel:
            for act in acts:
                act(channel)
            over.wait(10)

    over = threading.Event()
    thread = threading.Thread(target=lead, daemon=True)
    thread.start()
    try:
        with listener, Node(world, 1, listener.getsockname(), seconds=5.0) as node:
            yield node
    finally:
        over.set()
        thread.join(10)


def says(name: str, value: Any) -> Act:
    return lambda channel: send(channel, name, value)


def sends(data: bytes) -> Act:
    return lambda channel: channel.send(data)


def hangs_up(channel: AttestedChannel) -> None:
    channel.close()


WELCOME = {"run_id": RUN_ID, "session": SESSION, "nodes": NODES, "ranks": RANKS}


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (says("welcome", WELCOME | {"nodes": NODES + 1}), NodeRefused),
        (says("welcome", WELCOME | {"ranks": 1}), NodeRefused),
        (says("welcome", WELCOME | {"run_id": "5A" * 16}), ChannelBroken),
        (says("welcome", WELCOME | {"session": ""}), ChannelBroken),
        (says("welcome", WELCOME | {"lead": 1}), ChannelBroken),
        (says("welcome", None), ChannelBroken),
        (says("begin", {"checkpoint": None}), ChannelBroken),
        (says("members", []), ChannelBroken),
        (sends(b""), ChannelBroken),
        (sends(b"{" * 100_000), ChannelBroken),
        (sends(b"\xff" * 10), ChannelBroken),
        (sends(b" " * (5 << 20)), ChannelBroken),
        (hangs_up, NodeLost),
        (says("refused", {"code": "approval-revoked", "message": "x"}), ApprovalRevoked),
        (says("refused", {"code": "no-such-code", "message": "x"}), Refused),
        (says("refused", {"code": "node-lost"}), ChannelBroken),
    ],
)
def test_a_node_begins_with_nothing_but_a_welcome(
    world: World, act: Act, error: type[SealtrainError]
) -> None:
    with led(world, act) as node, pytest.raises(SealtrainError) as caught:
        node.welcomed()
    assert type(caught.value) is error


def introduced(
    world: World,
    folder: Path,
    change: Callable[[list[dict[str, Any]]], Any],
    *more: Act,
    receive: Receive = receives_nothing,
) -> tuple[Any, SealedStore]:
    """What a node makes of members that a lead sends it, and of what follows."""
    company = NodeCompany.open(("127.0.0.1", 0), ranks=RANKS, first=RANKS)
    key = to_base64(company.public_key)
    others = [to_base64(bytes([place]) * 32) for place in (1, 2)]
    members: list[dict[str, Any]] = [
        *({"host": None, "port": 4000 + n, "public_key": others[0]} for n in range(RANKS)),
        *({"host": "127.0.0.1", "port": port, "public_key": key} for port in company.ports),
        *({"host": "10.0.0.9", "port": 4000 + n, "public_key": others[1]} for n in range(RANKS)),
    ]
    said = change(members)
    acts: list[Act] = [
        says("welcome", WELCOME),
        lambda channel: channel.receive(max_bytes=1 << 22),
        said if callable(said) else says("members", members),
        *(more or (sends(b"s" * 32), sends(b"c" * 32))),
    ]
    store = SealedStore(folder, DataKey(b"c" * 32), label=RUN_ID)
    with company, led(world, *acts) as node:
        node.welcomed()
        found = node.channel.introduce(company, node.releases(), since=NOW, world=NODES * RANKS)
        begins = len(more) > 2
        return (found, node.channel.take_checkpoint(store, receive) if begins else None), store


def put(place: int, **changed: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda members: members[place].update(changed)


def test_an_honest_introduction_is_taken(world: World, tmp_path: Path) -> None:
    (found, _none), _store = introduced(world, tmp_path, lambda _members: None)
    assert [place.host for place in found.places] == [*["127.0.0.1"] * 4, *["10.0.0.9"] * 2]
    assert (found.secret, found.checkpoint_key) == (b"s" * 32, b"c" * 32)


MEMBERS: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], type[SealtrainError]]] = {
    "another key in its place": (put(RANKS, public_key=to_base64(b"m" * 32)), NodeRefused),
    "another port of its own": (put(RANKS, port=1), NodeRefused),
    "its ranks swapped": (lambda m: m.insert(RANKS, m.pop(RANKS + 1)), NodeRefused),
    "its key in another place": (
        lambda m: m[-1].update(public_key=m[RANKS]["public_key"]), NodeRefused
    ),
    "a rank too few": (lambda m: m.pop(), NodeRefused),
    "a rank too many": (lambda m: m.append(dict(m[0])), NodeRefused),
    "none": (lambda m: m.clear(), ChannelBroken),
    "one node further": (lambda m: m.insert(0, m.pop()), NodeRefused),
    "a key of another length": (put(0, public_key=to_base64(bytes(31))), ChannelBroken),
    "a host that is none": (put(0, host="evil host/x"), ChannelBroken),
    "port 0": (put(0, port=0), ChannelBroken),
    "a field too many": (put(0, leads=True), ChannelBroken),
    "another message": (lambda _m: says("begin", {"checkpoint": None}), ChannelBroken),
    "a refusal": (
        lambda _m: says("refused", {"code": "node-missing", "message": "x"}), SealtrainError
    ),
    "nothing": (lambda _m: hangs_up, NodeLost),
}  # fmt: skip


@pytest.mark.parametrize(("change", "error"), MEMBERS.values(), ids=MEMBERS)
def test_a_node_trains_in_no_company_that_is_not_its_own(
    world: World,
    tmp_path: Path,
    change: Callable[[list[dict[str, Any]]], Any],
    error: type[SealtrainError],
) -> None:
    with pytest.raises(error):
        introduced(world, tmp_path, change)


@pytest.mark.parametrize("secrets", [(b"s" * 31, b"c" * 32), (b"s" * 32, b"c" * 33), (b"", b"")])
def test_a_node_takes_no_secret_of_another_length(
    world: World, tmp_path: Path, secrets: tuple[bytes, bytes]
) -> None:
    with pytest.raises(ChannelBroken):
        introduced(world, tmp_path, lambda _m: None, *map(sends, secrets))


def sealed(folder: Path, *, run_id: str = RUN_ID, key: bytes = b"c" * 32) -> tuple[Any, bytes]:
    """A checkpoint as a lead has it, and what the lead announces."""
    folder.mkdir(exist_ok=True)
    store = SealedStore(folder, DataKey(key), label=run_id)
    ref = CheckpointRef(counter=3, step=12, digest="", previous="")
    with store.write(ref.name, ref.binding(run_id)) as file:
        file.write(b"weights" * 1000)
    data = store.path(ref.name).read_bytes()
    root = store.root(ref.name)
    named = {"counter": 3, "step": 12, "digest": root, "previous": ""}
    return {**named, "size": len(data), "shards": []}, data


def begun(world: World, folder: Path, said: Any, receive: Receive) -> tuple[Any, SealedStore]:
    node = folder / "node"
    node.mkdir()
    more = (sends(b"s" * 32), sends(b"c" * 32), says("begin", {"checkpoint": said}))
    (_found, ref), store = introduced(world, node, lambda _members: None, *more, receive=receive)
    return ref, store


def opened(store: SealedStore, ref: CheckpointRef) -> bytes:
    with store.read(ref.name, ref.binding(RUN_ID), root=ref.digest) as file:
        return bytes(file.read())


def test_a_checkpoint_arrives_as_the_lead_has_it(world: World, tmp_path: Path) -> None:
    said, data = sealed(tmp_path / "lead")
    ref, store = begun(world, tmp_path, said, receives(data))
    assert store.path(ref.name).read_bytes() == data
    assert opened(store, ref) == b"weights" * 1000


@pytest.mark.parametrize("error", [ChannelCut, ChannelBroken, PeerUnreachable, KeyboardInterrupt])
def test_a_checkpoint_that_does_not_arrive_whole_leaves_nothing_on_the_disk(
    world: World, tmp_path: Path, error: type[BaseException]
) -> None:
    said, data = sealed(tmp_path / "lead")

    def half(file: BinaryIO, _size: int) -> None:
        file.write(data[: len(data) // 2])
        raise error("cut")

    with pytest.raises(error):
        begun(world, tmp_path, said, half)
    assert list((tmp_path / "node").iterdir()) == []


@pytest.mark.parametrize("act", [hangs_up, says("members", []), sends(b"\x00" * 32)])
def test_a_lead_that_says_nothing_of_a_beginning_begins_nothing(
    world: World, tmp_path: Path, act: Act
) -> None:
    more = (sends(b"s" * 32), sends(b"c" * 32), act)
    with pytest.raises((ChannelBroken, NodeLost)):
        introduced(world, tmp_path, lambda _members: None, *more)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_run_key_step_or_digest_opens_for_nobody(
    world: World, tmp_path: Path
) -> None:
    cases = {
        "run": sealed(tmp_path / "run", run_id="66" * 16),
        "key": sealed(tmp_path / "key", key=b"x" * 32),
        "digest": sealed(tmp_path / "digest"),
        "step": sealed(tmp_path / "step"),
        "counter": sealed(tmp_path / "counter"),
        "previous": sealed(tmp_path / "previous"),
    }
    cases["digest"][0]["digest"] = digest("another")
    cases["step"][0]["step"] = 13
    cases["counter"][0]["counter"] = 4
    cases["previous"][0]["previous"] = digest("another")
    for name, (said, data) in cases.items():
        folder = tmp_path / f"{name} node"
        folder.mkdir()
        ref, store = begun(world, folder, said, receives(data))
        with pytest.raises(SealRefused):
            load(store, RUN_ID, ref)


SHARD = ShardRef(counter=3, step=12, number=0, count=2)


def sealed_shard(
    folder: Path, ref: ShardRef = SHARD, *, run_id: str = RUN_ID, previous: str = ""
) -> tuple[bytes, str]:
    """A shard as a lead has it, and its root."""
    store = SealedStore(folder, DataKey(b"c" * 32), label=run_id)
    store.path(ref.name).parent.mkdir(parents=True, exist_ok=True)
    with store.write(ref.name, ref.binding(run_id, previous)) as file:
        file.write(b"pieces" * 1000)
    return store.path(ref.name).read_bytes(), store.root(ref.name)


def sends_shard(said: dict[str, Any], data: bytes, shard: bytes) -> tuple[Any, Receive]:
    """What a lead announces with a shard, and its bytes in order."""
    blobs = iter((data, shard))

    def receive(file: BinaryIO, _size: int) -> None:
        file.write(next(blobs))

    return said | {"shards": [{"number": 0, "count": 2, "size": len(shard)}]}, receive


OTHER_SHARDS: dict[str, dict[str, Any]] = {
    "of another run": {"run_id": "66" * 16},
    "of an older step": {"ref": replace(SHARD, counter=2, step=8)},
    "of another rank": {"ref": replace(SHARD, number=1)},
    "of another number of ranks": {"ref": replace(SHARD, count=1)},
    "of another history": {"previous": digest("another")},
}


@pytest.mark.claim("C764")
@pytest.mark.parametrize("other", OTHER_SHARDS.values(), ids=OTHER_SHARDS)
def test_a_shard_that_is_not_the_one_it_is_sent_as_opens_for_no_rank(
    world: World, tmp_path: Path, other: dict[str, Any]
) -> None:
    """A lead's disk holds others too: all under the run's key, and whole."""
    said, data = sealed(tmp_path / "lead")
    _honest, root = sealed_shard(tmp_path / "honest")
    shard, another = sealed_shard(tmp_path / "other", **other)
    announced, receive = sends_shard(said, data, shard)
    ref, store = begun(world, tmp_path, announced, receive)
    assert store.path(SHARD.name).read_bytes() == shard
    for claimed in (root, another):
        with pytest.raises(SealRefused):
            open_shard(store, RUN_ID, ref, SHARD, claimed)


@pytest.mark.claim("C764")
@pytest.mark.parametrize(
    "shard",
    [
        {"number": 4096},
        {"number": -1},
        {"count": 0},
        {"count": 4097},
        {"size": 0},
        {"digest": digest("mine")},
        {"number": "0"},
    ],
    ids=str,
)
def test_a_shard_of_another_form_is_refused(
    world: World, tmp_path: Path, shard: dict[str, Any]
) -> None:
    said, _data = sealed(tmp_path / "lead")
    announced = said | {"shards": [{"number": 0, "count": 2, "size": 9} | shard]}
    with pytest.raises(ChannelBroken):
        begun(world, tmp_path, announced, receives_nothing)
    assert list((tmp_path / "node").iterdir()) == []


@pytest.mark.claim("C764")
def test_a_shard_beyond_its_count_is_refused(world: World, tmp_path: Path) -> None:
    said, data = sealed(tmp_path / "lead")
    announced = said | {"shards": [{"number": 2, "count": 2, "size": 9}]}
    with pytest.raises(CheckpointRefused):
        begun(world, tmp_path, announced, receives(data))


@pytest.mark.claim("C762")
def test_a_node_follows_its_lead_to_numbers_that_its_recipe_names_and_to_no_others(
    world: World,
) -> None:
    named = {"nodes": {NODES, 2}, "ranks": {RANKS, 1}}
    for changed, taken in (
        ({"nodes": 2, "ranks": 1}, True),
        ({"ranks": 1}, True),
        ({"nodes": 4}, False),
        ({"ranks": 3}, False),
        ({"nodes": 2, "ranks": 4}, False),
    ):
        with led(world, says("welcome", WELCOME | changed)) as node:
            if taken:
                welcome = node.channel.welcome(**named)
                assert {name: getattr(welcome, name) for name in changed} == changed
            else:
                with pytest.raises(NodeRefused, check=carries(check="nodes")):
                    node.channel.welcome(**named)


def test_a_checkpoint_that_was_altered_on_the_nodes_disk_is_refused(
    world: World, tmp_path: Path
) -> None:
    said, data = sealed(tmp_path / "lead")
    ref, store = begun(world, tmp_path, said, receives(data))
    path = store.path(ref.name)
    for place in (0, len(data) // 2, len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises((NotSealed, SealRefused)):
            opened(store, ref)
    path.write_bytes(data[:-1])
    with pytest.raises(SealRefused):
        opened(store, ref)


@pytest.mark.parametrize(
    "said",
    [
        {"size": 0},
        {"size": -1},
        {"counter": 0},
        {"step": -1},
        {"digest": "5a"},
        {"previous": "5a"},
        {"name": "../../etc"},
    ],
    ids=str,
)
def test_an_announcement_of_another_form_is_refused(
    world: World, tmp_path: Path, said: dict[str, Any]
) -> None:
    honest, _data = sealed(tmp_path / "lead")
    with pytest.raises(ChannelBroken):
        begun(world, tmp_path, honest | said, receives_nothing)
    assert list((tmp_path / "node").iterdir()) == []


def test_a_node_learns_why_its_run_ended(world: World) -> None:
    lost = NodeLost("a connection", check="node")
    refusal = says("refused", {"code": "approval-revoked", "message": "x"})
    for act, expected in ((refusal, ApprovalRevoked), (hangs_up, NodeLost)):
        with led(world, says("welcome", WELCOME), act) as node:
            node.welcomed()
            assert type(node.channel.why(lost)) is expected


def test_who_does_not_listen_at_all_is_a_lost_lead(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()[:2]
        with pytest.raises(NodeLost, check=carries(check="node")):
            LeadChannel.dial(
                address,
                node=1,
                proof=guest(world.locked.compose_bytes),
                accept=acceptance(world.locked.compose_bytes),
                seconds=1.0,
            )
    with pytest.raises(NodeLost, check=carries(check="node")):
        Node(world, 1, address, seconds=1.0)
