"""Node 0: the run's own guest, which meets the others and keeps log, checkpoints and manifest.

It is the ``Fellows`` of the run (``guest.fellows``), in this order (spec/nodes.md §3):

1. ``meet``: every other node has proven itself and has its keys; all know each other's addresses;
2. ``connect``: the ranks of all nodes are connected to each other, and the sandbox closes;
3. ``begin``: the log names the nodes, and each gets the checkpoint to begin from;
4. ``listen``: while training goes on, each node's receipts and its wish to stop arrive here;
5. ``link`` gives each connection to the rank of the workload that it is for, once;
6. ``finish``: every node is done, with its lease live.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.hostport import host_and_port, write_host_and_port
from sealtrain.errors import NodeLost, Refused, SealtrainError, UsageError, error_by_code
from sealtrain.guest.errors import TrainingFailed
from sealtrain.recipe.collaboration import of_kind
from sealtrain.recipe.collaborations.nodes import Nodes
from sealtrain.signing.parties import node_run_id
from sealtrain.training.checkpoints.shardnames import ShardRef, shards_beside
from sealtrain.training.errors import ChannelBroken, PeerUnreachable, RankLost
from sealtrain_nodes.company import NodeCompany, RankPlace
from sealtrain_nodes.errors import NodeRefused
from sealtrain_nodes.guest.meeting import ReadyNode, hold_meeting
from sealtrain_nodes.messages import (
    FromNode,
    ListeningRank,
    SentCheckpoint,
    SentShard,
    Welcome,
    raise_if_cut,
    receive,
    refuse_other_receipts,
    send,
)
from sealtrain_together.channel.ports import bind

if TYPE_CHECKING:
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain_nodes.wire.link import HandedLink

_DONE_SECONDS: Final = 15 * 60.0
_LOOK_SECONDS: Final = 1.0
"""Between two looks at the lease while other nodes are awaited."""
_GRACE_SECONDS: Final = 5.0
_TAKING_SECONDS: Final = 5 * 60.0
"""Longest wait for a node that does not take what it is told."""
_THE_OTHERS = (ChannelBroken, NodeLost, PeerUnreachable, RankLost, TrainingFailed)
"""What training ends with where the cause may be another node's end."""


