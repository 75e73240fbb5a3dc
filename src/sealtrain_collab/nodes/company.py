"""All ranks of all nodes, connected to each other under keys that their guests' proofs cover.

A node opens its ports and makes its key before it knows the others. The ranks that it forks inherit
both, and each connects by itself.
"""

from __future__ import annotations

import resource
import select
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from sealtrain.base.hostport import written
from sealtrain.errors import ChannelCut, NodeLost, PeerUnreachable, UsageError
from sealtrain.training.distributed.wire.identity import NodeKey
from sealtrain.training.distributed.wire.membership import Listener, Membership, Peer
from sealtrain_collab.nodes.sharing import Sharing

if TYPE_CHECKING:
    from sealtrain.training.distributed.wire.meeting import Wire

__all__ = ["NodeCompany", "RankPlace", "allow_files"]

MEETING_SECONDS: Final = 120.0
_OTHER_FILES: Final = 512
"""Files that a rank has open besides a connection to each other rank, at most."""
ANSWER_SECONDS: Final = 30 * 60.0
"""Longest wait for another rank within a step, as within one guest."""
FABRIC: Final = Path("/dev/infiniband")
"""Where Linux shows adapters that reach other machines' memory past its network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank listens, and the public key of its node."""

    host: str
    port: int
    public_key: bytes


class NodeCompany:
    """``training.distributed.ranks.Company`` of one node; its ports are open while it is entered.

    Attributes:
        first: Global number of this node's first rank.
        world: Number of all ranks; 0 before ``meet``.
        urls: Of all ranks; empty before ``meet``.
        host: Address that this node listens at.
        ports: Of this node's ranks, in order.
        public_key: Of this node's connections.
    """

    def __init__(
        self,
        host: str,
        listeners: Sequence[Listener],
        *,
        first: int,
        meeting_seconds: float = MEETING_SECONDS,
    ) -> None:
        self._meeting_seconds = meeting_seconds
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
        self._wire: Wire | None = None
        self._lines: dict[str, socket.socket] = {}

    @classmethod
    def opened(
        cls,
        address: tuple[str, int],
        *,
        ranks: int,
        first: int,
        meeting_seconds: float = MEETING_SECONDS,
        fabric: Path = FABRIC,
    ) -> Self:
        """Listen for every rank of this node.

        Args:
            address: Host, and port of the first rank; the others follow. Port 0 for any.
            ranks: Number of them.
            first: Global number of the first.
            meeting_seconds: Longest wait for all ranks to connect.
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
        return cls(host, listeners, first=first, meeting_seconds=meeting_seconds)

    def meet(self, members: Sequence[RankPlace], *, run_id: str, session: str) -> None:
        """Learn who the ranks are.

        Args:
            members: Of every rank, in order.
            run_id: Of the run, 32 hex digits.
            session: Of the meeting, 32 hex digits.
        """
        peers = (
            Peer(address=(member.host, member.port), public_key=member.public_key)
            for member in members
        )
        self._membership = Membership(tuple(peers))
        self._session = bytes.fromhex(run_id + session)
        self.world = len(members)
        self.urls = [f"tcp://{written(member.host, member.port)}" for member in members]

    def watch(self, lines: Mapping[str, socket.socket]) -> None:
        """Connect only as long as the peers of these connections live.

        Args:
            lines: By the name of the node at the other end. Nothing is read from them.
        """
        self._lines = dict(lines)

    def _gone(self) -> str | None:
        """The first of the watched nodes that ended its connection, or the system did."""
        return next((name for name, line in self._lines.items() if _is_over(line)), None)

    def connect(self, rank: int) -> None:
        """As ``Company``."""
        from sealtrain.training.distributed.wire.group import join
        from sealtrain.training.distributed.wire.meeting import connect

        if self._membership is None:
            raise AssertionError("ranks connect after their node has met the others")
        allow_files(self.world)
        try:
            self._wire = connect(
                self._membership,
                rank,
                self._listeners[rank - self.first],
                self._key,
                self._session,
                timeout_s=self._meeting_seconds,
                lost=self._gone,
            )
        except (ChannelCut, PeerUnreachable) as error:
            raise NodeLost(
                "not all ranks of the run connected",
                check="node",
                got=error.got or error.code,
                hint="the run goes on when all nodes have joined again",
            ) from error
        join(self._wire, timeout_s=ANSWER_SECONDS)

    def sharing(self) -> Sharing:
        """The way from node 0 to all nodes, once this node's first rank is connected."""
        if self._wire is None:
            raise AssertionError("nodes share what they have once their ranks are connected")
        return Sharing(self._wire, len(self.ports))

    def leave(self) -> None:
        """As ``Company``; the other ranks learn that it was meant."""
        if self._wire is not None:
            from sealtrain.training.distributed.wire.group import leave

            leave()
        for listener in self._listeners:
            listener.close()

    def blamed(self) -> NodeLost | None:
        """The end of the connections, if that is why training failed in this process."""
        failure = None if self._wire is None else self._wire.failure
        if self._wire is None or failure is None:
            return None
        lost = self._wire.lost_rank
        return NodeLost(
            "another node of the run ended, or the network between nodes did",
            check="node",
            got=failure.code if lost is None else f"rank {lost}, {failure.code}",
            hint="the run goes on from its last checkpoint when all nodes have joined again",
        )

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


def allow_files(connections: int) -> None:
    """Let this process have so many connections and its other files open.

    Raises:
        UsageError: The machine allows fewer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise UsageError(
            "a rank may not have a connection to each other rank open",
            check="open files",
            got=hard,
            expected=f"at least {wanted}",
            hint="raise the limit: ulimit -Hn",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
