"""Parties of masked sums in one process, introduced by a broker's key, and a lead between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from world import signer

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.consortium.receipts import Lease, ReleasedDataset, ReleaseReceipt, sign_receipt
from sealtrain.release.messages import ledger_origin
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.signing.identity import broker_id
from sealtrain.signing.parties import party_run_id
from sealtrain_collab.federated.masks.introductions import Facts, peer_key
from sealtrain_collab.federated.masks.keys import Place
from sealtrain_collab.federated.masks.lead import Summing
from sealtrain_collab.federated.masks.messages import Introduction
from sealtrain_collab.federated.masks.party import PartyMasks, Revealed, Terms
from sealtrain_collab.federated.masks.ring import Summed, encode

RUN_ID = "4f" * 16
STATE = sha256_hex(b"the adapter that the round began with")
CONSORTIUM, APP, COMPOSE, RECIPE = "c0" * 32, "a0" * 20, "d0" * 32, "e0" * 32
BROKER = signer("masks-broker")

Vector = NDArray[np.float64]
On = Callable[[str, str, dict[str, Any], bytes], tuple[dict[str, Any], bytes] | None]
"""What the network makes of a party's answer: step, party, words, data; ``None`` loses it."""


def owner_id(party: str) -> str:
    return sha256_hex(f"owner {party}".encode())


def facts(parties: Sequence[str], **changed: Any) -> Facts:
    fields: dict[str, Any] = {
        "run_id": RUN_ID,
        "consortium_id": CONSORTIUM,
        "app_id": APP,
        "compose_hash": COMPOSE,
        "recipe_hash": RECIPE,
        "brokers": (broker_id(BROKER.public),),
        "origin": ledger_origin(CONSORTIUM),
        "owners": {party: owner_id(party) for party in parties},
        "simulated": True,
    }
    return Facts(**fields | changed)


def introduction(party: str, key: HpkePrivateKey, **changed: Any) -> Introduction:
    """As a broker's receipt makes it; ``changed`` are fields of the receipt, or its signer."""
    by = changed.pop("by", BROKER)
    asked: dict[str, JsonValue] = {
        "version": 2,
        "run_id": party_run_id(RUN_ID, party),
        "hpke_public_key": to_base64(key.public.raw),
    }
    transcript = canonical_json(asked)
    fields: dict[str, Any] = {
        "kind": "release",
        "broker_id": broker_id(by.public),
        "run_id": party_run_id(RUN_ID, party),
        "resume": False,
        "consortium_id": CONSORTIUM,
        "app_id": APP,
        "compose_hash": COMPOSE,
        "recipe_hash": RECIPE,
        "datasets": (
            ReleasedDataset(dataset_id="11" * 16, owner_id=owner_id(party), root="22" * 32),
        ),
        "approved_by": (party,),
        "evidence_digest": "33" * 32,
        "transcript_digest": sha256_hex(transcript),
        "verdict": {},
        "simulated": True,
        "released_at": "2026-10-01T00:00:00Z",
        "lease": Lease(lease_id="44" * 32, not_after="2026-10-01T01:00:00Z"),
        "checkpoint": None,
    }
    receipt = ReleaseReceipt(**fields | changed)
    return Introduction(
        party=party,
        broker_key=to_base64(by.public),
        rotations=(),
        receipt=sign_receipt(receipt, by).to_dict(),
        transcript=to_base64(transcript),
    )


def party_masks(party: str, folder: Path, *, parties: Sequence[str], terms: Terms) -> PartyMasks:
    """A guest of a party, new or once more; what it wrote down lies in the folder."""
    key = HpkePrivateKey(Secret(os.urandom(32)))
    known = facts(parties)
    return PartyMasks(
        party,
        RUN_ID,
        terms,
        own=introduction(party, key),
        key=key,
        peer_key=lambda one: peer_key(one, known),
        revealed=Revealed(folder / f"{party}.json", RUN_ID),
        random=os.urandom,
    )


@dataclass
class MasksWorld:
    """Parties with updates, and what passed through the lead's hands.

    Attributes:
        seen: Masked vectors by party, of the newest attempt.
    """

    folder: Path
    parties: tuple[str, ...]
    threshold: int
    least: int
    changes: dict[str, Vector]
    weights: dict[str, int]
    masks: dict[str, PartyMasks] = field(default_factory=dict)
    seen: dict[str, NDArray[np.uint64]] = field(default_factory=dict)

    def start(self, party: str) -> None:
        """A guest of the party, new or once more."""
        terms = Terms(threshold=self.threshold, least=self.least)
        self.masks[party] = party_masks(party, self.folder, parties=self.parties, terms=terms)

    def hold(self, number: int = 1, state: str = STATE, *parties: str) -> None:
        for party in parties or self.parties:
            vector = encode(self.changes[party], self.weights[party])
            self.masks[party].hold(number, state, vector)

    def summing(self, number: int = 1, **introduced: Introduction) -> Summing:
        place = Place(run_id=RUN_ID, round=number, attempt=os.urandom(16).hex())
        members = {party: one.introduction for party, one in self.masks.items()} | introduced
        return Summing(place, len(next(iter(self.changes.values()))), members)

    def step(
        self,
        summing: Summing,
        step: str,
        bodies: Mapping[str, bytes],
        *,
        number: int = 1,
        on: On = lambda step, party, words, data: (words, data),
        gone: Sequence[str] = (),
    ) -> None:
        """Ask every party that is there, as the lead does."""
        for party, body in bodies.items():
            if party in gone:
                continue
            words, data = self.masks[party].answer(number, body)
            if step == "upload":
                self.seen[party] = np.frombuffer(data, "<u8").copy()
            passed = on(step, party, words, data)
            if passed is not None:
                summing.take(step, party, *passed)

    def upto(self, summing: Summing, last: str, **how: Any) -> None:
        """Go through an attempt until a step is done."""
        for step in ("introduce", "share", "upload"):
            self.step(summing, step, getattr(summing, step)(), **how)
            if step == last:
                return
        here = frozenset(self.parties) - frozenset(how.get("gone", ()))
        self.step(summing, "agree", summing.agree(here), **how)
        if last == "unmask":
            self.step(summing, "unmask", summing.unmask(), **how)

    def opened(self, number: int = 1, **how: Any) -> Summed:
        summing = self.summing(number)
        self.upto(summing, "unmask", number=number, **how)
        return summing.summed(self.weights)

    def mean(self, *parties: str) -> Vector:
        """In the clear."""
        named = parties or self.parties
        total = sum(self.weights[one] for one in named)
        return sum(self.changes[one] * (self.weights[one] / total) for one in named)  # type: ignore[return-value]


def masks_world(
    folder: Path, count: int = 4, *, threshold: int = 3, least: int = 3, numbers: int = 1000
) -> MasksWorld:
    parties = tuple(f"clinic-{number:02d}" for number in range(count))
    drawn = np.random.default_rng(7)
    world = MasksWorld(
        folder=folder,
        parties=parties,
        threshold=threshold,
        least=least,
        changes={one: drawn.normal(0, 0.1, numbers) for one in parties},
        weights={one: 10 * (place + 1) for place, one in enumerate(parties)},
    )
    for party in parties:
        world.start(party)
    world.hold()
    return world
