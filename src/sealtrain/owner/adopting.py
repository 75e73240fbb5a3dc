"""Adopt a model that a run handed on: sign and register it for the next recipe, without its key.

1. The run's manifest verifies under the owner's trust file, and names a model that was handed on;
2. the model is this owner's to adopt, and was sealed for this deployment and for its sealed model;
3. a copy of the files is compared with the manifest, byte for byte;
4. the owner signs what the manifest says of the dataset, and registers it at each broker.

Format: spec/recipe.md §2.16. No key of the model is needed here, and none can be had.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.base.files import atomic_folder, atomic_write, open_regular, read_bounded
from sealtrain.base.limits import MAX_DATASET_BYTES
from sealtrain.client.connection import brokers_of_lock
from sealtrain.consortium.datasets import load_dataset_manifest, sign_dataset
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.errors import AlreadyExists, UsageError
from sealtrain.manifest.files import verify_file
from sealtrain.manifest.outputs import model_of, require_named_entries, require_named_files
from sealtrain.owner.owner_files import AtEach, OwnerFiles
from sealtrain.owner.sealing import register_at
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.sealing.description import MANIFEST_NAME, DatasetDescription
from sealtrain.sealing.trainedmodel import (
    MODEL_FOLDER,
    RUN_MANIFEST,
    TrainedModel,
    check_sealed_names,
)

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A model that its owner signed for the next recipe.

    Attributes:
        folder: The sealed dataset.
        description: What the owner signed.
        run_id: Of the run that made the model.
        registered: At each broker; empty where it was not to be registered.
        simulated: The run proves nothing about hardware.
    """

    folder: Path
    description: DatasetDescription
    run_id: str
    registered: AtEach[None] = field(default_factory=AtEach)
    simulated: bool


def adopt(
    owner: OwnerFiles,
    run: Path,
    out: Path | None = None,
    *,
    deployment: LockedRecipe,
    trust: Path,
    register: bool = True,
) -> Adopted:
    """Adopt the model of a run. Called again with the same ``out``, it registers once more.

    Args:
        owner: That the next recipe names for its sealed model.
        run: The run's folder, with manifest and model.
        out: Folder to make; by the model's name, ``NAME.sealed``, when ``None``.
        deployment: The next recipe.
        trust: What the owner trusts of the run (YAML).
        register: Tell the brokers of the dataset.

    Raises:
        Refused: The manifest does not verify, or a file is not the one it names.
        UsageError: The run's model was not handed on.
        DatasetMismatch: It is another owner's to adopt, or was sealed for another recipe.
        AlreadyExists: ``out`` holds something else.
        BrokerNotApproved: The lock does not name a broker.
        EvidenceRefused: A broker's evidence does not verify.
        LedgerInconsistent: As ``client.sealing.seal``.
    """
    verified = verify_file(run / RUN_MANIFEST, trust, artefacts=None)
    model = model_of(verified.predicate, verified.subjects)
    description = model.dataset
    if description is None:
        raise UsageError(
            "the model of this run was sealed to its recipients and not handed on",
            check="outputs",
            got=", ".join(verified.predicate.outputs.recipients),
            hint="a recipient seals it for the next recipe: sealtrain seal RUN/model",
        )
    _for_this_owner_and_recipe(owner, description, deployment)
    out = out or Path(f"{description.name}.sealed")
    if register:
        brokers_of_lock(
            owner.brokers, deployment.lock
        )  # one that is not the lock's refuses before a copy
    if out.exists():
        _require_adopted(owner, out, description)
    else:
        _copy(model, run / MODEL_FOLDER, out, owner, description)
    registered: AtEach[None] = AtEach()
    if register:
        envelope = read_bounded(out / MANIFEST_NAME, MAX_DATASET_BYTES)
        registered = register_at(owner, envelope, deployment)
    return Adopted(
        folder=out,
        description=description,
        run_id=model.run_id,
        registered=registered,
        simulated=verified.simulated,
    )


def _for_this_owner_and_recipe(
    owner: OwnerFiles, made: DatasetDescription, deployment: LockedRecipe
) -> None:
    lock, target = deployment.lock, deployment.target
    me = owner.keys.public
    wanted = lock.recipe.sealed_model
    facts = {
        "owner": (made.owner_id, me.owner_id),
        "app id": (made.binding.app_id, target.app_id),
        "compose hash": (made.binding.compose_hash, target.compose_hash),
        "sealed model": (
            f"{made.owner_name}/{made.name}",
            "none" if wanted is None else f"{wanted.owner}/{wanted.name}",
        ),
    }
    for what, (got, expected) in facts.items():
        if got != expected:
            raise DatasetMismatch(
                f"the model was handed on to another {what}",
                check=what,
                owner=me.name,
                got=got,
                expected=expected,
                hint="use the identity and the deployment document that the run's lock pins",
            )


def _require_adopted(owner: OwnerFiles, out: Path, made: DatasetDescription) -> None:
    if not (out / MANIFEST_NAME).is_file():
        raise AlreadyExists(f"{out} exists", hint="name another --out")
    before = load_dataset_manifest(out, owner.keys.public)
    if (before.dataset_id, before.root) != (made.dataset_id, made.root):
        raise AlreadyExists(f"{out} holds another dataset", hint="name another --out")


def _copy(
    model: TrainedModel, source: Path, out: Path, owner: OwnerFiles, description: DatasetDescription
) -> None:
    require_named_entries(model, source)
    with atomic_folder(out, mode=0o755) as folder:
        for name, file in zip(check_sealed_names(model.names), model.files, strict=True):
            with (
                os.fdopen(open_regular(source / name), "rb") as old,
                (folder / name).open("xb") as new,
            ):
                left = file.size  # the source may grow meanwhile
                while left and (piece := old.read(min(_PIECE, left))):
                    new.write(piece)
                    left -= len(piece)
        require_named_files(model, folder)  # of the copy, which stays as it is
        signed = sign_dataset(description, owner.keys.signer, sealed_at=to_rfc3339(system_clock()))
        atomic_write(folder / MANIFEST_NAME, signed.to_bytes())
