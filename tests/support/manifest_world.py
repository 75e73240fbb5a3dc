"""One complete simulated run, made from real parts: keys, simulator PKI, recipe lock, ledger.

Everything is deterministic. ``World.manifest(...)`` signs a predicate with a valid quote over it,
so a test can play an attacker who holds a genuine (simulated) guest and lies about one thing.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from run_logs import chained, fields_of
from world import (
    BROKERS,
    DAY,
    OWNERS,
    RECIPE,
    Agreement,
    booted,
    digest,
    founded,
    identity,
    locked_in,
    signed_dataset,
    signer,
    simulated_pki,
    simulated_policy,
)

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.encoding import to_base64
from sealtrain.base.models import load_model
from sealtrain.base.secret import Secret
from sealtrain.client.broker_proof import AttestedBroker
from sealtrain.consortium.approvals import DatasetPin
from sealtrain.consortium.datasets import verify_dataset
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.receipts import (
    Lease,
    ReleasedDataset,
    ReleaseReceipt,
    receipt_digest,
    sign_receipt,
)
from sealtrain.errors import DataInvalid
from sealtrain.guest.outputs import NextRecipe, hand_on_model, seal_model
from sealtrain.keys.derive import recipe_key
from sealtrain.ledger.ledger import Ledger
from sealtrain.manifest.build import build_manifest
from sealtrain.manifest.limits import limits_for
from sealtrain.manifest.outputs import dataset_of, files_of, subjects_of
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.trust import Trust, parse_trust
from sealtrain.recipe.collaboration import is_shared_out
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.privacy import spendings
from sealtrain.sealing.trainedmodel import TrainedModel
from sealtrain.signing.dsse import Ed25519Signer, Envelope
from sealtrain.signing.identity import broker_id
from sealtrain.signing.parties import party_run_id
from sealtrain.signing.runlog import RunLog
from sealtrain.signing.statement import Subject
from sealtrain_rehearsal.simulator.guest import SimulatedGuest

START = 1_790_000_000
RELEASED = START + 20
FINISHED = START + 600
NOW = START + 3600
LEASE_S = 3600
RUN_ID = "5a" * 16
FILES: dict[str, bytes] = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": bytes(20_000),
    "pooling/config.json": b"{}",
}
"""The model that the run leaves, by name."""


@dataclass(kw_only=True)
class World(Agreement):
    """A run that is about to be written down."""

    broker: Ed25519Signer
    guest: SimulatedGuest
    guest_key: Ed25519Signer
    datasets: dict[str, Envelope]
    pins: dict[str, DatasetPin]
    approvals: dict[str, Envelope]
    releases: list[dict[str, Any]]
    artefacts: Path
    model: TrainedModel
    facts: dict[str, Any] = field(default_factory=dict)
    begins: dict[str, Any] = field(default_factory=dict)
    """Further fields of the ledger entry with which the run begins."""

    @property
    def subjects(self) -> tuple[Subject, ...]:
        return subjects_of(self.model)

    def now(self) -> int:
        return START - 3600

    def pins_of(self, owner: str) -> Sequence[DatasetPin]:
        return [pin for key, pin in self.pins.items() if key.startswith(f"{owner}/")]

    def evidence(self, binding: Binding, *, at: int = FINISHED) -> Evidence:
        return self.guest.evidence(binding, collateral=simulated_pki().collateral(at))

    def predicate(self, change: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
        """The honest predicate as JSON, or one changed by ``change``."""
        document = copy.deepcopy(self.facts)
        if change is not None:
            change(document)
        return document

    def manifest(
        self,
        change: Callable[[dict[str, Any]], None] | None = None,
        *,
        subjects: Iterable[Subject] | None = None,
        quote: Callable[[Binding], Evidence] | None = None,
    ) -> bytes:
        """The signed manifest. Refused by ``build_manifest`` where it contradicts itself."""
        return build_manifest(
            subjects=tuple(self.subjects if subjects is None else subjects),
            predicate=Predicate.model_validate_json(_json(self.predicate(change))),
            guest_signer=self.guest_key,
            quote=quote or self.evidence,
        )

    def trust_document(self, **changed: Any) -> dict[str, Any]:
        return self.trusting(**{"brokers": self.brokers(self.broker)} | changed)

    @staticmethod
    def brokers(*keys: Ed25519Signer, threshold: int = 1, datasets: str = "all") -> dict[str, Any]:
        return {
            "signing_keys": [to_base64(key.public) for key in keys],
            "threshold": threshold,
            "datasets": datasets,
        }

    def trust(self, **changed: Any) -> Trust:
        return parse_trust(self.trust_document(**changed))

    # --- Parts an attacker may want to make anew ------------------------------------------------

    def approval(self, owner: str, **changed: Any) -> Envelope:
        usual: dict[str, Any] = {
            "not_after": START + 30 * DAY,
            "random": lambda size: bytes.fromhex(digest(f"nonce {owner}", size)),
        }
        return self.decision(owner, **usual | changed)

    def revocation(self, owner: str, *, signed_at: int) -> Envelope:
        return self.decision(owner, revoke=True, signed_at=signed_at)

    def dataset(self, owner: str, name: str, **changed: Any) -> Envelope:
        usual = {"records": 152 if name == "biopsies" else 113}
        return signed_dataset(self.locked, owner, name, sealed_at=START - 7200, **usual | changed)

    def receipt(self, **changed: Any) -> ReleaseReceipt:
        fields: dict[str, Any] = {
            "kind": "release",
            "broker_id": broker_id(self.broker.public),
            "run_id": RUN_ID,
            "resume": False,
            "consortium_id": self.consortium.consortium_id,
            **self.target.to_dict(),
            "datasets": tuple(
                ReleasedDataset(
                    dataset_id=pin.dataset_id,
                    owner_id=identity(key.partition("/")[0]).public.owner_id,
                    root=pin.root,
                )
                for key, pin in self.pins.items()
            ),
            "approved_by": OWNERS,
            "evidence_digest": digest("evidence"),
            "transcript_digest": digest("transcript"),
            "verdict": {"label": "SIMULATED — NOT ATTESTED", "claims": []},
            "simulated": True,
            "released_at": to_rfc3339(RELEASED),
            "lease": Lease(lease_id=digest("lease"), not_after=to_rfc3339(RELEASED + LEASE_S)),
            "checkpoint": None,
        } | changed
        return ReleaseReceipt(**fields)

    def reserved(self, receipt: ReleaseReceipt) -> dict[str, Any]:
        """What the entry of a release says of privacy; nothing without differential privacy."""
        found = [spending.to_dict() for spending in spendings(self.locked.lock.recipe)]
        if receipt.kind == "renewal" or not found:
            return {}
        return {"reserved_at": 0} if receipt.resume else {"privacy": found}

    def entry(self, receipt: ReleaseReceipt, envelope: Envelope) -> dict[str, Any]:
        """What a broker of all data writes into its ledger about a receipt; only what is read."""
        listed = [
            {"owner_id": dataset.owner_id, "dataset_id": dataset.dataset_id, "root": dataset.root}
            for dataset in receipt.datasets
        ]
        return {
            "receipt_digest": receipt_digest(envelope),
            "datasets": listed,
            "elsewhere": self.elsewhere(receipt) if receipt.kind == "release" else [],
            **self.reserved(receipt),
            **(self.begins if receipt.kind == "release" and not receipt.resume else {}),
        }

    def elsewhere(self, receipt: ReleaseReceipt) -> list[dict[str, str]]:
        """The data of a run, or of a party's, that a receipt of it does not release."""
        here = {dataset.dataset_id for dataset in receipt.datasets}
        owners = {key.partition("/")[0] for key, pin in self.pins.items() if pin.dataset_id in here}
        apart = is_shared_out(self.locked.lock.recipe)
        return [
            {
                "owner_id": identity(key.partition("/")[0]).public.owner_id,
                "dataset_id": pin.dataset_id,
                "root": pin.root,
            }
            for key, pin in self.pins.items()
            if pin.dataset_id not in here and (not apart or key.partition("/")[0] in owners)
        ]

    def record(self, *receipts: ReleaseReceipt, key: Ed25519Signer | None = None) -> list[Any]:
        """Receipts signed by the broker and written into its ledger, with their proofs."""
        broker = key or self.broker
        named = {"broker_id": broker_id(broker.public)}
        receipts = tuple(receipt.model_copy(update=named) for receipt in receipts)
        envelopes = [sign_receipt(receipt, broker) for receipt in receipts]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.sqlite"
            origin = f"sealtrain/ledger/{self.consortium.consortium_id}"
            with Ledger.open(path, origin=origin, signer=broker, clock=lambda: RELEASED) as ledger:
                ledger.append("approval", {"note": "an earlier entry"})
                indices = [
                    ledger.append(receipt.kind, self.entry(receipt, envelope))
                    for receipt, envelope in zip(receipts, envelopes, strict=True)
                ]
                ledger.append("manifest", {"note": "a later entry"})
                proofs = [ledger.proof(index).to_dict() for index in indices]
        return [
            {"receipt": envelope.to_dict(), "proof": proof, "rotations": []}
            for envelope, proof in zip(envelopes, proofs, strict=True)
        ]


