"""Several brokers of one consortium and data that is shared over them, in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from release_world import ReleaseWorld, SealedSet, Wire, release_world
from world import DAY, OWNERS, deployed, identity

from sealtrain.base.canonical import JsonValue
from sealtrain.client.broker_proof import AttestedBroker
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.grants import Grants, WantedKey
from sealtrain.client.pin import BrokerPin
from sealtrain.client.quorum import Quorum
from sealtrain.client.wrapping import wrap_for_brokers
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.receipts import OwnedId
from sealtrain.errors import SealtrainError
from sealtrain.release.lease_code import Closing
from sealtrain.release.messages import RegisteredDatasets
from sealtrain.sealing.stanza import Stanza


@dataclass(kw_only=True)
class QuorumWire(Wire):
    """A ``BrokerClient`` of one of several brokers, which its host may take down."""

    url: str
    down: bool = False

    def consortium(self, consortium_id: str) -> Consortium:
        assert self._up().broker.consortium.consortium_id == consortium_id
        return self.broker.consortium

    def ask_registered(self, wanted: Sequence[OwnedId], **query: str) -> frozenset[OwnedId]:
        registry = self._up().broker.registry
        found = set()
        for owned in wanted:
            asked = {**query, "owner_id": owned.owner_id, "dataset_ids": [owned.dataset_id]}
            page = self.answered(RegisteredDatasets, registry.list_registered(**asked))
            found |= {OwnedId(owned.owner_id, value) for value in page.dataset_ids}
        return frozenset(found)

    def decisions(self, target: Any) -> list[dict[str, JsonValue]]:
        return [
            decision.to_dict() for decision in self._up().broker.registry.tally(target).decisions
        ]

    def submit_manifest(self, manifest: bytes, closing: Closing) -> int:
        registry = self._up().broker.registry
        return registry.submit_manifest(manifest, registry.run_of(closing.lease_id)).index

    def close(self) -> None:
        """There is no connection."""

    def _up(self) -> QuorumWire:
        if self.down:
            raise BrokerUnreachable(f"{self.url} does not answer", check="broker")
        return self

    def answered(self, cls: Any, answer: Any) -> Any:
        return super().answered(cls, answer) if self._up() else None

    def sent(self, cls: Any, request: Any) -> Any:
        return super().sent(cls, request) if self._up() else None


@dataclass(kw_only=True)
class QuorumWorld:
    worlds: list[ReleaseWorld]
    wires: list[QuorumWire]
    wanted: list[WantedKey] = field(default_factory=list)
    sealed: dict[str, SealedSet] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)

    @property
    def first(self) -> ReleaseWorld:
        return self.worlds[0]

    def attested(self) -> list[AttestedBroker]:
        return [
            world.attest(wire=wire) for world, wire in zip(self.worlds, self.wires, strict=True)
        ]

    def share(self, owner: str, threshold: int | None, *at: int) -> tuple[Stanza, ...]:
        """Seal an owner's data for brokers (all, unless ``at`` names some) and register it."""
        chosen = at or tuple(range(len(self.worlds)))
        one = self.sealed[owner] = self.first.seal(owner)
        brokers = self.attested()
        stanzas = wrap_for_brokers(
            one.key,
            dataset_id=one.dataset_id,
            owner=identity(owner).public,
            brokers=[brokers[place] for place in chosen],
            threshold=threshold,
        )
        for place in chosen:
            self.worlds[place].register(one)
        self.wanted.append(
            WantedKey(
                dataset_id=one.dataset_id,
                root=one.root,
                owner=owner,
                owner_id=identity(owner).public.owner_id,
                stanzas=stanzas,
            )
        )
        return stanzas

    def approve(self, *owners: str) -> None:
        for world in self.worlds:
            for owner in owners:
                pins = [self.sealed[owner].pin] if owner in self.sealed else []
                world.approve(owner, datasets=pins, not_after=world.clock() + 30 * DAY)

    def pin(self, place: int) -> BrokerPin:
        return self.worlds[place].pin.model_copy(update={"url": self.wires[place].url})

    def quorum(self, *at: int) -> Quorum:
        wires = {wire.url: wire for wire in self.wires}
        return Quorum(
            [self.pin(place) for place in (at or range(len(self.wires)))],
            consortium_id=self.first.consortium.consortium_id,
            deployed=deployed(self.first.locked),
            clock=self.first.clock,
            on_failure=lambda url, error: self.told.append((url, error.code)),
            client=lambda url: wires[url],
            sleep=self.slept.append,
        )

    def obtain(self, quorum: Quorum | None = None, **changed: Any) -> Grants:
        arguments: dict[str, Any] = {
            "run_id": os.urandom(16).hex(),
            "recipe_hash": self.first.locked.recipe_hash,
            "datasets": self.wanted,
            "resume": False,
        } | changed
        collect = arguments.pop("collect", None) or self.collect
        return (quorum or self.quorum()).obtain(collect, **arguments)

    def collect(self, binding: Any) -> Any:
        return self.first.collect(self.first.guest())(binding)

    def renew(
        self, quorum: Quorum, grants: Grants, checkpoint: tuple[int, str] | None = None
    ) -> tuple[Grants, SealtrainError | None]:
        return quorum.renew(grants, self.collect, checkpoint)

    def advance(self, seconds: int) -> None:
        for world in self.worlds:
            world.clock.advance(seconds)


@contextmanager
def quorum_world(
    folder: Path, *, threshold: int | None = 2, count: int = 3, **world: Any
) -> Iterator[QuorumWorld]:
    """Three brokers, three owners whose data any two of the brokers open, all approved."""
    with ExitStack() as stack:
        roots = tuple(bytes([place + 1]) * 32 for place in range(count))
        worlds = [
            stack.enter_context(
                release_world(folder, approved_by=(), root=root, **({"brokers": roots} | world))
            )
            for root in roots
        ]
        wires = [
            QuorumWire(broker=world.broker, url=f"http://127.0.0.1:{place + 1}")
            for place, world in enumerate(worlds)
        ]
        made = QuorumWorld(worlds=worlds, wires=wires)
        if threshold is not None:
            for owner in OWNERS:
                made.share(owner, threshold)
            made.approve("hospital-a", "hospital-b")
        yield made
