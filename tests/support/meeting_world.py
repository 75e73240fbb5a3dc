"""Nodes that meet in one process: real evidence, channels, sockets, receipts; nobody trains.

``Lead`` stands for the run that a lead belongs to, and holds its meeting in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import yaml
from channel_world import acceptance, guest
from manifest_world import LEASE_S, RELEASED, World, make_world
from world import RECIPE, digest, simulated_policy

from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.report_data import Binding
from sealtrain.base.clock import to_rfc3339
from sealtrain.consortium.receipts import Lease, ReleaseReceipt
from sealtrain.errors import SealtrainError
from sealtrain.guest.guest import Surroundings
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.store import SealedStore
from sealtrain.signing.parties import node_run_id
from sealtrain_nodes.company import NodeCompany
from sealtrain_nodes.guest.lead import LeadNode
from sealtrain_nodes.guest.leadchannel import Introduced, LeadChannel
from sealtrain_nodes.messages import Welcome
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest

NOW = 1_790_000_000
RUN_ID = "5a" * 16
PATIENCE = 20.0


def nodes_world(
    folder: Path,
    *,
    nodes: int,
    ranks: int,
    join_seconds: int = 20,
    brokers: Collection[str] | None = None,
    resume_nodes: Sequence[int] = (),
    resume_ranks: Sequence[int] = (),
) -> World:
    """A consortium that approved a recipe of several nodes; ``brokers`` as ``make_world``."""
    (folder / "policy.yaml").write_text(yaml.safe_dump(simulated_policy().to_dict()))
    together: dict[str, Any] = {
        "kind": "nodes",
        "policy": "policy.yaml",
        "nodes": nodes,
        "join_seconds": join_seconds,
    }
    backend: dict[str, Any] = {"name": "trl", "ranks": ranks}
    trainer = RECIPE["trainer"]
    if resume_nodes:
        together["resume_nodes"] = list(resume_nodes)
    if resume_ranks:
        backend["resume_ranks"] = list(resume_ranks)
        trainer = trainer | {"gradient_accumulation_steps": 12}
    changed = {"collaboration": together, "backend": backend, "trainer": trainer}
    return make_world(folder, RECIPE | changed, brokers=brokers)


def receipt_of(
    world: World, node: int, session: str, *, at: int = RELEASED, **changed: Any
) -> ReleaseReceipt:
    """The receipt of one node for all data."""
    ends = Lease(lease_id=digest(f"{session} {node}"), not_after=to_rfc3339(at + LEASE_S))
    usual = {
        "run_id": node_run_id(RUN_ID, session, node),
        "released_at": to_rfc3339(at),
        "lease": ends,
    }
    return world.receipt(**usual | changed)


@dataclass
class ToldLeaseKeeper:
    """What a meeting asks of the lead's lease keeper, and what it is told.

    Attributes:
        told: Why training is to end.
        refusal: Why the lease is not renewed, from the second question on.
        asked: How often it was tended.
    """

    told: list[SealtrainError | None] = field(default_factory=list)
    refusal: SealtrainError | None = None
    asked: int = 0

    def begin(self) -> None:
        self.asked = 0

    def tend(self) -> float:
        self.asked += 1
        return 1.0

    def require(self) -> None:
        if self.refusal is not None and self.asked > 1:
            raise self.refusal

    def end_soon(self, why: SealtrainError | None = None) -> None:
        self.told.append(why)


class Run:
    """What a meeting needs of ``GuestRun``."""

    def __init__(self, world: World, folder: Path, join_seconds: float | None = None) -> None:
        locked = world.locked
        self.recipe: PhaseRecipe = locked.lock.recipe
        if join_seconds is not None:
            how = self.recipe.collaboration.model_copy(update={"join_seconds": join_seconds})
            self.recipe = self.recipe.model_copy(update={"collaboration": how})
        self.run_id = RUN_ID
        self.settings = SimpleNamespace(listen="127.0.0.1:0")
        self.compose_hash: str = locked.compose_hash
        self.policy: AppraisalPolicy = simulated_policy()
        self._proof = guest(locked.compose_bytes)
        self._collecting = threading.Lock()
        self.secret = DataKey(b"s" * 32)
        self.checkpoint_key = DataKey(b"c" * 32)
        self.store = SealedStore(folder, self.checkpoint_key, label=self.run_id)
        self.lease_keeper = ToldLeaseKeeper()
        self.lease_seconds = 60.0
        self.lease = SimpleNamespace(seconds_left=lambda: self.lease_seconds)
        self.sealed_datasets = [
            SimpleNamespace(manifest=dataset) for dataset in world.receipt().datasets
        ]
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.receipts: list[dict[str, Any]] = []
        self.address: tuple[str, int] | None = None
        self.opened = threading.Event()
        self.around = Surroundings(on_stage=self.stage)

    def collect(self, binding: Binding) -> Any:
        with self._collecting:
            return self._proof.collect(binding)

    def now(self) -> int:
        return NOW

    def stage(self, text: str) -> AbstractContextManager[object]:
        if " at " in text:
            host, _, port = text.rpartition(" at ")[2].rpartition(":")
            self.address = (host, int(port))
            self.opened.set()
        return nullcontext()

    def record(self, event: str, fields: dict[str, Any]) -> None:
        self.log.append((event, fields))

    def keep_receipts(self, receipts: list[dict[str, Any]]) -> None:
        self.receipts += receipts


class Lead:
    """A lead that meets its nodes; use as a context.

    Attributes:
        run: Whose lead it is.
        lead: The lead, once all have met.
        error: What the meeting ended with.
        threads: Threads of the process just after the meeting.
    """

    def __init__(self, run: Run, use: Callable[[LeadNode], None] = lambda _lead: None) -> None:
        self.run = run
        self.lead: LeadNode | None = None
        self.error: SealtrainError | None = None
        self.threads: list[str] = []
        self._use = use
        self._met, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._meet, name="the lead", daemon=True)

    def _meet(self) -> None:
        run: Any = self.run
        try:
            with LeadNode.meet(run) as lead:
                self.threads = [thread.name for thread in threading.enumerate()]
                self.lead = lead
                self._met.set()
                self._use(lead)
                self._over.wait(PATIENCE)
        except SealtrainError as error:
            self.error = error
        finally:
            self.run.opened.set()
            self._met.set()

    @property
    def address(self) -> tuple[str, int]:
        assert self.run.opened.wait(PATIENCE)
        assert self.run.address is not None, self.error
        return self.run.address

    def met(self) -> LeadNode:
        """Wait until all have met."""
        assert self._met.wait(PATIENCE)
        assert self.lead is not None, self.error
        return self.lead

    def ended(self) -> SealtrainError | None:
        """Wait until the meeting is over, whatever ended it."""
        self._over.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended()


class Node:
    """A node that comes to a lead. What it says is a test's; by itself it is honest."""

    def __init__(
        self,
        world: World,
        number: int,
        address: tuple[str, int],
        *,
        proof: ProveGuest | None = None,
        accept: AcceptGuest | None = None,
        seconds: float = 10.0,
        source: str | None = None,
    ) -> None:
        self.world, self.number = world, number
        compose = world.locked.compose_bytes
        self.channel = LeadChannel.dial(
            address,
            node=number,
            proof=proof or guest(compose),
            accept=accept or acceptance(compose),
            seconds=seconds,
            source=source,
        )

    @property
    def settings(self) -> tuple[int, int]:
        recipe = self.world.locked.lock.recipe
        how: Any = recipe.collaboration
        return how.nodes, recipe.backend.ranks

    def welcomed(self) -> Welcome:
        nodes, ranks = self.settings
        self.welcome = self.channel.welcome(nodes={nodes}, ranks={ranks})
        return self.welcome

    def releases(self, **changed: Any) -> list[dict[str, Any]]:
        session = changed.pop("session", self.welcome.session)
        return list(self.world.record(receipt_of(self.world, self.number, session, **changed)))

    @contextmanager
    def introduced(
        self, releases: list[dict[str, Any]] | None = None
    ) -> Iterator[tuple[NodeCompany, Introduced]]:
        nodes, ranks = self.settings
        first = self.number * ranks
        with NodeCompany.open(("127.0.0.1", 0), ranks=ranks, first=first) as mine:
            shown = self.releases() if releases is None else releases
            yield (
                mine,
                self.channel.introduce(mine, shown, since=NOW, world=nodes * ranks),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


@contextmanager
def joining(world: World, number: int, lead: Lead) -> Iterator[_Coming]:
    """An honest node that comes, and stays until the block ends."""
    coming = _Coming(world, number, lead.address)
    coming.thread.start()
    try:
        yield coming
    finally:
        coming.leave.set()
        coming.thread.join(PATIENCE)


class _Coming:
    def __init__(self, world: World, number: int, address: tuple[str, int]) -> None:
        self.leave = threading.Event()
        self.met = threading.Event()
        self.introduced: Introduced | None = None
        self.node: Node | None = None
        self.error: SealtrainError | None = None
        self._given = (world, number, address)
        self.thread = threading.Thread(target=self._come, name=f"comes as {number}", daemon=True)

    def _come(self) -> None:
        try:
            with Node(*self._given) as node:
                self.node = node
                node.welcomed()
                with node.introduced() as (_mine, self.introduced):
                    self.met.set()
                    self.leave.wait(PATIENCE)
        except SealtrainError as error:
            self.error = error
        finally:
            self.met.set()

    def ready(self) -> Introduced:
        assert self.met.wait(PATIENCE)
        assert self.introduced is not None, self.error
        return self.introduced


def other_compose(world: World) -> bytes:
    """A deployment that owners never approved."""
    return bytes(world.locked.compose_bytes).replace(b"{", b'{"another": 1, ', 1)


def forged(proof: ProveGuest, **changed: Any) -> ProveGuest:
    return replace(proof, **changed)