def make_world(
    folder: Path,
    recipe: Mapping[str, Any] = RECIPE,
    rules: Mapping[str, Any] | None = None,
    *,
    brokers: Collection[str] | None = None,
    sealed_to: Iterable[str] = OWNERS,
    adopt: Callable[[LockedRecipe], LockedRecipe] = lambda locked: locked,
) -> World:
    """Build a world whose output files lie in ``folder / "out"``.

    ``brokers`` are ids of those that the lock names, three of its own when ``None``. ``rules`` are
    thresholds of the consortium, and whether it asks for consent on own data; ``sealed_to`` names
    the owners who can open the outputs; ``adopt`` is what a platform makes of the document.
    """
    consortium = founded(**rules or {})
    locked = adopt(
        locked_in(folder, recipe, consortium_id=consortium.consortium_id, brokers=brokers)
    )
    artefacts = folder / "out"
    model = sealed_outputs(artefacts, consortium.consortium_id, recipients=sealed_to)
    world = World(
        consortium=consortium,
        locked=locked,
        broker=signer("broker"),
        guest=booted(simulated_pki(), locked.compose_bytes),
        guest_key=signer("guest"),
        datasets={},
        pins={},
        approvals={},
        releases=[],
        artefacts=artefacts,
        model=model,
    )
    for dataset in locked.lock.recipe.datasets:
        key = f"{dataset.owner}/{dataset.name}"
        world.datasets[key] = world.dataset(dataset.owner, dataset.name)
        world.pins[key] = DatasetPin(
            dataset_id=digest(f"dataset {dataset.owner} {dataset.name}", 16),
            root=digest(f"root {dataset.owner} {dataset.name}"),
        )
    for owner in OWNERS:
        world.approvals[owner] = world.approval(owner)
    world.releases = world.record(world.receipt())
    world.facts = facts_of(world)
    return world


