"""One complete simulated run, made from real parts: keys, simulator PKI, recipe lock, ledger.

Everything is deterministic. ``World.manifest(...)`` signs a predicate with a valid quote over it,
so a test can play an attacker who holds a genuine (simulated) guest and lies about one thing.
"""

from __future__ import annotations

import copy
import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.consortium.approvals import DatasetPin, Decision, Target, sign_decision
from sealtrain.consortium.datasets import sign_dataset
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.receipts import (
    Lease,
    ReleasedDataset,
    ReleaseReceipt,
    receipt_digest,
    sign_receipt,
)
from sealtrain.guest.outputs import seal_model
from sealtrain.keys.identity import Identity
from sealtrain.ledger.ledger import Ledger
from sealtrain.manifest.build import build_manifest
from sealtrain.manifest.limits import limits_for
from sealtrain.manifest.outputs import files_of, subjects_of
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.trust import Trust, parse_trust
from sealtrain.recipe.collaboration import is_shared_out
from sealtrain.recipe.installation import CodePin, EnvironmentPin, PackagePin
from sealtrain.recipe.lock import Installation, LockedRecipe, lock_recipe
from sealtrain.recipe.needs import needs_of
from sealtrain.recipe.privacy import spendings
from sealtrain.sealing.description import DatasetDescription, ShardInfo
from sealtrain.sealing.stanza import RecipeBinding
from sealtrain.sealing.trainedmodel import TrainedModel
from sealtrain.signing.dsse import Ed25519Signer, Envelope
from sealtrain.signing.identity import broker_id
from sealtrain.signing.runlog import RunLog
from sealtrain.signing.statement import Subject
from sealtrain_simulator.guest import SimulatedGuest
from sealtrain_simulator.pki import SimulatedPki

START = 1_790_000_000
RELEASED = START + 20
FINISHED = START + 600
NOW = START + 3600
LEASE_S = 3600
RUN_ID = "5a" * 16
OWNERS = ("hospital-a", "hospital-b", "hospital-c")
FILES: dict[str, bytes] = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": bytes(20_000),
    "pooling/config.json": b"{}",
}
"""The model that the run leaves, by name."""

RECIPE: dict[str, Any] = {
    "version": 1,
    "name": "breast-cancer-diagnosis",
    "phase": "sft",
    "description": "Names the diagnosis from the measurements of a biopsy.",
    "model": {
        "config": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2},
        "init_seed": 7,
        "tokenizer": {"kind": "bytes"},
    },
    "datasets": [
        *({"owner": owner, "name": "biopsies", "role": "train"} for owner in OWNERS),
        {"owner": "hospital-a", "name": "biopsies-test", "role": "test"},
    ],
    "columns": {"prompt": "prompt", "completion": "completion"},
    "trainer": {"max_steps": 300, "learning_rate": 0.003, "per_device_train_batch_size": 16},
    "peft": {"method": "lora", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "privacy": {"dp": "none"},
    "release_policy": {
        "metrics": ["loss", "accuracy"],
        "round_to": 4,
        "model": {"recipients": list(OWNERS)},
    },
    "hardware": {
        "platforms": ["simulator"],
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    },
}


BROKERS = ("broker", "broker b", "broker c")
"""Labels of the signers that a lock names where nothing else is said."""


def signer(label: str) -> Ed25519Signer:
    """A signing key that is always the same for the same label."""
    seed = hashlib.sha256(b"test key " + label.encode()).digest()
    return Ed25519Signer(Ed25519PrivateKey.from_private_bytes(seed))


def digest(label: str, size: int = 32) -> str:
    """Hex digits that stand for some digest."""
    return hashlib.sha256(b"test digest " + label.encode()).hexdigest()[: 2 * size]


@cache
def identity(name: str) -> Identity:
    return Identity(name, Secret(hashlib.sha256(b"test owner " + name.encode()).digest()))


@cache
def simulated_pki(seed: str = "vendor") -> SimulatedPki:
    return SimulatedPki(hashlib.sha256(b"test pki " + seed.encode()).digest())


def target_of(locked: LockedRecipe) -> Target:
    return Target(
        app_id=locked.app_id, compose_hash=locked.compose_hash, recipe_hash=locked.recipe_hash
    )


