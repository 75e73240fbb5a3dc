"""The meeting of a run's nodes: every other node dials, proves itself and gets its keys.

The lead holds the meeting before it closes its sandbox. Every thread of it has ended by then: a
thread that lived on would not be bound by the kernel's rules for the process. Meanwhile the lead
renews its lease, which a long wait would outlast.

Anyone may connect. Callers have a port's places and times (``channel.ports``): connections that
stay silent keep no node out, and neither threads nor sockets grow with them.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sealtrain.base.models import load_model
from sealtrain.errors import NodeLost, SealtrainError
from sealtrain.signing.parties import node_run_id
from sealtrain.training.errors import ChannelRefused
from sealtrain_nodes.errors import NodeMissing, NodeRefused, NodeTaken
from sealtrain_nodes.messages import (
    PURPOSE,
    FromNode,
    Greeting,
    NodeReady,
    receive,
    refuse_other_data,
    refuse_other_receipts,
    send,
)
from sealtrain_together.channel.channel import AttestedChannel, accept
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.ports import Caller, gathering
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest

if TYPE_CHECKING:
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain_nodes.messages import Welcome

_BYTE_SECONDS: Final = 60.0
_TICK_SECONDS: Final = 0.2
_SPARE_CALLERS: Final = 16
_FAREWELL_SECONDS: Final = 5.0
_KEEPALIVE: Final = (
    (socket.TCP_KEEPIDLE, 30),
    (socket.TCP_KEEPINTVL, 10),
    (socket.TCP_KEEPCNT, 3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyNode:
    """A node that is ready.

    Attributes:
        node: Its number.
        host: Address that it came from.
        sock: Its connection.
        channel: Over it.
        ready: What it said.
    """

    node: int
    host: str
    sock: socket.socket
    channel: AttestedChannel
    ready: NodeReady

    def close(self, refusal: SealtrainError | None = None) -> None:
        """End the conversation, with a reason where there is one."""
        with contextlib.suppress(SealtrainError, OSError):
            self.sock.settimeout(_FAREWELL_SECONDS)  # a node that stopped reading keeps nobody
            if refusal is not None:
                send(self.channel, "refused", refusal.to_dict())
        with contextlib.suppress(SealtrainError, OSError):
            self.channel.close()


@contextmanager
def hold_meeting(
    run: GuestRun,
    listener: socket.socket,
    welcome: Welcome,
    *,
    seconds: float,
    stage: AbstractContextManager[object],
) -> Iterator[tuple[ReadyNode, ...]]:
    """Wait for every other node; their channels last as long as the block.

    Args:
        run: Of the lead.
        listener: Where nodes dial; closed when all are ready.
        welcome: Run and session that they are told.
        seconds: How long to wait.
        stage: Says so meanwhile.

    Yields:
        The nodes, in order.

    Raises:
        NodeMissing: Not all were ready in time.
        SealtrainError: The lead's lease was not renewed meanwhile.
    """
    meeting = _Meeting(run, welcome)
    error: SealtrainError | None = None
    try:
        with stage:
            meeting.wait(listener, time.monotonic() + seconds)
        yield tuple(meeting.seats[node] for node in sorted(meeting.seats))
    except SealtrainError as failed:
        error = failed
        raise
    finally:
        for seat in meeting.seats.values():
            seat.close(error)


class _Meeting:
    """The lead's view of a meeting."""

    def __init__(self, run: GuestRun, welcome: Welcome) -> None:
        self.seats: dict[int, ReadyNode] = {}
        self._welcome = welcome
        self._lease_keeper = run.lease_keeper
        self._datasets = [
            (dataset.manifest.dataset_id, dataset.manifest.root) for dataset in run.sealed_datasets
        ]
        self._conversation = ChannelTerms(
            purpose=PURPOSE,
            context=None,
            proof=ProveGuest.of(run),
            accept=AcceptGuest.of(run),
            random=os.urandom,
        )
        self._guard = threading.Lock()
        self._came = threading.Event()
        self._taken: set[int] = set()
        self._until = 0.0

    def wait(self, listener: socket.socket, until: float) -> None:
        """Until all nodes are ready. Raises ``NodeMissing``, or why the lease is not renewed."""
        wanted = self._welcome.nodes - 1
        self._until = until
        self._lease_keeper.begin()
        with (
            listener,
            gathering(
                listener,
                self._serve,
                what="the meeting of nodes",
                connections=self._welcome.nodes + _SPARE_CALLERS,
                say=lambda _line: None,  # strangers write nothing into a lead's log
            ),
        ):
            while self._count_seated() < wanted:
                if time.monotonic() > until:
                    missing = sorted(set(range(1, wanted + 1)) - set(self.seats))
                    raise NodeMissing(
                        "not all nodes of the run joined in time",
                        check="nodes",
                        got=f"missing: {', '.join(map(str, missing))}",
                        expected=f"{wanted} nodes besides this one",
                        hint="start them, each with a ticket: sealtrain deploy ticket --role node",
                    )
                self._came.wait(_TICK_SECONDS)
                self._came.clear()
                self._lease_keeper.tend()
                self._lease_keeper.require()

    def _count_seated(self) -> int:
        """How many nodes are ready; one that is gone is not, and its number is free again.

        A ready node has nothing to say before its members.
        """
        with selectors.DefaultSelector() as selector, self._guard:
            for seat in self.seats.values():
                selector.register(seat.sock, selectors.EVENT_READ, seat)
            for key, _events in selector.select(0):
                seat = key.data
                seat.close()
                del self.seats[seat.node]
                self._taken.discard(seat.node)
            return len(self.seats)

    def _serve(self, caller: Caller) -> None:
        with contextlib.suppress(SealtrainError, OSError):
            self._seat(caller)

    def _seat(self, sock: Caller) -> None:
        """Steps 1 and 2 with one caller."""
        channel = accept(sock, self._conversation, timeout=_BYTE_SECONDS)
        try:
            node = self._number(channel)
        except SealtrainError as error:
            send(channel, "refused", error.to_dict())
            raise
        _keep_alive(sock)
        try:
            send(channel, "welcome", self._welcome.to_dict())
            sock.settimeout(max(1.0, self._until - time.monotonic()))
            ready = _ready(channel, self._welcome, node)
            refuse_other_data(ready.releases, self._datasets)
        except BaseException as error:
            with self._guard:
                self._taken.discard(node)
            if isinstance(error, NodeRefused):
                send(channel, "refused", error.to_dict())
            raise
        sock.settimeout(None)
        host = str(sock.getpeername()[0])
        with self._guard:
            sock.kept = True
            self.seats[node] = ReadyNode(
                node=node, host=host, sock=sock, channel=channel, ready=ready
            )
        self._came.set()

    def _number(self, channel: AttestedChannel) -> int:
        greeting = load_model(Greeting, channel.context, ChannelRefused, "a node's greeting")
        if greeting.node >= self._welcome.nodes:
            raise NodeRefused(
                "the run has no node of this number",
                check="node",
                got=greeting.node,
                expected=f"1 to {self._welcome.nodes - 1}",
            )
        self._count_seated()  # the node of this number may have just died
        with self._guard:
            if greeting.node in self._taken:
                raise NodeTaken(
                    "another guest has joined as this node",
                    check="node",
                    got=greeting.node,
                    hint="give every node a number of its own; if the other one just died, wait",
                )
            self._taken.add(greeting.node)
        return greeting.node


def _ready(channel: AttestedChannel, welcome: Welcome, node: int) -> NodeReady:
    found = receive(channel, FromNode)
    if found is None or found.ready is None:
        raise NodeLost("a node left before it was ready", check="node")
    ready: NodeReady = found.ready
    if len(ready.ports) != welcome.ranks:
        raise NodeRefused(
            "a node has another number of ranks",
            check="ranks",
            got=len(ready.ports),
            expected=welcome.ranks,
        )
    own = node_run_id(welcome.run_id, welcome.session, node)
    refuse_other_receipts(ready.releases, own=own)
    return ready


def _keep_alive(sock: socket.socket) -> None:
    """See that a machine that vanished is noticed, however long a node may be silent."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