def run_log(run_id: str = RUN_ID) -> dict[str, Any]:
    log = RunLog(run_id)
    log.append("run.started", fields_of("run.started"), START)
    log.append("keys.released", fields_of("keys.released"), RELEASED)
    log.append("training.finished", fields_of("training.finished"), FINISHED)
    return {"head": log.head, "entries": log.entries}


def sealed_outputs(
    folder: Path,
    consortium_id: str,
    *,
    run_id: str = RUN_ID,
    files: Mapping[str, bytes] = FILES,
    recipients: Iterable[str] = OWNERS,
) -> TrainedModel:
    """A small model, sealed as a run leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    return seal_model(
        files,
        folder,
        run_id=run_id,
        owner_id=consortium_id,
        recipients=[identity(name).public for name in recipients],
    )


def facts_of(world: World, run_id: str = RUN_ID) -> dict[str, Any]:
    """The honest predicate of a world as JSON."""
    loss = [(step, round(4.2 * 0.985**step + 0.21, 4)) for step in range(0, 301, 10)]
    facts: dict[str, Any] = {
        "version": 2,
        "simulated": True,
        "marker": "SIMULATED — NOT ATTESTED",
        "signer": {"public_key": to_base64(world.guest_key.public)},
        "consortium": world.consortium.to_dict(),
        "recipe": {
            "recipe_hash": world.locked.recipe_hash,
            "lock": world.locked.lock.to_dict(),
        },
        "deployment": {
            "platform": "simulator",
            "tier": "processor",
            "app_id": world.locked.app_id,
            "compose_hash": world.locked.compose_hash,
        },
        "datasets": [envelope.to_dict() for envelope in world.datasets.values()],
        "approvals": [envelope.to_dict() for envelope in world.approvals.values()],
        "releases": world.releases,
        "run": {
            "run_id": run_id,
            "started_at": to_rfc3339(START),
            "finished_at": to_rfc3339(FINISHED),
            "steps": 300,
            "tokens": 612_352,
            "tokens_sha256": None,
            "resumes": [],
            "history": [{"step": step, "values": {"loss": value}} for step, value in loss],
            "metrics": {"loss": loss[-1][1], "accuracy": 0.9204},
            "environment": {"python": "3.11.9", "torch": "2.9.0"},
        },
        "run_log": run_log(run_id),
        "outputs": {
            "recipients": list(OWNERS),
            "files": files_of(world.model),
        },
        "compute": {
            "wall_s": 580.25,
            "cpu_s": 1100.5,
            "processors": 2,
            "accelerators": [],
            "peak_memory_bytes": 1_200_000_000,
        },
        "privacy": {"dp": "none"},
        "limits": [],
    }
    return facts | {"limits": limits_of(facts)}


def limits_of(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The limits that a manifest with these facts must state."""
    predicate = Predicate.model_validate_json(_json({**facts, "limits": []}))
    return [document.to_dict() for document in limits_for(predicate)]