class LeadNode:
    """See the module. Made by ``meet``."""

    def __init__(
        self, run: GuestRun, company: NodeCompany, session: str, seats: Sequence[ReadyNode]
    ) -> None:
        self.company = company
        self.urls = company.urls
        self._run = run
        self._session = session
        self._seats = seats
        self.run_ids = [node_run_id(run.run_id, session, seat.node) for seat in seats]
        self._changed = threading.Condition()
        self._done: set[int] = set()
        self._gone: dict[int, SealtrainError] = {}
        self._over = False

    @classmethod
    @contextmanager
    def meet(cls, run: GuestRun) -> Iterator[Self]:
        """Step 1, for as long as the block lasts.

        Raises:
            NodeMissing: Not all nodes were ready in time.
            NodeRefused: Two nodes have one key.
            UsageError: The address to listen at cannot be bound.
        """
        how, ranks = of_kind(run.recipe, Nodes), run.recipe.backend.ranks
        if run.settings.listen is None:
            raise UsageError("nodes need an address to join at", expected="--listen HOST:PORT")
        address = host_and_port(run.settings.listen)
        listener = bind(address, what="nodes")
        host, port = address
        company = NodeCompany.open(
            (host, port and port + 1), ranks=ranks, first=0, carries=bool(run.recipe.scripts)
        )
        session = os.urandom(16).hex()
        welcome = Welcome(run_id=run.run_id, session=session, nodes=how.nodes, ranks=ranks)
        at = write_host_and_port(*listener.getsockname()[:2])
        with company:
            others = "node 1" if how.nodes == 2 else f"nodes 1 to {how.nodes - 1}"
            waiting = run.around.on_stage(f"waiting for {others} of run {run.run_id} at {at}")
            with hold_meeting(
                run, listener, welcome, seconds=how.join_seconds, stage=waiting
            ) as seats:
                yield cls._introduce(run, company, session, seats)

    @classmethod
    def _introduce(
        cls, run: GuestRun, company: NodeCompany, session: str, seats: Sequence[ReadyNode]
    ) -> Self:
        """Tell all nodes of each other."""
        key = to_base64(company.public_key)
        members = [ListeningRank(host=None, port=port, public_key=key) for port in company.ports]
        members += [
            ListeningRank(host=seat.host, port=port, public_key=seat.ready.public_key)
            for seat in seats
            for port in seat.ready.ports
        ]
        keys = [key, *(seat.ready.public_key for seat in seats)]
        if len(set(keys)) != len(keys):
            raise NodeRefused("two nodes have the same key", check="public_key")
        listed = [member.to_dict() for member in members]
        for seat in seats:
            with _taking(seat):
                send(seat.channel, "members", listed)
                with raise_if_cut():
                    seat.channel.send(run.secret.reveal())
                    seat.channel.send(run.checkpoint_key.reveal())
        company.meet(
            [
                RankPlace(
                    host=member.host or company.host,
                    port=member.port,
                    public_key=from_base64(member.public_key),
                )
                for member in members
            ],
            run_id=run.run_id,
            session=session,
        )
        company.watch({f"node {seat.node}": seat.sock for seat in seats})
        return cls(run, company, session, seats)

    @property
    def waits(self) -> Collection[str]:
        """As ``Fellows``."""
        return self.company.waits

    def connect(self) -> None:
        """As ``Fellows``."""
        self.company.connect()

    def link(self, rank: int, peer: int) -> HandedLink | None:
        """As ``Fellows``."""
        return self.company.link(rank, peer)

    def begin(self, checkpoint: CheckpointRef | None) -> None:
        """As ``Fellows``."""
        run = self._run
        run.record(
            "nodes.joined",
            {
                "session": self._session,
                "ranks": run.recipe.backend.ranks,
                "nodes": [
                    {
                        "node": seat.node,
                        "run_id": run_id,
                        "evidence": seat.channel.peer.evidence_digest,
                        "key": sha256_hex(from_base64(seat.ready.public_key)),
                        "from": seat.ready.begun,
                    }
                    for seat, run_id in zip(self._seats, self.run_ids, strict=True)
                ],
            },
        )
        sent = None if checkpoint is None else self._announce(checkpoint)
        for seat in self._seats:
            run.keep_receipts([release.to_dict() for release in seat.ready.releases])
            with _taking(seat):
                said = None if sent is None else sent.to_dict()
                send(seat.channel, "begin", {"checkpoint": said})
        if checkpoint is not None and sent is not None:
            blobs = [(checkpoint.name, sent.size)]
            for ref, shard in zip(self._shards_of(checkpoint), sent.shards, strict=True):
                blobs.append((ref.name, shard.size))
            sharing = self.company.sharing()
            for name, size in blobs:
                with run.store.path(name).open("rb") as file:
                    sharing.send(file, size)

    def _shards_of(self, checkpoint: CheckpointRef) -> list[ShardRef]:
        return list(shards_beside(self._run.store, checkpoint.counter, checkpoint.step))

    def _announce(self, checkpoint: CheckpointRef) -> SentCheckpoint:
        store = self._run.store
        return SentCheckpoint(
            counter=checkpoint.counter,
            step=checkpoint.step,
            digest=checkpoint.digest,
            previous=checkpoint.previous,
            size=store.path(checkpoint.name).stat().st_size,
            shards=tuple(
                SentShard(
                    number=ref.number,
                    count=ref.count,
                    size=store.path(ref.name).stat().st_size,
                )
                for ref in self._shards_of(checkpoint)
            ),
        )

    @contextmanager
    def listen(self) -> Iterator[None]:
        """As ``Fellows``."""
        threads = [
            threading.Thread(
                target=self._listen, args=(seat,), name=f"node-{seat.node}", daemon=True
            )
            for seat in self._seats
        ]
        for thread in threads:
            thread.start()
        yield

    def finish(self) -> None:
        """As ``Fellows``, no longer than the lead's own lease lasts."""
        until = time.monotonic() + _DONE_SECONDS
        wanted = {seat.node for seat in self._seats}
        with self._changed:
            while not self._gone and self._done != wanted:
                left = min(until - time.monotonic(), self._run.lease.seconds_left())
                if left <= 0:
                    break
                self._changed.wait(min(left, _LOOK_SECONDS))
            if self._done != wanted:
                raise self._blame() or NodeLost(
                    "not all nodes ended with the run",
                    check="node",
                    got=", ".join(map(str, sorted(wanted - self._done))),
                )
            self._over = True

    def why(self, error: SealtrainError) -> SealtrainError:
        """As ``Fellows``: the end of another node, if that is why this one's ranks failed."""
        if not isinstance(error, _THE_OTHERS):
            return error
        with self._changed:
            self._changed.wait_for(lambda: self._gone, _GRACE_SECONDS)
            return self._blame() or self.company.explain_failure() or error

    def _blame(self) -> SealtrainError | None:
        """What the first node ended with that is gone: others may have ended because of it."""
        return next(iter(self._gone.values()), None)

    def _listen(self, seat: ReadyNode) -> None:
        """All that one node says, until it is done or gone."""
        try:
            while (said := receive(seat.channel, FromNode)) is not None:
                if said.renewed is not None:
                    own = node_run_id(self._run.run_id, self._session, seat.node)
                    refuse_other_receipts(said.renewed.releases, own=own)
                    self._run.keep_receipts(
                        [release.to_dict() for release in said.renewed.releases]
                    )
                elif said.stopping is not None:
                    self._run.lease_keeper.end_soon(_about_to_end(seat.node, said.stopping.code))
                elif said.done is not None:
                    with self._changed:
                        self._done.add(seat.node)
                        self._changed.notify_all()
                    return
                else:
                    raise ChannelBroken("a node said what it says once, again", check="message")
            raise NodeLost("a node left the run", check="node", got="no word")
        except SealtrainError as error:
            self._note_end(seat.node, error)

    def _note_end(self, node: int, error: SealtrainError) -> None:
        """A node is gone, or to be trusted no more: no later step can count."""
        if isinstance(error, NodeLost):
            error = NodeLost(
                f"node {node} ended before the run did",
                check="node",
                got=error.got,
                hint="the run goes on from its last checkpoint when all nodes have joined: "
                "sealtrain resume",
            )
        with self._changed:
            if self._over:
                return
            self._gone[node] = error
            self._changed.notify_all()
        self._run.lease_keeper.end_soon(error)


def _about_to_end(node: int, code: str) -> SealtrainError:
    """What the run ends with where a node has to: the refusal that the brokers gave the node."""
    kind = error_by_code(code)
    if issubclass(kind, Refused) and kind is not Refused:
        return kind(f"node {node} may not use its keys any longer", check="node", got=code)
    return NodeLost(f"node {node} is about to end", check="node", got=code)


@contextmanager
def _taking(seat: ReadyNode) -> Iterator[None]:
    """Give a node up that does not take what is sent to it within the block."""
    seat.sock.settimeout(_TAKING_SECONDS)
    yield
    seat.sock.settimeout(None)
