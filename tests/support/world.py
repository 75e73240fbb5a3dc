"""The world of every test: owners, their consortium, a locked recipe, simulated guests.

All of it is deterministic and made from real parts. Finished runs (``manifest_world``), brokers
(``release_world``, ``broker_site``) and parties (``channel_world``, ``cut_world``) build on it.
"""

from __future__ import annotations

import copy
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.distributions import DISTRIBUTIONS
from sealtrain.base.secret import Secret
from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.client.broker_proof import AttestedBroker, Deployed, fetch_keys
from sealtrain.client.pin import BrokerPin
from sealtrain.consortium.approvals import DatasetPin, Decision, sign_decision
from sealtrain.consortium.datasets import sign_dataset
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.series_block import SeriesBlock
from sealtrain.keys.identity import Identity
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.installation import CodePin, EnvironmentPin, PackagePin
from sealtrain.recipe.lock import Installation, LockedRecipe, lock_recipe
from sealtrain.recipe.needs import needs_of
from sealtrain.sealing.description import DatasetDescription, ShardInfo
from sealtrain.sealing.stanza import RecipeBinding
from sealtrain.signing.datause import DataUse
from sealtrain.signing.dsse import Ed25519Signer, Envelope
from sealtrain.signing.identity import broker_id
from sealtrain.signing.needs import Needs
from sealtrain.signing.target import Target
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki

NOW = 1_790_000_000
DAY = 24 * 3600
OWNERS = ("hospital-a", "hospital-b", "hospital-c")
BROKERS = ("broker", "broker b", "broker c")
"""Labels of the signers that a lock names where nothing else is said."""

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
        "tier": "processor",
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    },
}
INSTALLATION = Installation(
    code=tuple(CodePin(name=name, version="0.1.0", sha256="11" * 32) for name in DISTRIBUTIONS),
    environment=EnvironmentPin(
        python="3.11.7",
        packages={"torch": PackagePin(version="2.9.0", record_sha256="22" * 32)},
    ),
)


# -- keys and guests ------------------------------------------------------------------------------


def signer(label: str) -> Ed25519Signer:
    """A signing key that is always the same for the same label."""
    seed = hashlib.sha256(b"test key " + label.encode()).digest()
    return Ed25519Signer(Ed25519PrivateKey.from_private_bytes(seed))


BROKER_IDS = [broker_id(signer(label).public) for label in BROKERS]


def digest(label: str, size: int = 32) -> str:
    """Hex digits that stand for some digest."""
    return hashlib.sha256(b"test digest " + label.encode()).hexdigest()[: 2 * size]


@cache
def identity(name: str) -> Identity:
    return Identity(name, Secret(hashlib.sha256(b"test owner " + name.encode()).digest()))


@cache
def simulated_pki(seed: str = "vendor") -> SimulatedPki:
    return SimulatedPki(hashlib.sha256(b"test pki " + seed.encode()).digest())


def simulated_policy(seed: str = "vendor") -> AppraisalPolicy:
    """Accepts every guest of ``simulated_pki``."""
    return insecure_simulator_policy(simulated_pki(seed).root_der)


@cache
def booted(pki: SimulatedPki, compose: bytes, number: int = 0) -> SimulatedGuest:
    """A guest; booting one is slow, so tests share them. ``number`` tells instances apart."""
    return SimulatedGuest(
        pki, Secret(bytes(32)), compose, random=lambda size: bytes([number]) * size
    )


# -- what owners agree on -------------------------------------------------------------------------


def founded(
    name: str = "breast-cancer", owners: Iterable[str] = OWNERS, **rules: Any
) -> Consortium:
    """A consortium of owners by name; two approve unless ``rules`` say otherwise."""
    publics = [identity(owner).public for owner in owners]
    return Consortium.found(name=name, owners=publics, **{"approve": 2} | rules)


def locked_in(
    folder: Path,
    recipe: Mapping[str, Any] = RECIPE,
    *,
    consortium_id: str = digest("consortium"),
    brokers: Iterable[str] | None = None,
) -> LockedRecipe:
    """A recipe, written to ``folder`` and locked there.

    Args:
        folder: Made where it is missing.
        recipe: As a document.
        consortium_id: Whose recipe it is.
        brokers: Ids; ``BROKER_IDS`` when ``None``.
    """
    folder.mkdir(exist_ok=True)
    path = folder / "recipe.yaml"
    path.write_text(yaml_text(dict(recipe)))
    return lock_recipe(
        path,
        consortium_id=consortium_id,
        brokers=brokers or BROKER_IDS,
        installation=INSTALLATION,
    )