def counting(world: World, *counted: dict[str, Any]) -> bytes:
    """The manifest of a run whose log counts so."""
    told = [
        ("run.started", fields_of("run.started"), START),
        ("keys.released", fields_of("keys.released"), RELEASED),
        *(("data.counted", value, RELEASED) for value in counted),
        ("training.finished", fields_of("training.finished"), FINISHED),
    ]

    def change(facts: dict[str, Any]) -> None:
        facts["run_log"] = chained(facts["run"]["run_id"], told)
        facts["limits"] = limits_of(facts)

    return world.manifest(change)


def _json(document: Mapping[str, Any]) -> str:
    import json

    return json.dumps(document)


# -- a run of several parties ----------------------------------------------------------------------


FEDERATED: dict[str, Any] = {
    "kind": "federated",
    "policy": "policy.yaml",
    "rounds": 3,
    "local_steps": 100,
    "min_parties": 2,
    "aggregation": "fedavg",
}


def make_joint(folder: Path, together: dict[str, Any] = FEDERATED, **recipe: Any) -> World:
    """A world whose recipe is for several parties, all of which took part."""
    policy = simulated_policy().to_dict()
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    world = make_world(folder, RECIPE | {"collaboration": together} | recipe)
    world.releases = world.record(*(party_receipt(world, owner) for owner in OWNERS))
    world.facts |= {
        "releases": world.releases,
        "collaboration": {"kind": together["kind"], "parties": [party(name) for name in OWNERS]},
    }
    world.facts["limits"] = limits_of(world.facts)
    return world


def party(name: str, **changed: Any) -> dict[str, Any]:
    """A party's line in the manifest."""
    return {
        "name": name,
        "role": "holder",
        "run_id": party_run_id(RUN_ID, name),
        "from": to_rfc3339(RELEASED),
        "until": to_rfc3339(FINISHED),
    } | changed


