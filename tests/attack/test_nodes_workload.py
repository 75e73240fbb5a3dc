"""A node's workload that is hostile: it has connections, records and a word to end with, no more.

The keepers here are real and connected to each other by proven connections; what a workload would
say is the test's.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from opener_here import OpenerHere
from training_world import RUN_ID, PlainDataset, checkpoint_store
from variants import variants

from sealtrain.base.encoding import to_base64
from sealtrain.base.models import load_model
from sealtrain.errors import DataInvalid, LeaseStale, NodeLost, SealtrainError
from sealtrain.guest.sandbox.events import Restated
from sealtrain.guest.sandbox.output import OutputTally
from sealtrain.guest.workload.channel import AskingEnd, ChannelEnds, connections
from sealtrain.guest.workload.messages import (
    Ended,
    Failed,
    FileDelivered,
    MakeRoom,
    Names,
    OfferMetrics,
    Open,
    RankReady,
    Retire,
    Seal,
    Sign,
    Slots,
    Step,
    Stop,
    Stopped,
    Sweep,
    TakeLink,
    WorkloadQuestion,
)
from sealtrain.recipe.privacy import NoPrivacy
from sealtrain.recipe.terms import ReleasePolicy
from sealtrain.sealing.datakey import DataKey
from sealtrain.training.data.sources import Source
from sealtrain.training.errors import RankLost
from sealtrain_nodes.company import NodeCompany, RankPlace
from sealtrain_nodes.guest.nodekeeper import NodeKeeper
from sealtrain_nodes.node_ranks import links_of
from sealtrain_nodes.wire.collectives import Circle
from sealtrain_nodes.wire.engine import Operation
from sealtrain_nodes.wire.frames import form_of
from sealtrain_nodes.wire.meeting import Wire
from sealtrain_nodes.wire.scratch import FrameBuffers

pytestmark = [pytest.mark.claim("C607"), pytest.mark.long]

RANKS = 2
"""Of each of the two nodes."""
WORLD = 2 * RANKS
RUN_SECRET = b"s" * 32
SECONDS = 20.0
RUN, SESSION = "5a" * 16, "a5" * 16
READY = RankReady(landlock=6, seccomp=True, unbound=0, memory="private")
ROWS = [{"prompt": f"p{number}", "completion": " a"} for number in range(8)]
FAILED: dict[str, Any] = {
    "message": "a record: secret-4be1a7",
    "hint": "secret-4be1a7",
    "kind": "secret",
    "script": None,
    "line": None,
    "program": None,
    "counts": {},
}


class FakeLeaseKeeper:
    def explain_end(self, error: SealtrainError) -> SealtrainError:
        return LeaseStale("over", check="lease")


def both(*, carries: bool = False) -> tuple[NodeCompany, NodeCompany]:
    """Two nodes that met and are connected."""
    made = [
        NodeCompany.open(("127.0.0.1", 0), ranks=RANKS, first=node * RANKS, carries=carries)
        for node in (0, 1)
    ]
    places = [
        RankPlace(host="127.0.0.1", port=port, public_key=company.public_key)
        for company in made
        for port in company.ports
    ]
    for company in made:
        company.meet(places, run_id=RUN, session=SESSION)
    threads = [threading.Thread(target=company.connect) for company in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return made[0], made[1]


class Node:
    """The keeper of node 1, and the ends of its workload's ranks."""

    def __init__(
        self, folder: Path, company: NodeCompany, audit: Any = None, **given: float
    ) -> None:
        pairs = [connections() for _ in range(RANKS)]
        self.ours = [ours for ours, _ in pairs]
        self.theirs: list[ChannelEnds] = [theirs for _, theirs in pairs]
        self.ended = False
        dataset = PlainDataset([pa.RecordBatch.from_pylist(ROWS)])
        source = Source(role="train", owner="clinic-a", name="notes", weight=1.0, dataset=dataset)
        policy = load_model(
            ReleasePolicy,
            {"metrics": ["loss"], "round_to": 2, "model": {"recipients": ["clinic-a"]}},
            DataInvalid,
            "policy",
        )
        guest = SimpleNamespace(
            run_id=RUN_ID,
            sources=[source],
            sealed_datasets=[SimpleNamespace(role="train", folder=folder / "notes.sealed")],
            recipe=SimpleNamespace(
                columns=SimpleNamespace(kind="text", names=["prompt", "completion"]),
                release_policy=policy,
                privacy=NoPrivacy(dp="none"),
                scripts=[],
                audit=audit,
                validation=None,
                schedule=None,
                datasets=[],
                model=SimpleNamespace(kind="config"),
            ),
            lock=SimpleNamespace(scripts={}),
            secret=DataKey(RUN_SECRET),
            model=None,
            opener=OpenerHere([source], ["prompt", "completion"]),
            store=checkpoint_store(folder / "checkpoints"),
            lease_keeper=FakeLeaseKeeper(),
            lease=SimpleNamespace(require=lambda: None, seconds_left=lambda: 60.0),
            tally=OutputTally(),
        )
        workload = SimpleNamespace(
            ends=tuple(self.ours), status=None, end=self.end, close=self.close
        )
        self.keeper = NodeKeeper(
            cast("Any", guest), cast("Any", workload), company, resume=None, **given
        )
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def end(self) -> None:
        self.ended = True
        for ends in self.ours:
            for each in ends.all:
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for ends in self.ours:
            for each in ends.all:
                each.close()

    def _keep(self) -> None:
        try:
            self.keeper.keep()
        except BaseException as error:
            self.error = error

    def over(self) -> BaseException | None:
        """What the node ended with, once it did."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self.ended
        return self.error

    def says(self, question: WorkloadQuestion, connection: str = "control", rank: int = 0) -> None:
        """Ask without waiting for an answer."""
        body = question.to_bytes()
        getattr(self.theirs[rank], connection).sendall(len(body).to_bytes(4, "big") + body)

    def ready(self, rank: int = 0) -> dict[str, Any]:
        return AskingEnd(self.theirs[rank].control).ask(READY)[0]


@pytest.fixture(scope="module")
def unconnected() -> Iterator[NodeCompany]:
    with NodeCompany.open(("127.0.0.1", 0), ranks=RANKS, first=RANKS) as made:
        yield made


@pytest.fixture
def companies(request: pytest.FixtureRequest) -> Iterator[tuple[NodeCompany, NodeCompany]]:
    made = both(carries=getattr(request, "param", False))
    yield made
    leaving = [threading.Thread(target=company.leave) for company in made]
    for thread in leaving:
        thread.start()
    for thread in leaving:
        thread.join()


def kept(folder: Path, company: NodeCompany, **given: Any) -> Iterator[Node]:
    made = Node(folder, company, **given)
    yield made
    for ends in made.theirs:
        for each in ends.all:
            each.close()
    made.keeper.fail(RankLost("the test is over"))
    made.over()


@pytest.fixture
def node(tmp_path: Path, unconnected: NodeCompany) -> Iterator[Node]:
    """It has no connection yet."""
    yield from kept(tmp_path, unconnected)


@pytest.fixture
def connected(tmp_path: Path, companies: tuple[NodeCompany, NodeCompany]) -> Iterator[Node]:
    yield from kept(tmp_path, companies[1])


def code_of(node: Node) -> tuple[str, str | None]:
    error = node.over()
    judged = error.error if isinstance(error, Restated) else error
    assert isinstance(judged, SealtrainError)
    return judged.code, judged.check


LEADING: dict[str, tuple[str, WorkloadQuestion]] = {
    "a step": ("control", Step(step=1)),
    "whether to stop": ("control", Stop(step=1, ahead=1, span=1, sealing=None)),
    "a measurement": ("control", OfferMetrics(step=1, values={"loss": 1.0})),
    "a manifest": ("control", Sign(steps=1, samples=1, tokens=None, metrics={}, counts={})),
    "memory for a checkpoint": ("store", MakeRoom(size=8)),
    "a checkpoint": ("store", Seal(counter=1, step=1, previous="", size=1)),
    "names of checkpoints": ("store", Names()),
    "the end of a checkpoint": ("store", Retire(counter=1, step=1)),
    "a tidy store": ("store", Sweep()),
    "a file of the model": (
        "store",
        FileDelivered(name="model.safetensors", size=0, offset=0, length=0),
    ),
}


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("name", LEADING)
def test_what_only_the_lead_may_say_ends_the_node(node: Node, name: str, rank: int) -> None:
    assert node.ready(rank)["leads"] is False
    connection, question = LEADING[name]
    node.says(question, connection, rank)
    assert code_of(node) == ("training-failed", "channel")


LINKS: dict[str, Sequence[int]] = {
    "itself": (RANKS,),
    "a rank of its own node": (RANKS + 1,),
    "no rank": (WORLD,),
    "twice": (0, 0),
    "a large number": (1 << 16,),
}


@pytest.mark.parametrize("name", variants(LINKS, each_time=["twice"]))
def test_a_connection_that_is_none_or_was_given_ends_the_node(connected: Node, name: str) -> None:
    *before, last = LINKS[name]
    control = AskingEnd(connected.theirs[0].control)
    for peer in before:
        answer, descriptor = control.ask(TakeLink(rank=peer))
        assert set(answer) == {"sends", "receives"}
        assert descriptor is not None
        socket.close(descriptor)
    connected.says(TakeLink(rank=last))
    assert code_of(connected) == ("training-failed", "channel")


def test_the_ranks_of_a_workload_go_on_with_connections_that_the_keeper_has_no_more(
    connected: Node, companies: tuple[NodeCompany, NodeCompany]
) -> None:
    wires = []
    for rank in range(RANKS):
        number = RANKS + rank
        beside = range(RANKS, WORLD)
        handed = links_of(beside, WORLD, AskingEnd(connected.theirs[rank].control))
        assert [link.rank for link in handed] == list(range(RANKS))
        wires.append(Wire.taken_over(handed, rank=number, world=WORLD, beside=beside))
    lead, own = companies
    assert [own.link(rank, peer) for rank in range(RANKS) for peer in range(WORLD)] == [None] * 8
    for rank in range(RANKS):
        given = [lead.link(rank, peer) for peer in range(WORLD)]
        handed = [link for link in given if link]
        wires.append(Wire.taken_over(handed, rank=rank, world=WORLD, beside=range(RANKS)))
    broadcast_in_columns(wires)


def broadcast_in_columns(wires: list[Wire]) -> None:
    """The ranks of node 0 send the ranks of node 1 something, and all end."""
    views = [memoryview(bytearray(b"gradients" if wire.rank < RANKS else 9)) for wire in wires]
    form = form_of("a broadcast")

    def issued(wire: Wire, view: memoryview) -> Operation:
        column = tuple(range(wire.rank % RANKS, WORLD, RANKS))
        circle = Circle(column, column.index(wire.rank), FrameBuffers())
        operation = Operation(
            "a broadcast", lambda work: circle.broadcast(work, form, 0, view), timeout_s=SECONDS
        )
        wire.engine.submit(operation)
        return operation

    for operation in [issued(wire, view) for wire, view in zip(wires, views, strict=True)]:
        operation.wait()
    assert [bytes(view) for view in views] == [b"gradients"] * WORLD
    for wire in wires:
        threading.Thread(target=wire.close, daemon=True).start()


@pytest.mark.claim("C763")
@pytest.mark.parametrize("companies", [True], indirect=True)
def test_every_rank_of_a_script_has_frames_carried_and_no_socket_that_leads_out(
    companies: tuple[NodeCompany, NodeCompany],
) -> None:
    """Two nodes of two ranks: each rank's connection to each of the other node is the keeper's."""
    wires = []
    for node, company in enumerate(companies):
        beside = range(node * RANKS, (node + 1) * RANKS)
        for rank in range(RANKS):
            given = [company.link(rank, peer) for peer in range(WORLD)]
            handed = [link for link in given if link]
            assert [link.rank for link in handed] == [n for n in range(WORLD) if n not in beside]
            assert {link.sock.family for link in handed} == {socket.AF_UNIX}
            assert [company.link(rank, peer) for peer in range(WORLD)] == [None] * WORLD
            wires.append(Wire.taken_over(handed, rank=beside[rank], world=WORLD, beside=beside))
    broadcast_in_columns(wires)


def test_nothing_but_a_connection_is_given_before_a_rank_is_ready(connected: Node) -> None:
    _, descriptor = AskingEnd(connected.theirs[0].control).ask(TakeLink(rank=0))
    assert descriptor is not None
    socket.close(descriptor)
    connected.says(Slots(), "rows")
    assert code_of(connected) == ("training-failed", "channel")


@pytest.fixture
def auditing(tmp_path: Path, unconnected: NodeCompany) -> Iterator[Node]:
    yield from kept(tmp_path, unconnected, audit=SimpleNamespace(canaries=2))


@pytest.mark.claim("C743")
def test_its_workload_draws_canaries_from_the_runs_secret(auditing: Node) -> None:
    """Which its lead sent it: all nodes put the same canaries among the records."""
    assert auditing.ready()["secret"] == to_base64(RUN_SECRET)


def test_it_learns_what_it_trains_on_and_nothing_of_the_run(node: Node) -> None:
    stated = node.ready()
    assert set(stated) == {
        "anchored", "datasets", "leads", "model", "resume", "run_id", "secret",
    }  # fmt: skip
    assert (stated["anchored"], stated["secret"], stated["resume"]) == (0, None, None)
    node.says(Open(counter=1, step=1, digest="00" * 32, previous=""), "store")
    control = AskingEnd(node.theirs[0].control)
    with pytest.raises(EOFError):
        control.ask(Ended())
    assert node.over() is None


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("node-lost", "node-lost"),
        ("approval-revoked", "training-failed"),
        ("broker-unreachable", "training-failed"),
        ("lease-stale", "training-failed"),
        ("training-diverged", "training-diverged"),
    ],
)
def test_of_what_it_ends_with_no_text_leaves_and_no_word_of_a_broker(
    node: Node, said: str, code: str
) -> None:
    node.says(Failed(code=said, **FAILED))
    assert code_of(node)[0] == code
    error = node.over()
    assert isinstance(error, Restated)
    assert "secret-4be1a7" not in repr(vars(error.error)) + str(error.error)


def test_a_node_whose_ranks_stopped_together_asks_the_lead_why(node: Node) -> None:
    node.ready()
    node.says(Stopped())
    assert isinstance(node.over(), NodeLost)


def test_a_workload_that_goes_on_ends_with_the_lead(tmp_path: Path) -> None:
    line, lead = socket.socketpair()
    opened = NodeCompany.open(("127.0.0.1", 0), ranks=RANKS, first=RANKS)
    with (
        line,
        opened as company,
        contextmanager(kept)(tmp_path, company, leaving_seconds=0.3) as node,
    ):
        company.watch({"the lead": line})
        node.ready()
        lead.sendall(b"a word that the node reads afterwards")
        time.sleep(0.8)
        assert not node.ended
        lead.close()
        assert isinstance(node.over(), NodeLost)
