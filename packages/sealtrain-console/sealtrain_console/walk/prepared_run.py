"""The prepared run of a walk: a folder in which a whole sealed run on the simulator lies.

``walk_run`` plays it once, with the commands of every role, and writes ``walk.json`` last.
Everything in the folder is made up and simulated: owners' private keys lie beside the broker's root
secret, because the walk plays the owners, the operator and the attackers. No run with data that
matters looks like this.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from sealtrain.attest.evidence import Collateral
from sealtrain.base.clock import system_clock
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.limits import MAX_MANIFEST_BYTES
from sealtrain.base.secret import Secret
from sealtrain.base.version import VERSION
from sealtrain.client.pin import BrokerPin, load_pin
from sealtrain.consortium.datasets import DatasetManifest, load_dataset_manifest
from sealtrain.consortium.members import Consortium
from sealtrain.errors import SealtrainError
from sealtrain.keys.identity import Identity
from sealtrain.keys.uris import root_secret
from sealtrain.manifest.trust import Trust, load_trust
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.state import SimulatorState, ensure

OWNERS: Final = ("hospital-a", "hospital-b", "hospital-c")
READ_FROM: Final = OWNERS[:2]
"""The owners whose data the recipe reads; two of three must approve."""
DATASET: Final = "biopsies"
MARKER: Final = "walk.json"

_MAX_BYTES: Final = 1 << 20
_FRESH_S: Final = 7 * 24 * 3600
"""After so long a walk prepares another run: collateral and approvals end after 30 days."""
_COLLATERAL_NUMBER: Final = 20


@dataclass(frozen=True)
class Prepared:
    """A folder with a finished run, and everything that its roles know.

    Attributes:
        folder: The walk's folder.
    """

    folder: Path

    @property
    def simulation(self) -> Path:
        """What broker and guest wrote."""
        return self.folder / "simulation"

    @property
    def run(self) -> Path:
        """The run's folder: checkpoints, sealed model, manifest."""
        return self.simulation / "guest-1" / "out"

    @cached_property
    def consortium(self) -> Consortium:
        """Three owners, two of whom must approve."""
        return Consortium.load(self.folder / "consortium.json")

    @cached_property
    def locked(self) -> LockedRecipe:
        """The approved recipe."""
        return LockedRecipe.load(self.folder / "engineer" / "app-compose.json")

    @cached_property
    def other(self) -> LockedRecipe:
        """The same recipe with another seed, which nothing but an attack runs."""
        return LockedRecipe.load(self.folder / "other" / "app-compose.json")

    @cached_property
    def owners(self) -> dict[str, Identity]:
        """The owners' private keys."""
        return {
            name: Identity.load(self.folder / name / f"{name}.identity.json") for name in OWNERS
        }

    @cached_property
    def pin(self) -> BrokerPin:
        """The broker file, with the address that the broker had."""
        return load_pin(self.simulation / "broker.yaml")

    @cached_property
    def root(self) -> Secret:
        """The broker's root secret."""
        return root_secret(f"file:{self.simulation / 'broker-guest' / 'root.secret'}")

    @cached_property
    def trust(self) -> Trust:
        """What the auditor trusts."""
        return load_trust(self.folder / "trust.yaml")

    @cached_property
    def manifest(self) -> bytes:
        """The run's manifest."""
        return read_bounded(self.run / "manifest.json", MAX_MANIFEST_BYTES)

    @cached_property
    def vendor(self) -> SimulatorState:
        """The simulated vendor of the machines."""
        return ensure(self.simulation / "simulated-root", system_clock())

    @cached_property
    def broker_guest(self) -> SimulatedGuest:
        """The guest that the broker runs in."""
        document = self.simulation / "broker-guest" / "app-compose.json"
        return SimulatedGuest(self.vendor.pki, self.vendor.seed, read_bounded(document, _MAX_BYTES))

    @cached_property
    def guest(self) -> SimulatedGuest:
        """A guest that booted the approved document."""
        return self.boot_guest(self.locked)

    def boot_guest(self, locked: LockedRecipe, *, fault: str | None = None) -> SimulatedGuest:
        """A guest that booted a document, on a machine that tells this lie."""
        return SimulatedGuest(self.vendor.pki, self.vendor.seed, locked.compose_bytes, fault=fault)

    def collateral(self, now: int, **how: str) -> Collateral:
        """The simulated vendor's collateral at a moment."""
        return self.vendor.pki.collateral(
            now,
            tcb_evaluation_data_number=_COLLATERAL_NUMBER,
            tcb_status=how.get("tcb_status", "UpToDate"),
        )

    def sealed_folder(self, owner: str) -> Path:
        """The folder of an owner's sealed dataset."""
        return self.folder / "sealed" / f"{owner}.{DATASET}.sealed"

    def dataset(self, owner: str) -> DatasetManifest:
        """What an owner signed of its dataset."""
        return load_dataset_manifest(self.sealed_folder(owner), self.owners[owner].public)

    def data_key(self, owner: str) -> DataKey:
        """The data key, as the owner itself unwraps it."""
        return self.owners[owner].unwrap(*read_stanzas(self.sealed_folder(owner)))

    @property
    def records(self) -> int:
        """Records in the data that the recipe reads."""
        return sum(self.dataset(owner).records or 0 for owner in READ_FROM)


def mark(folder: Path, *, now: int | None) -> None:
    """Say that a folder is a walk's: before the run is played, and again once it is whole.

    Args:
        folder: The walk's folder.
        now: Seconds since 1970, once it is whole; ``None`` before.
    """
    document = {"version": 1, "sealtrain": VERSION, "prepared_at": now}
    atomic_write(folder / MARKER, json.dumps(document).encode() + b"\n", overwrite=True)


def is_fresh(folder: Path, *, now: int) -> bool:
    """Whether a folder holds a whole run of this version that is a week old at most.

    Args:
        folder: A walk's folder, or none.
        now: Seconds since 1970.
    """
    document = _read_mark(folder)
    if document is None or document["sealtrain"] != VERSION:
        return False
    made_at = document["prepared_at"]
    return isinstance(made_at, int) and 0 <= now - made_at < _FRESH_S


def is_walk(folder: Path) -> bool:
    """Whether a walk made this folder, whole or not: no other may be removed.

    Args:
        folder: Any folder.
    """
    return _read_mark(folder) is not None


def _read_mark(folder: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(read_bounded(folder / MARKER, _MAX_BYTES))
    except (SealtrainError, OSError, ValueError, RecursionError):
        return None
    known = isinstance(document, dict) and set(document) == {"version", "sealtrain", "prepared_at"}
    return document if known else None