def party_receipt(world: World, owner: str, **changed: Any) -> ReleaseReceipt:
    """The receipt of one party for its own datasets."""
    own = tuple(
        ReleasedDataset(
            dataset_id=pin.dataset_id,
            owner_id=identity(owner).public.owner_id,
            root=pin.root,
        )
        for key, pin in world.pins.items()
        if key.startswith(f"{owner}/")
    )
    fields = {
        "run_id": party_run_id(RUN_ID, owner),
        "datasets": own,
        "lease": Lease(lease_id=digest(f"lease {owner}"), not_after=to_rfc3339(RELEASED + LEASE_S)),
    }
    return world.receipt(**fields | changed)


def with_receipts(
    world: World, receipts: Sequence[ReleaseReceipt]
) -> Callable[[dict[str, Any]], None]:
    """A change that puts other receipts, recorded in a ledger, in the place of the honest ones."""
    recorded = world.record(*receipts)

    def change(facts: dict[str, Any]) -> None:
        facts["releases"] = recorded

    return change


# -- a model that is handed on ---------------------------------------------------------------------


A, B, C = OWNERS
ROOM: dict[str, Any] = {
    name: value for name, value in RECIPE.items() if name not in ("peft", "trainer")
} | {
    "phase": "evaluate",
    "name": "clean-room",
    "model": {"sealed": "diagnosis"},
    "datasets": [
        {"owner": C, "name": "diagnosis", "role": "model"},
        {"owner": A, "name": "biopsies-test", "role": "test"},
    ],
    "columns": {"text": "prompt", "label": "completion"},
    "labels": ["benign", "malignant"],
    "release_policy": {"metrics": ["accuracy"], "round_to": 2, "model": {"recipients": [A]}},
}


def handing_on(**changed: Any) -> dict[str, Any]:
    recipe: dict[str, Any] = copy.deepcopy(RECIPE)
    recipe["peft"]["merge"] = True
    how = {"deployment": "room/app-compose.json", "threshold": 2}
    recipe["release_policy"]["model"] = {"handed_on": how}
    return recipe | changed


def with_room(folder: Path, room: dict[str, Any] = ROOM, **how: Any) -> LockedRecipe:
    """Lock the next recipe where the recipe in ``folder`` names it."""
    locked = locked_in(folder / "room", room, **how)
    locked.write(folder / "room")
    return locked


def handed_on_world(folder: Path) -> World:
    """The run of ``handing_on``, whose model C adopts."""
    room = with_room(folder, consortium_id=_consortium_id(folder))
    world = make_world(folder, handing_on())
    me = identity(C).public
    keys = {
        label: recipe_key(
            Secret(label.encode().ljust(32, b"0")),
            app_id=room.app_id,
            compose_hash=room.compose_hash,
            owner_id=me.owner_id,
        )
        for label in BROKERS
    }
    nothing: Any = None
    brokers = tuple(
        AttestedBroker(
            consortium_id=world.consortium.consortium_id,
            app_id=room.app_id,
            compose_hash=room.compose_hash,
            keys={C: keys[label].public.raw},
            signing_key=signer(label).public,
            named_as=broker_id(signer(label).public),
            rotations=(),
            evidence=nothing,
            verdict=nothing,
        )
        for label in BROKERS
    )
    world.model = hand_on_model(
        FILES,
        world.artefacts,
        run_id=RUN_ID,
        owner_id=world.consortium.consortium_id,
        to=NextRecipe(owner=me, dataset="diagnosis", brokers=brokers, threshold=2),
    )
    world.facts = facts_of(world)
    outputs = {"recipients": [], "files": files_of(world.model), **dataset_of(world.model)}
    world.facts["outputs"] = outputs
    return world


def _consortium_id(folder: Path) -> str:
    (folder / "plain").mkdir()
    return make_world(folder / "plain").consortium.consortium_id


def records_of(world: World, party: str) -> int | None:
    """Of a party's training data, as its owner's manifest says."""
    consortium = load_model(Consortium, world.facts["consortium"], DataInvalid, "consortium")
    found = [
        verify_dataset(Envelope.from_dict(dataset), consortium)
        for dataset in world.facts["datasets"]
    ]
    (one,) = [item for item in found if (item.owner, item.name) == (party, "biopsies")]
    return one.records
