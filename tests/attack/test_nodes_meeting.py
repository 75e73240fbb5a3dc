"""Against the meeting of a run's nodes: strangers, liars, squatters, and whoever carries bytes."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from carrying import carries
from channel_world import acceptance, guest
from manifest_world import World
from meeting_world import (
    NOW,
    RUN_ID,
    Lead,
    Node,
    Run,
    joining,
    nodes_world,
    other_compose,
)
from polling import wait_until
from relays import altering, answered, carried, expect_only_a_handshake
from world import signer

from sealtrain.attest.errors import ComposeHashMismatch, QuoteRootUntrusted, ReportDataMismatch
from sealtrain.attest.report_data import Binding
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.encoding import to_base64
from sealtrain.consortium.errors import ApprovalRevoked
from sealtrain.errors import LeaseStale, NodeLost, Refused, SealtrainError
from sealtrain.guest.lease import RunLease
from sealtrain.guest.leasekeeper import LeaseKeeper
from sealtrain.recipe.backends import Division, divide_among
from sealtrain.release.errors import DatasetWithdrawn
from sealtrain.signing.parties import node_run_id
from sealtrain.training.errors import ChannelBroken
from sealtrain_nodes.company import NodeCompany
from sealtrain_nodes.errors import NodeMissing, NodeRefused, NodeTaken
from sealtrain_nodes.guest.lead import LeadNode
from sealtrain_nodes.messages import PURPOSE, FromLead, receive
from sealtrain_together.channel.channel import connect
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.proofs import ProveKey

pytestmark = [pytest.mark.long, pytest.mark.claim("C160")]

NODES, RANKS = 3, 2


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return nodes_world(tmp_path_factory.mktemp("nodes"), nodes=NODES, ranks=RANKS)


@pytest.fixture
def lead(world: World, tmp_path: Path) -> Iterator[Lead]:
    with Lead(Run(world, tmp_path)) as lead:
        yield lead


@contextmanager
def all_joining(world: World, lead: Lead) -> Iterator[None]:
    """Honest nodes come, and the lead meets them in spite of whatever else happens."""
    with ExitStack() as stack:
        coming = [stack.enter_context(joining(world, node, lead)) for node in range(1, NODES)]
        lead.met()
        for party in coming:
            party.ready()
        yield


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def told(world: World, lead: Lead, context: dict[str, Any]) -> FromLead:
    """What the lead says to a guest of the deployment with another greeting."""
    compose = world.locked.compose_bytes
    conversation = ChannelTerms(
        purpose=PURPOSE,
        context=context,
        proof=guest(compose),
        accept=acceptance(compose),
        random=lambda size: bytes(range(size)),
    )
    with connect(lead.address, conversation, timeout=10.0) as channel:
        found: FromLead = receive(channel, FromLead)
    return found


def test_nodes_that_prove_themselves_meet_and_learn_the_same(world: World, lead: Lead) -> None:
    with ExitStack() as stack:
        coming = [stack.enter_context(joining(world, node, lead)) for node in (2, 1)]
        met = lead.met()
        one, two = (each.ready() for each in coming)
    assert one == two
    assert len(one.places) == NODES * RANKS == met.company.world
    assert len({place.public_key for place in one.places}) == NODES
    assert [place.public_key for place in one.places[:RANKS]] == [met.company.public_key] * RANKS
    assert one.secret != one.checkpoint_key


def test_an_impostor_without_evidence_learns_nothing(world: World, lead: Lead) -> None:
    compose = world.locked.compose_bytes
    conversation = ChannelTerms(
        purpose=PURPOSE,
        context={"version": 1, "node": 1},
        proof=ProveKey(signer("mallory")),
        accept=acceptance(compose),
        random=lambda size: bytes(range(size)),
    )
    with pytest.raises(SealtrainError), connect(lead.address, conversation, timeout=10.0) as mine:
        receive(mine, FromLead)
    with all_joining(world, lead):
        pass


@pytest.mark.parametrize(
    "of", ["another deployment", "another machine's root", "another conversation"]
)
def test_a_guest_whose_evidence_is_of_something_else_is_no_node(
    world: World, lead: Lead, of: str
) -> None:
    compose = world.locked.compose_bytes
    kept = guest(compose).collect(Binding("channel-initiator", {"hello": "of yesterday"}))
    proof = {
        "another deployment": guest(other_compose(world)),
        "another machine's root": guest(compose, vendor="other"),
        "another conversation": type(guest(compose))(lambda _binding: kept),
    }[of]
    with pytest.raises(NodeLost), Node(world, 1, lead.address, proof=proof) as node:
        node.welcomed()
    with all_joining(world, lead):
        pass


@pytest.mark.parametrize(
    ("of", "error"),
    [
        ("another deployment", ComposeHashMismatch),
        ("another machine's root", QuoteRootUntrusted),
        ("another conversation", ReportDataMismatch),
    ],
)
def test_a_node_gives_itself_to_no_lead_of_another_kind(
    world: World, tmp_path: Path, of: str, error: type[Refused]
) -> None:
    run = Run(world, tmp_path)
    compose = world.locked.compose_bytes
    kept = guest(compose).collect(Binding("channel-responder", {"hello": "of yesterday"}))
    collect: dict[str, Callable[[Binding], Any]] = {
        "another deployment": guest(other_compose(world)).collect,
        "another machine's root": guest(compose, vendor="other").collect,
        "another conversation": lambda _binding: kept,
    }
    run.collect = collect[of]  # type: ignore[method-assign]
    run.recipe = run.recipe.model_copy(
        update={"collaboration": run.recipe.collaboration.model_copy(update={"join_seconds": 1})}
    )
    with Lead(run) as lead, pytest.raises(error):
        Node(world, 1, lead.address)


@pytest.mark.parametrize("number", [NODES, 200, 255])
def test_a_number_that_the_run_does_not_have_is_refused(
    world: World, lead: Lead, number: int
) -> None:
    with (
        Node(world, number, lead.address) as node,
        pytest.raises(NodeRefused, check=carries(check="node", got=str(number))),
    ):
        node.welcomed()
    with all_joining(world, lead):
        pass


def test_a_number_is_taken_once_and_free_again_when_its_node_is_gone(
    world: World, lead: Lead
) -> None:
    with Node(world, 1, lead.address) as first:
        first.welcomed()
        with Node(world, 1, lead.address) as second, pytest.raises(NodeTaken):
            second.welcomed()
    with all_joining(world, lead):
        pass


GREETINGS: list[dict[str, Any]] = [
    {},
    {"version": 1},
    {"version": 2, "node": 1},
    *(
        {"version": 1, "node": node}
        for node in (0, 256, -1, True, "1", 1.5, None, [1], {"node": {"node": {}}})
    ),
    {"version": 1, "node": 1, "leads": True},
]


def test_a_greeting_of_another_form_is_refused(world: World, lead: Lead) -> None:
    for context in GREETINGS:
        said = told(world, lead, context)
        assert said.refused is not None, context
        assert said.refused.code == "channel-refused"
    with all_joining(world, lead):
        pass


def test_a_recorded_join_seats_nobody_when_it_is_played_again(world: World, lead: Lead) -> None:
    with (
        carried(lead.address, altering(), altering()) as (between, seen),
        Node(world, 1, between) as node,
    ):
        node.welcomed()
    (recorded,) = seen.there
    for _ in range(2):
        expect_only_a_handshake(answered(lead.address, bytes(recorded)))
    with all_joining(world, lead):
        pass


def test_what_the_lead_says_is_no_answer_to_itself(world: World, lead: Lead) -> None:
    """A network that reflects: the lead's own proof does not seat anybody, as lead or as node."""
    with socket.create_connection(lead.address, timeout=10) as one, suppress(OSError):
        one.sendall(struct.pack(">I", 4) + b"null")
        assert one.recv(1 << 16) == b""
    with (
        carried(lead.address, altering(), altering()) as (between, seen),
        Node(world, 1, between) as node,
    ):
        node.welcomed()
    expect_only_a_handshake(answered(lead.address, bytes(seen.back[0])))
    with all_joining(world, lead):
        pass


