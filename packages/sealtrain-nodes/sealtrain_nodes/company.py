"""All ranks of all nodes, connected to each other under keys that their guests' proofs cover.

A node opens its ports and makes its key before it knows the others. Its keeper connects every rank
of it, and hands each connection over to the workload's process of that rank: the key of the node
and the listening ports stay with the keeper. Where the workload runs a script, the connections stay
too (``relay``).
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from sealtrain.base.hostport import write_host_and_port
from sealtrain.errors import NodeLost, UsageError
from sealtrain.training.errors import ChannelCut, PeerUnreachable
from sealtrain_nodes.relay import FrameRelay
from sealtrain_nodes.sharing import Sharing
from sealtrain_nodes.wire.identity import NodeKey
from sealtrain_nodes.wire.meeting import Wire, connect
from sealtrain_nodes.wire.membership import Listener, Membership, RankPeer
from sealtrain_nodes.wire.openfiles import allow_files

if TYPE_CHECKING:
    from sealtrain_nodes.wire.link import HandedLink

MEETING_SECONDS: Final = 120.0
FABRIC: Final = Path("/dev/infiniband")
"""Where Linux shows adapters that reach other machines' memory past its network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank listens, and the public key of its node."""

    host: str
    port: int
    public_key: bytes


class NodeCompany:
    """The ranks of one node, as ``guest.fellows.HandedLinks``; its ports are open while entered.

    Attributes:
        waits: What a workload may report of other nodes: that one is lost.
        first: Global number of this node's first rank.
        world: Number of all ranks; 0 before ``meet``.
        urls: Of all ranks; empty before ``meet``.
        host: Address that this node listens at.
        ports: Of this node's ranks, in order.
        public_key: Of this node's connections.
    """

    waits: Collection[str] = (NodeLost.code,)

    def __init__(
        self,
        host: str,
        listeners: Sequence[Listener],
        *,
        first: int,
        meeting_seconds: float = MEETING_SECONDS,
        carries: bool = False,
    ) -> None:
        self._meeting_seconds = meeting_seconds
        self._relay = FrameRelay() if carries else None
        self.host = host
        self.first = first
        self.world = 0
        self.urls: Sequence[str] = ()
        self.ports = tuple(listener.address[1] for listener in listeners)
        self._listeners = listeners
        self._key = NodeKey.make()
        self.public_key = self._key.public_key
        self._membership: Membership | None = None
        self._session = b""
        self._wires: list[Wire] = []
        self._handing = threading.Lock()
        self._handed: dict[int, dict[int, HandedLink]] = {}
        self._failed = False
        self._lines: dict[str, socket.socket] = {}

    @classmethod
    def open(
        cls,
        address: tuple[str, int],
        *,
        ranks: int,
        first: int,
        meeting_seconds: float = MEETING_SECONDS,
        carries: bool = False,
        fabric: Path = FABRIC,
    ) -> Self:
        """Listen for every rank of this node.

        Args:
            address: Host, and port of the first rank; the others follow. Port 0 for any.
            ranks: Number of them.
            first: Global number of the first.
            meeting_seconds: Longest wait for all ranks to connect.
            carries: Keep the sessions here, and carry frames for the ranks (``relay``).
            fabric: Folder with the adapters of InfiniBand.

        Raises:
            UsageError: An address cannot be bound, or the guest has InfiniBand.
        """
        _refuse_fabric(fabric)
        host, port = address
        listeners: list[Listener] = []
        with ExitStack() as undoing:
            for number in range(ranks):
                listeners.append(Listener.open(host, port + number if port else 0))
                undoing.callback(listeners[-1].close)
            undoing.pop_all()
        return cls(host, listeners, first=first, meeting_seconds=meeting_seconds, carries=carries)

    def meet(self, members: Sequence[RankPlace], *, run_id: str, session: str) -> None:
        """Learn who the ranks are.

        Args:
            members: Of every rank, in order.
            run_id: Of the run, 32 hex digits.
            session: Of the meeting, 32 hex digits.
        """
        peers = (
            RankPeer(address=(member.host, member.port), public_key=member.public_key)
            for member in members
        )
        self._membership = Membership(tuple(peers))
        self._session = bytes.fromhex(run_id + session)
        self.world = len(members)
        self.urls = [f"tcp://{write_host_and_port(member.host, member.port)}" for member in members]

    def watch(self, lines: Mapping[str, socket.socket]) -> None:
        """Connect only as long as the peers of these connections live.

        Args:
            lines: By the name of the node at the other end. Nothing is read from them.
        """
        self._lines = dict(lines)

    def connect(self) -> None:
        """Connect every rank of this node to all others, each under the key of this node.

        Raises:
            NodeLost: Not all ranks of the run connected.
            SealtrainError: A rank is not the expected one, or may not have as many connections.
        """
        if self._membership is None:
            raise AssertionError("ranks connect after their node has met the others")
        allow_files(self.world * len(self._listeners))
        found: dict[int, Wire] = {}
        errors: list[BaseException] = []
        threads = [
            threading.Thread(target=self._connect, args=(rank, found, errors), daemon=True)
            for rank in range(len(self._listeners))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._wires = [found[rank] for rank in sorted(found)]
        if not errors:
            return
        error = errors[0]
        if isinstance(error, ChannelCut | PeerUnreachable):
            raise NodeLost(
                "not all ranks of the run connected",
                check="node",
                got=error.got or error.code,
                hint="the run goes on when all nodes have joined again",
            ) from error
        raise error

    def _connect(self, rank: int, found: dict[int, Wire], errors: list[BaseException]) -> None:
        membership = self._membership
        if membership is None:
            raise AssertionError("there is a membership by now")
        try:
            found[rank] = connect(
                membership,
                self.first + rank,
                self._listeners[rank],
                self._key,
                self._session,
                timeout_s=self._meeting_seconds,
                lost=self.find_gone,
            )
        except BaseException as error:
            errors.append(error)
            self._failed = True

    def find_gone(self) -> str | None:
        """The first of the watched nodes that ended its connection, or the system did."""
        if self._failed:
            return "a rank of this node"
        return next((name for name, line in self._lines.items() if _is_over(line)), None)

    def sharing(self) -> Sharing:
        """The way from node 0 to all nodes, until the first rank's connections are handed over."""
        if not self._wires:
            raise AssertionError("nodes share what they have once their ranks are connected")
        return Sharing(self._wires[0], len(self.ports))

    def link(self, rank: int, peer: int) -> HandedLink | None:
        """As ``HandedLinks``: each connection once. Thread-safe.

        Raises:
            SealtrainError: What ended the connections before.
        """
        with self._handing:
            if rank not in self._handed:
                if not 0 <= rank < len(self._wires):
                    return None
                self._handed[rank] = {link.rank: link for link in self._wires[rank].hand_over()}
            handed = self._handed[rank].pop(peer, None)
            if handed is None or self._relay is None:
                return handed
            return self._relay.carry(handed)

    def leave(self) -> None:
        """Close what was not handed over; the other ranks learn that it was meant."""
        with self._handing:
            for wire in self._wires:
                wire.close()  # nothing, where its connections were handed over
            for links in self._handed.values():
                while links:
                    links.popitem()[1].sock.close()
        if self._relay is not None:
            self._relay.close()
        for listener in self._listeners:
            listener.close()

    def explain_failure(self) -> NodeLost | None:
        """The end of the connections, if that is what happened before they were handed over."""
        for wire in self._wires:
            if wire.failure is not None:
                lost = wire.lost_rank
                code = wire.failure.code
                return NodeLost(
                    "another node of the run ended, or the network between nodes did",
                    check="node",
                    got=code if lost is None else f"rank {lost}, {code}",
                    hint="the run goes on from its last checkpoint when all nodes have joined "
                    "again",
                )
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()


def _is_over(line: socket.socket) -> bool:
    """Whether the peer, or the system, ended a connection, even if words of it were not read."""
    poll = select.poll()
    poll.register(line, select.POLLRDHUP)
    return bool(poll.poll(0))


def _refuse_fabric(fabric: Path) -> None:
    """Refuse adapters through which tensors could leave in clear, past the wire.

    Raises:
        UsageError: The guest has one.
    """
    adapters = sorted(path.name for path in fabric.glob("uverbs*"))
    if adapters:
        raise UsageError(
            "InfiniBand and RoCE cannot be protected yet: nodes train without them",
            check="infiniband",
            got=", ".join(adapters),
            expected="none",
            hint="start the guest without the adapter",
        )