def lock_changed(
    consortium_id: str,
    brokers: tuple[str, ...],
    change: Callable[[dict[str, Any]], None] = lambda _recipe: None,
) -> LockedRecipe:
    """A lock of the recipe without its test split, altered by ``change``."""
    recipe = copy.deepcopy(RECIPE)
    recipe["datasets"] = [dataset for dataset in recipe["datasets"] if dataset["role"] == "train"]
    change(recipe)
    return _locked(consortium_id, brokers, yaml_text(recipe))


@cache
def _locked(consortium_id: str, brokers: tuple[str, ...], recipe: str) -> LockedRecipe:
    with tempfile.TemporaryDirectory() as folder:
        return locked_in(
            Path(folder),
            parse_yaml(recipe.encode(), error=RecipeInvalid, what="recipe"),
            consortium_id=consortium_id,
            brokers=brokers,
        )


def deployed(locked: LockedRecipe, **changed: Any) -> Deployed:
    """A recipe's deployment, as a client names it to brokers."""
    fields = {
        "app_id": locked.app_id,
        "compose_hash": locked.compose_hash,
        "brokers": locked.lock.brokers,
    }
    return Deployed(**fields | changed)


@dataclass(kw_only=True)
class Agreement:
    """A consortium and the recipe that its owners decide on."""

    consortium: Consortium
    locked: LockedRecipe

    @property
    def target(self) -> Target:
        return self.locked.target

    @property
    def needs(self) -> Needs:
        return needs_of(self.locked.lock.recipe)

    def now(self) -> int:
        """When owners sign."""
        return NOW

    def pins_of(self, owner: str) -> Sequence[DatasetPin]:
        """What an approval of this owner pins."""
        del owner
        return ()

    def decision(
        self,
        owner: str,
        *,
        revoke: bool = False,
        identity_of: Identity | None = None,
        **changed: Any,
    ) -> Envelope:
        """A decision on the recipe as its owner signs it, with changes."""
        fields: dict[str, Any] = {
            "consortium_id": self.consortium.consortium_id,
            "brokers": self.locked.lock.brokers,
            "target": self.target,
            "signed_at": self.now(),
        }
        if not revoke:
            ends = self.now() + 30 * DAY
            fields |= {"needs": self.needs, "datasets": self.pins_of(owner), "not_after": ends}
        made = (Decision.revoke if revoke else Decision.approve)(**fields | changed)
        return sign_decision(made, (identity_of or identity(owner)).signer)

    def trusting(self, **fields: Any) -> dict[str, Any]:
        """The trust file of an auditor who accepts the simulator, with these ``brokers``."""
        return {
            "version": 1,
            "consortium_id": self.consortium.consortium_id,
            **self.target.to_dict(),
            "appraisal": simulated_policy().to_dict(),
            "simulated": "accept-insecure",
        } | fields

    def keys_from(
        self, broker: Any, pin: BrokerPin, locked: LockedRecipe | None = None, **changed: Any
    ) -> AttestedBroker:
        """What a broker shows to those who hold its pin, its keys for a recipe included."""
        named = deployed(locked or self.locked, **changed)
        return fetch_keys(broker, pin, self.consortium, named, now=self.now())


def bound_to(deployed: LockedRecipe | Target, owner: str) -> RecipeBinding:
    """What ties an owner's data to a recipe's deployment."""
    return RecipeBinding(
        app_id=deployed.app_id,
        compose_hash=deployed.compose_hash,
        owner_id=identity(owner).public.owner_id,
    )


def signed_dataset(
    deployed: LockedRecipe | Target,
    owner: str,
    name: str = "biopsies",
    *,
    sealed_at: int,
    signed_by: str | None = None,
    previous: str | None = None,
    data_use: DataUse | None = None,
    series: SeriesBlock | None = None,
    **changed: Any,
) -> Envelope:
    """The manifest that sealing makes of an owner's data, without the data.

    Args:
        deployed: The data are bound to it.
        owner: Of the data.
        name: Of the dataset.
        sealed_at: When, seconds since 1970.
        signed_by: Another owner, where it is not the data's own.
        previous: Digest of the manifest that this one succeeds.
        data_use: How it may be used.
        series: Its place in a series.
        changed: Further fields of ``DatasetDescription``.
    """
    fields: dict[str, Any] = {
        "dataset_id": digest(f"dataset {owner} {name}", 16),
        "name": name,
        "owner_id": identity(owner).public.owner_id,
        "owner_name": owner,
        "root": digest(f"root {owner} {name}"),
        "shards": (ShardInfo(name="shard-00000.sealed", size=70_000, root="11" * 32),),
        "records": 152,
        "tokens": None,
        "schema_digest": digest("schema"),
        "binding": bound_to(deployed, owner),
    } | changed
    return sign_dataset(
        DatasetDescription(**fields),
        identity(signed_by or owner).signer,
        sealed_at=to_rfc3339(sealed_at),
        previous=previous,
        data_use=data_use,
        series=series,
    )