def test_whoever_carries_a_join_alters_nothing_of_it(world: World, lead: Lead) -> None:
    def flipped(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[len(changed) // 2] ^= 1
        return bytes(changed)

    for there, back in ((flipped, lambda data: data), (lambda data: data, flipped)):
        with (
            carried(lead.address, altering(there), altering(back)) as (between, _seen),
            pytest.raises(SealtrainError),
            Node(world, 1, between, seconds=5.0) as node,
        ):
            node.welcomed()
    with all_joining(world, lead):
        pass


def test_a_slow_network_keeps_no_node_out(world: World, lead: Lead) -> None:
    def slow(data: bytes) -> bytes:
        time.sleep(0.1)
        return data

    with (
        carried(lead.address, altering(slow), altering(slow)) as (between, _seen),
        joining(world, 2, lead) as other,
        Node(world, 1, between) as node,
    ):
        node.welcomed()
        with node.introduced() as (_mine, introduced):
            assert len(introduced.places) == NODES * RANKS
        other.ready()


def test_squatters_keep_no_node_out_and_leave_no_thread(world: World, lead: Lead) -> None:
    """Silent, dripping and garbage connections, more than a lead serves at a time."""
    address, before = lead.address, set(threading.enumerate())
    most = 2 * (NODES + 16) + NODES
    over, stack = threading.Event(), ExitStack()
    squatters: list[socket.socket] = []

    def drip(sock: socket.socket) -> None:
        sock.setblocking(False)
        while not over.wait(0.05):
            with suppress(OSError):
                sock.send(b"\0")

    with stack:
        for number in range(120):
            sock = stack.enter_context(socket.create_connection(address, timeout=10))
            squatters.append(sock)
            if number % 3 == 1:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n" * 4)
            if number % 40 == 2:
                threading.Thread(target=drip, args=(sock,), daemon=True, name="drip").start()
            serving = len(set(threading.enumerate()) - before)
            assert serving <= most + 4
        with all_joining(world, lead):
            assert not [name for name in lead.threads if "_serve" in name]
            over.set()
            until = time.monotonic() + 10
            for sock in squatters:
                sock.settimeout(max(0.1, until - time.monotonic()))
                with suppress(ConnectionError):
                    assert sock.recv(1) == b""


@pytest.mark.claim("C551")
def test_a_thousand_callers_that_prove_nothing_hold_neither_threads_nor_descriptors(
    world: World, lead: Lead
) -> None:
    """Silent, slow or in the middle of a frame: each is ended for a later one, and nodes meet."""
    address, before = lead.address, open_descriptors()
    most = NODES + 16
    held: list[socket.socket] = []
    with ExitStack() as stack:
        for number in range(1000):
            sock = stack.enter_context(socket.create_connection(address, timeout=10))
            sock.sendall((b"", b"\0\0\0\x40", b"GET / HTTP/1.1\r\n")[number % 3])
            held.append(sock)
        taken = open_descriptors() - before - len(held)  # the lead is in this process
        assert taken <= 2 * most + 8
        with all_joining(world, lead):
            assert not [name for name in lead.threads if "_serve" in name]
        for sock in held:
            sock.settimeout(10)
            with suppress(ConnectionError):
                assert sock.recv(1) == b""


def test_a_flood_of_connections_does_not_hold_up_a_meeting(world: World, lead: Lead) -> None:
    over = threading.Event()
    address = lead.address

    def flood() -> None:
        while not over.wait(0.02):
            with suppress(OSError), socket.create_connection(address, timeout=1):
                pass

    flooding = [threading.Thread(target=flood, daemon=True) for _ in range(3)]
    for caller in flooding:
        caller.start()
    try:
        with all_joining(world, lead):
            pass
    finally:
        over.set()
        for caller in flooding:
            caller.join(5)


class Smaller(Node):
    """A node of the meeting that the run goes on with: two nodes of one rank."""

    settings = (2, 1)


@contextmanager
def smaller_lead(folder: Path) -> Iterator[tuple[World, Run, Lead]]:
    """A lead whose run goes on with fewer nodes and fewer ranks than it began with."""
    made = nodes_world(folder, nodes=NODES, ranks=RANKS, resume_nodes=[2], resume_ranks=[1])
    run = Run(made, folder / "out")
    run.recipe = divide_among(run.recipe, Division(ranks=1, nodes=2))
    with Lead(run) as lead:
        yield made, run, lead


@pytest.mark.claim("C762", "C764")
def test_a_run_that_goes_on_among_others_meets_exactly_these(tmp_path: Path) -> None:
    with smaller_lead(tmp_path) as (world, run, lead):
        # One that counts as the run began learns it here, and comes again as another.
        with Node(world, 1, lead.address) as node, pytest.raises(NodeRefused):
            node.welcomed()
        # The one that has no place any more.
        with (
            Smaller(world, 2, lead.address) as node,
            pytest.raises(NodeRefused, check=carries(check="node", got="2", expected="1 to 1")),
        ):
            node.welcomed()
        # One that has the ranks of before, whatever it was welcomed to.
        with Smaller(world, 1, lead.address) as node:
            node.welcomed()
            node.channel.tell("ready", ready(node, ports=[4001, 4002]))
            with pytest.raises(NodeRefused, check=carries(check="ranks", got="2", expected="1")):
                node.channel.take_checkpoint(run.store, nothing_comes)
        with Smaller(world, 1, lead.address) as node:
            node.welcomed()
            with Smaller(world, 1, lead.address) as second, pytest.raises(NodeTaken):
                second.welcomed()
            with node.introduced() as (mine, introduced):
                assert (mine.first, len(introduced.places)) == (1, 2)
                lead.met().begin(None)
        (_event, fields) = run.log[-1]
        assert (fields["ranks"], [each["node"] for each in fields["nodes"]]) == (1, [1])


def nothing_comes(_file: Any, size: int) -> None:
    raise AssertionError(f"{size} bytes that nobody announced")


@pytest.mark.claim("C764")
def test_a_node_under_the_key_of_another_ends_the_meeting(world: World, lead: Lead) -> None:
    """Two guests that would have the same ranks' connections."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node(world, number, lead.address)) for number in (1, 2)]
        for node in nodes:
            node.welcomed()
            node.channel.tell("ready", ready(node))
        error = lead.ended()
    assert isinstance(error, NodeRefused)
    assert error.check == "public_key"


def ready(node: Node, **changed: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "ports": [4001, 4002],
        "public_key": to_base64(b"k" * 32),
        "releases": node.releases(),
        "from": to_rfc3339(NOW),
    }
    return {name: value for name, value in (usual | changed).items() if value is not None}


def other_data(node: Node) -> tuple[Any, ...]:
    """The datasets of a receipt, the first of them sealed anew."""
    first, *others = node.world.receipt().datasets
    return (first.model_copy(update={"dataset_id": "7d" * 16, "root": "7e" * 32}), *others)


WRONG: dict[str, Callable[[Node], tuple[str, Any]]] = {
    "done": lambda _node: ("done", {}),
    "stopping": lambda _node: ("stopping", {"code": "run-stopped"}),
    "releases": lambda node: ("releases", {"releases": node.releases()}),
    "null": lambda _node: ("ready", None),
    "unknown": lambda _node: ("steady", {}),
    "a port too few": lambda node: ("ready", ready(node, ports=[4001])),
    "a port too many": lambda node: ("ready", ready(node, ports=[4001, 4002, 4003])),
    "port 0": lambda node: ("ready", ready(node, ports=[0, 4002])),
    "port 65536": lambda node: ("ready", ready(node, ports=[65536, 4002])),
    "no key": lambda node: ("ready", ready(node, public_key=None)),
    "a short key": lambda node: ("ready", ready(node, public_key=to_base64(b"k" * 31))),
    "a key in another spelling": lambda node: (
        "ready", ready(node, public_key=to_base64(b"k" * 32)[:-2] + "t=")
    ),
    "no receipts": lambda node: ("ready", ready(node, releases=[])),
    "no time": lambda node: ("ready", ready(node, **{"from": "yesterday"})),
    "a further field": lambda node: ("ready", ready(node, leads=True)),
    "too long": lambda _node: ("ready", {"ports": "1" * (5 << 20)}),
    "garbage for receipts": lambda node: (
        "ready", ready(node, releases=[{"receipt": {}, "proof": {}, "rotations": []}])
    ),
    "receipts of another session": lambda node: (
        "ready", ready(node, releases=node.releases(session="77" * 16))
    ),
    "receipts of another node": lambda node: (
        "ready",
        ready(node, releases=node.releases(run_id=node_run_id(RUN_ID, node.welcome.session, 2))),
    ),
    "receipts of another sealing of the data": lambda node: (
        "ready", ready(node, releases=node.releases(datasets=other_data(node)))
    ),
    "receipts of less data": lambda node: (
        "ready", ready(node, releases=node.releases(datasets=other_data(node)[1:]))
    ),
    "receipts of no data": lambda node: (
        "ready", ready(node, releases=node.releases(kind="renewal", datasets=()))
    ),
    "receipts of another run": lambda node: (
        "ready",
        ready(node, releases=node.releases(run_id="66" * 16)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_no_ready_node_says_seats_nobody(
    world: World, lead: Lead, wrong: Callable[[Node], tuple[str, Any]]
) -> None:
    with Node(world, 1, lead.address) as node:
        node.welcomed()
        node.channel.tell(*wrong(node))
        with pytest.raises((NodeLost, NodeRefused)), node.introduced():
            pass
    with all_joining(world, lead):
        pass
    assert lead.ended() is None


def test_a_node_that_speaks_out_of_turn_loses_its_seat(world: World, lead: Lead) -> None:
    with Node(world, 1, lead.address) as node:
        node.welcomed()
        node.channel.tell("ready", ready(node))
        node.channel.tell("ready", ready(node))
        with joining(world, 2, lead):
            with pytest.raises(NodeLost), node.introduced():
                pass
            with joining(world, 1, lead) as again:
                again.ready()
                lead.met()


def test_two_nodes_with_one_key_are_refused(world: World, lead: Lead) -> None:
    with Node(world, 1, lead.address) as one, Node(world, 2, lead.address) as two:
        for node in (one, two):
            node.welcomed()
            node.channel.tell("ready", ready(node))
        error = lead.ended()
    assert isinstance(error, NodeRefused)
    assert error.check == "public_key"


def test_a_ready_node_that_dies_is_replaced_before_the_others_come(
    world: World, lead: Lead
) -> None:
    with Node(world, 1, lead.address) as node:
        node.welcomed()
        node.channel.tell("ready", ready(node))
        time.sleep(0.5)
    with all_joining(world, lead):
        pass


def test_who_waits_for_a_missing_node_is_told_so(world: World, tmp_path: Path) -> None:
    with Lead(Run(world, tmp_path, join_seconds=2)) as lead, joining(world, 1, lead) as waiting:
        error = lead.ended()
        assert waiting.met.wait(10)
    assert isinstance(error, NodeMissing)
    assert (error.got, type(waiting.error)) == ("missing: 2", NodeMissing)
    assert not [thread for thread in threading.enumerate() if "_serve" in thread.name]


def test_a_node_that_says_half_a_message_holds_nothing_up(world: World, tmp_path: Path) -> None:
    """Proven, but slower than the meeting lasts: it ends with the meeting."""
    with (
        Lead(Run(world, tmp_path, join_seconds=2)) as lead,
        Node(world, 1, lead.address) as node,
    ):
        node.welcomed()
        begun = time.monotonic()
        assert isinstance(lead.ended(), NodeMissing)
        assert time.monotonic() - begun < 10
        with pytest.raises(NodeLost), node.introduced():
            pass


def test_a_recipe_of_one_deployment_lets_no_guest_of_another_recipe_join(
    world: World, lead: Lead, tmp_path: Path
) -> None:
    """The recipe is part of what is measured: a longer training is another deployment."""
    other = nodes_world(tmp_path, nodes=NODES + 1, ranks=RANKS)
    assert other.locked.compose_hash != world.locked.compose_hash
    with pytest.raises(ComposeHashMismatch):
        Node(other, 1, lead.address)
    proof = guest(other.locked.compose_bytes)
    with pytest.raises(NodeLost), Node(world, 1, lead.address, proof=proof) as node:
        node.welcomed()
    with all_joining(world, lead):
        pass


def test_messages_are_json_with_one_field() -> None:
    for text in (b"", b"{}", b"[]", b"null", b'{"done":{},"ready":null}', b'{"done":{}} '):
        with pytest.raises(ChannelBroken):
            receive(_Saying(text), FromLead)  # type: ignore[arg-type]


class _Saying:
    """A channel with one message."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def receive(self, *, max_bytes: int) -> bytes:
        assert len(self._text) <= max_bytes
        return self._text


def kept(seconds: float) -> tuple[LeaseKeeper, list[float]]:
    """A lease keeper whose lease the brokers renew each time, and when they did."""
    renewed: list[float] = []
    lease = RunLease(lambda: 0)

    def renew(_checkpoint: tuple[int, str] | None = None) -> None:
        renewed.append(time.monotonic())
        lease.extend(1 << 40, seconds, lease.moment())

    renew()
    return LeaseKeeper(lease, renew), renewed


@pytest.mark.claim("C270")
def test_a_wait_that_outlasts_every_lease_loses_none(world: World, tmp_path: Path) -> None:
    """The operator withholds node 2; lead and node 1 renew their leases, and say no word of it."""
    run = Run(world, tmp_path)
    run.lease_keeper, at_lead = kept(2.0)  # type: ignore[assignment]
    lease_keeper, at_node = kept(2.0)

    def tend() -> None:
        lease_keeper.tend()
        lease_keeper.require()

    with Lead(run) as lead, Node(world, 1, lead.address) as node:
        node.welcomed()
        found: list[Any] = []

        def wait() -> None:
            lease_keeper.begin()
            with NodeCompany.open(("127.0.0.1", 0), ranks=RANKS, first=RANKS) as mine:
                found.append(
                    node.channel.introduce(
                        mine, node.releases(), since=NOW, world=NODES * RANKS, meanwhile=tend
                    )
                )

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        wait_until(lambda: min(len(at_lead), len(at_node)) >= 4, 20)  # each lasts for two of them
        with joining(world, 2, lead) as other:
            other.ready()
            waiting.join(20)
        run.lease_keeper.require()
        lease_keeper.require()
    assert len(found) == 1
    assert len(at_lead) >= 4
    assert len(at_node) >= 4


@pytest.mark.claim("C270")
@pytest.mark.parametrize("refusal", [ApprovalRevoked, DatasetWithdrawn, LeaseStale])
def test_a_wait_ends_with_what_the_brokers_refuse_the_lead(
    world: World, tmp_path: Path, refusal: type[SealtrainError]
) -> None:
    """An owner revokes or withdraws while a node is still awaited."""
    run = Run(world, tmp_path)
    run.lease_keeper.refusal = refusal("by the owner")
    with Lead(run) as lead, joining(world, 1, lead) as waiting:
        error = lead.ended()
        assert waiting.met.wait(10)
    assert type(error) is refusal
    assert type(waiting.error) in (refusal, NodeLost)
    assert not [thread for thread in threading.enumerate() if "_serve" in thread.name]


@pytest.mark.claim("C270")
def test_a_node_whose_own_lease_is_refused_leaves_and_may_be_replaced(
    world: World, lead: Lead
) -> None:
    def refuse() -> None:
        raise ApprovalRevoked("by the owner")

    with (
        Node(world, 1, lead.address) as node,
        NodeCompany.open(("127.0.0.1", 0), ranks=RANKS, first=RANKS) as mine,
    ):
        node.welcomed()
        with pytest.raises(ApprovalRevoked):
            node.channel.introduce(
                mine, node.releases(), since=NOW, world=NODES * RANKS, meanwhile=refuse
            )
    with all_joining(world, lead):
        pass


def test_a_join_of_one_meeting_seats_nobody_in_another_of_this_run_or_the_next(
    world: World, tmp_path: Path
) -> None:
    """A lead that was restarted has a session of its own, and the next run another id as well."""
    recorded = bytearray()
    with Lead(Run(world, tmp_path)) as first:
        with (
            carried(first.address, altering(), altering()) as (between, seen),
            Node(world, 1, between) as node,
        ):
            session = node.welcomed().session
        recorded += seen.there[0]
        with all_joining(world, first):
            pass
    for run_id in (RUN_ID, "77" * 16):
        run = Run(world, tmp_path)
        run.run_id = run_id
        with Lead(run) as again:
            expect_only_a_handshake(answered(again.address, bytes(recorded)))
            with Node(world, 1, again.address) as node:
                welcome = node.welcomed()
            assert (welcome.run_id, welcome.session == session) == (run_id, False)
            run.lease_keeper.refusal = LeaseStale("the others are not awaited")


def test_a_node_is_known_by_the_address_that_it_listens_at(world: World, lead: Lead) -> None:
    """A machine with several addresses calls from the one where others then look for its ranks."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(Node(world, number, lead.address, source=f"127.0.0.{number + 4}"))
            for number in range(1, NODES)
        ]

        for node in nodes:
            node.welcomed()
            node.channel.tell("ready", ready(node, public_key=to_base64(bytes([node.number]) * 32)))
        met = [url.hostname for url in places_of(lead.met())]
    assert met == [*["127.0.0.1"] * RANKS, *["127.0.0.5"] * RANKS, *["127.0.0.6"] * RANKS]


def places_of(lead: LeadNode) -> list[Any]:
    return [urlsplit(url) for url in lead.urls]