@dataclass(kw_only=True)
class World:
    """A run that is about to be written down."""

    consortium: Consortium
    locked: LockedRecipe
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

    @property
    def subjects(self) -> tuple[Subject, ...]:
        return subjects_of(self.model)

    @property
    def target(self) -> Target:
        return target_of(self.locked)

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
        return {
            "version": 1,
            "consortium_id": self.consortium.consortium_id,
            "recipe_hash": self.locked.recipe_hash,
            "compose_hash": self.locked.compose_hash,
            "app_id": self.locked.app_id,
            "brokers": self.brokers(self.broker),
            "appraisal": insecure_simulator_policy(simulated_pki().root_der).to_dict(),
            "simulated": "accept-insecure",
        } | changed

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

    def approval(self, owner: str, *, target: Target | None = None, **changed: Any) -> Envelope:
        pins = [pin for key, pin in self.pins.items() if key.startswith(f"{owner}/")]
        arguments: dict[str, Any] = {
            "consortium_id": self.consortium.consortium_id,
            "target": target or self.target,
            "needs": needs_of(self.locked.lock.recipe),
            "datasets": pins,
            "signed_at": START - 3600,
            "not_after": START + 30 * 24 * 3600,
            "random": lambda size: bytes.fromhex(digest(f"nonce {owner}", size)),
        } | changed
        return sign_decision(Decision.approve(**arguments), identity(owner).signer)

    def revocation(self, owner: str, *, signed_at: int) -> Envelope:
        decision = Decision.revoke(
            consortium_id=self.consortium.consortium_id, target=self.target, signed_at=signed_at
        )
        return sign_decision(decision, identity(owner).signer)

    def dataset(self, owner: str, name: str, **changed: Any) -> Envelope:
        arguments: dict[str, Any] = {
            "dataset_id": digest(f"dataset {owner} {name}", 16),
            "name": name,
            "owner_id": identity(owner).public.owner_id,
            "owner_name": owner,
            "root": digest(f"root {owner} {name}"),
            "shards": (ShardInfo(name="shard-00000.sealed", size=70_000, root="11" * 32),),
            "records": 152 if name == "biopsies" else 113,
            "tokens": None,
            "schema_digest": digest("schema"),
            "binding": RecipeBinding(
                app_id=self.locked.app_id,
                compose_hash=self.locked.compose_hash,
                owner_id=identity(owner).public.owner_id,
            ),
        } | changed
        return sign_dataset(
            DatasetDescription(**arguments),
            identity(owner).signer,
            sealed_at=to_rfc3339(START - 7200),
        )

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
        found = [one.to_dict() for one in spendings(self.locked.lock.recipe)]
        if receipt.kind == "renewal" or not found:
            return {}
        return {"reserved_at": 0} if receipt.resume else {"privacy": found}

    def entry(self, receipt: ReleaseReceipt, envelope: Envelope) -> dict[str, Any]:
        """What a broker of all data writes into its ledger about a receipt; only what is read."""
        listed = [{"dataset_id": one.dataset_id, "root": one.root} for one in receipt.datasets]
        return {
            "receipt_digest": receipt_digest(envelope),
            "datasets": listed,
            "elsewhere": self.elsewhere(receipt) if receipt.kind == "release" else [],
            **self.reserved(receipt),
        }

    def elsewhere(self, receipt: ReleaseReceipt) -> list[dict[str, str]]:
        """The data of a run, or of a party's, that a receipt of it does not release."""
        here = {one.dataset_id for one in receipt.datasets}
        owners = {key.partition("/")[0] for key, pin in self.pins.items() if pin.dataset_id in here}
        apart = is_shared_out(self.locked.lock.recipe)
        return [
            {"dataset_id": pin.dataset_id, "root": pin.root}
            for key, pin in self.pins.items()
            if pin.dataset_id not in here and (not apart or key.partition("/")[0] in owners)
        ]

    def record(self, *receipts: ReleaseReceipt, key: Ed25519Signer | None = None) -> list[Any]:
        """Receipts signed by the broker and written into its ledger, with their proofs."""
        broker = key or self.broker
        named = {"broker_id": broker_id(broker.public)}
        receipts = tuple(one.model_copy(update=named) for one in receipts)
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
) -> World:
    """Build a world whose output files lie in ``folder / "out"``.

    ``brokers`` are ids of those that the lock names, three of its own when ``None``. ``rules`` are
    thresholds of the consortium, and whether it asks for consent on own data; ``sealed_to`` names
    the owners who can open the outputs.
    """
    consortium = Consortium.found(
        name="breast-cancer",
        owners=[identity(name).public for name in OWNERS],
        **{"approve": 2, **(rules or {})},
    )
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(dict(recipe), sort_keys=False))
    installation = Installation(
        code=CodePin(sealtrain="0.1.0", sha256="11" * 32),
        environment=EnvironmentPin(
            python="3.11.7",
            packages={"torch": PackagePin(version="2.9.0", record_sha256="22" * 32)},
        ),
    )
    locked = lock_recipe(
        path,
        consortium_id=consortium.consortium_id,
        brokers=brokers or [broker_id(signer(label).public) for label in BROKERS],
        installation=installation,
    )
    artefacts = folder / "out"
    model = sealed_outputs(artefacts, consortium.consortium_id, recipients=sealed_to)
    world = World(
        consortium=consortium,
        locked=locked,
        broker=signer("broker"),
        guest=SimulatedGuest(
            simulated_pki(),
            Secret(bytes(32)),
            locked.compose_bytes,
            random=lambda size: bytes(size),
        ),
        guest_key=signer("guest"),
        datasets={},
        pins={},
        approvals={},
        releases=[],
        artefacts=artefacts,
        model=model,
    )
    for one in locked.lock.recipe.datasets:
        key = f"{one.owner}/{one.name}"
        world.datasets[key] = world.dataset(one.owner, one.name)
        world.pins[key] = DatasetPin(
            dataset_id=digest(f"dataset {one.owner} {one.name}", 16),
            root=digest(f"root {one.owner} {one.name}"),
        )
    for owner in OWNERS:
        world.approvals[owner] = world.approval(owner)
    world.releases = world.record(world.receipt())
    world.facts = facts_of(world)
    return world


def run_log(run_id: str = RUN_ID) -> dict[str, Any]:
    log = RunLog(run_id)
    log.append("run.started", {"steps": 300}, START)
    log.append("keys.released", {"datasets": 4}, RELEASED)
    log.append("run.finished", {"steps": 300}, FINISHED)
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
    return [one.to_dict() for one in limits_for(predicate)]


def _json(document: Mapping[str, Any]) -> str:
    import json

    return json.dumps(document)
