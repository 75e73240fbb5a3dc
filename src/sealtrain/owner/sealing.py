"""Seal an owner's data for one locked recipe, and tell its brokers of it.

1. Each broker proves itself, and the deployment's lock must name it, before anything is encrypted
   to it;
2. the records are sealed under a fresh data key; only ciphertext is written;
3. the key is wrapped for the owner and for the brokers;
4. the owner signs the description, and registers it at each broker whose ledger only grew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.limits import MAX_DATASET_BYTES
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.connection import (
    attest_brokers,
    brokers_of_lock,
    own_key,
    watch_ledger,
)
from sealtrain.client.pin import load_pin
from sealtrain.client.wrapping import check_brokers, wrap_for_brokers
from sealtrain.consortium.datasets import (
    load_dataset_manifest,
    read_dataset_envelope,
    reissue_dataset,
    sign_dataset,
    verify_dataset,
)
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.errors import SealtrainError, UsageError
from sealtrain.owner.data_fitness import fitting
from sealtrain.owner.owner_files import AtEach, OwnerFiles, at_each
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.records import dataset_of
from sealtrain.sealing.description import MANIFEST_NAME, DatasetDescription
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.sealing.rewrap import rewrap as rewrap_dataset
from sealtrain.sealing.sealer import NewDataset, SealOptions, seal_dataset
from sealtrain.sealing.stanza import RecipeBinding, Stanza, wrap_for_owner
from sealtrain.signing.dsse import Envelope

if TYPE_CHECKING:
    from sealtrain.client.broker_proof import AttestedBroker
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.consortium.series_block import SeriesBlock
    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.sealing.datakey import DataKey
    from sealtrain.sealing.sourcefiles import SourceFile
    from sealtrain.signing.datause import DataUse
    from sealtrain.signing.target import Target

"""Of a ``dataset.json``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What others learn of a dataset.

    Attributes:
        counts: The signed manifest says how many records and tokens there are.
        register: The brokers are told of the dataset.
        data_use: How it may be used, as the signed manifest states it.
        series: Its place in a series; ``None`` for a dataset that is in none.
    """

    counts: bool = True
    register: bool = True
    data_use: DataUse | None = None
    series: SeriesBlock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A dataset that was sealed.

    Attributes:
        folder: Where it lies.
        description: What the owner signed.
        registered: At each broker; empty where it was not to be registered.
        simulated: A broker's evidence comes from a simulator and proves nothing about hardware.
    """

    folder: Path
    description: DatasetDescription
    registered: AtEach[None] = field(default_factory=AtEach)
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrapped:
    """A dataset whose recipients changed.

    Attributes:
        dataset_id: 32 hex digits.
        added: Stanzas that were added.
        dropped: Stanzas that were dropped.
        registered: At each broker of the other recipe; empty where there is none.
    """

    dataset_id: str
    added: int
    dropped: int
    registered: AtEach[None] = field(default_factory=AtEach)


def seal(
    owner: OwnerFiles,
    source: Path | Mapping[str, SourceFile],
    out: Path,
    *,
    name: str,
    deployment: LockedRecipe,
    options: SealOptions | None = None,
    publication: Publication = Publication(),
    progress: Callable[[int], None] | None = None,
) -> Sealed:
    """Seal data for one locked recipe. Interrupted, it continues when called again.

    Args:
        owner: Whose data it is; its brokers get the key, whole or in shares.
        source: File or folder with the data, or files by name that are opened in memory.
        out: Folder to make, by convention ``X.sealed``.
        name: Name of the dataset, as the recipe calls it.
        options: How the records are read and laid out; the defaults when ``None``.
        publication: What others learn of it.
        progress: Called with the number of source bytes read.

    Raises:
        UsageError: There is no folder to seal into, or the brokers and the threshold do not fit.
        PurposeMismatch, RetentionEnded: The data could not be used as the owner states.
        BrokerNotApproved: The lock does not name a broker.
        EvidenceRefused: A broker's evidence does not verify.
        AlreadyExists: ``out`` exists.
        FormatUnknown, SchemaMismatch, RecordInvalid, DataInvalid: The data cannot be read.
        LedgerInconsistent: No broker took the registration, and one has another ledger than before.
    """
    if not out.absolute().parent.is_dir():
        raise UsageError(
            "there is no folder to seal into",
            check="--out",
            got=str(out.parent),
            hint="make it first, or name another --out",
        )
    recipe = deployment.recipe
    _require_usable(publication.data_use, recipe, owner.keys.public.name, name)
    _require_place(recipe, owner.keys.public.name, name, publication)
    chosen = fitting(recipe, owner.keys.public.name, name, source, options or SealOptions())
    attested = attest_brokers(owner.brokers, deployment)
    check_brokers(attested, owner.threshold)
    new = _new_dataset(owner, name, attested, publication)
    description = seal_dataset(source, out, new, chosen, progress=progress)
    registered: AtEach[None] = AtEach()
    if publication.register:
        registered = _register(owner, out, deployment)
    return Sealed(
        folder=out,
        description=description,
        registered=registered,
        simulated=any(broker.simulated for broker in attested),
    )


def rewrap(
    owner: OwnerFiles,
    folder: Path,
    *,
    drop: Iterable[str] = (),
    deployment: LockedRecipe | None = None,
    data_use: DataUse | None = None,
) -> Rewrapped:
    """Change which recipients may unwrap a data key; the sealed records stay as they are.

    Args:
        owner: Whose dataset it is.
        folder: The sealed dataset.
        drop: Kinds of stanza to drop, ``recipe`` or ``share``.
        deployment: Another locked recipe: the owner's brokers get the key for it,
            and the dataset is signed and registered for it from now on.
        data_use: How it may be used there; ``None`` keeps what was stated. With a deployment.

    Raises:
        UsageError: Another kind is to be dropped, or nothing is signed that could state it.
        PurposeMismatch, RetentionEnded: The data could not be used there as the owner states.
        SignatureInvalid: The dataset is not the owner's.
        DatasetUnknown: The deployment's recipe names no such dataset of the owner.
        SealtrainError: As ``seal``, where there is a deployment.
    """
    kinds = set(drop)
    if kinds - {"recipe", "share"}:
        raise UsageError(
            "only brokers' stanzas can be dropped",
            got=sorted(kinds),
            expected="recipe or share",
            hint="your own stanza stays: without it the data could never be opened again",
        )
    if data_use is not None and deployment is None:
        raise UsageError(
            "how a dataset may be used is signed for a deployment",
            check="--data-use",
            hint="give --deployment and --broker too; the same deployment again will do",
        )
    me = owner.keys
    envelope = read_dataset_envelope(folder)
    manifest = verify_dataset(envelope, me.public)  # only the owner's own data is rewrapped
    key = own_key(folder, me)
    if deployment is not None:
        dataset_of(deployment.recipe, manifest.owner, manifest.name)
        stated = data_use or manifest.data_use
        _require_usable(stated, deployment.recipe, manifest.owner, manifest.name)
    dataset_id, stanzas = read_stanzas(folder)
    dropped = [stanza for stanza in stanzas if stanza.kind in kinds]
    added: tuple[Stanza, ...] = ()
    registered: AtEach[None] = AtEach()
    if deployment is None:
        rewrap_dataset(folder, data_key=key, drop=dropped)
    else:
        attested = attest_brokers(owner.brokers, deployment)
        added = wrap_for_brokers(
            key,
            dataset_id=dataset_id,
            owner=me.public,
            brokers=attested,
            threshold=owner.threshold,
        )
        rewrap_dataset(folder, data_key=key, add=added, drop=dropped)
        signed = reissue_dataset(
            envelope,
            me.signer,
            app_id=attested[0].app_id,
            compose_hash=attested[0].compose_hash,
            sealed_at=to_rfc3339(system_clock()),
            data_use=data_use,
            threshold=owner.threshold,
        ).to_bytes()
        atomic_write(folder / MANIFEST_NAME, signed, overwrite=True)
        registered = _register(owner, folder, deployment)
    return Rewrapped(
        dataset_id=dataset_id, added=len(added), dropped=len(dropped), registered=registered
    )


def register(owner: OwnerFiles, folder: Path, deployment: LockedRecipe) -> AtEach[None]:
    """Register a sealed dataset, where that was left out, refused or missed by a broker.

    Args:
        owner: Whose dataset it is, and the brokers.
        folder: The sealed dataset.
        deployment: The recipe that it was sealed for.

    Raises:
        SignatureInvalid: The dataset is not the owner's.
        DatasetUnknown: The recipe names no such dataset.
        DatasetMismatch: It was sealed for another recipe.
        BrokerNotApproved: The lock does not name a broker.
        SealtrainError: No broker took it: the worst failure.
    """
    lock, target = deployment.lock, deployment.target
    manifest = load_dataset_manifest(folder, owner.keys.public)
    dataset_of(lock.recipe, manifest.owner, manifest.name)
    require_target(manifest, target)
    brokers_of_lock(owner.brokers, lock)
    return _register(owner, folder, deployment)


def require_target(manifest: DatasetManifest, target: Target) -> None:
    """Refuse a dataset that was sealed for another recipe.

    Raises:
        DatasetMismatch: It was.
    """
    if (manifest.app_id, manifest.compose_hash) != (target.app_id, target.compose_hash):
        raise DatasetMismatch(
            f"the dataset {manifest.name} was sealed for another recipe",
            check="dataset binding",
            owner=manifest.owner,
            got=manifest.compose_hash,
            expected=target.compose_hash,
            hint="add this recipe: sealtrain rewrap SEALED --deployment … --broker …",
        )


def _require_usable(data_use: DataUse | None, recipe: PhaseRecipe, owner: str, name: str) -> None:
    """Refuse at once what no broker would release."""
    if data_use is not None:
        data_use.require_retained(system_clock(), owner=owner, name=name)
        data_use.require_purpose(recipe.purpose, owner=owner, name=name)


def _require_place(recipe: PhaseRecipe, owner: str, name: str, publication: Publication) -> None:
    """Refuse a dataset in no series where the recipe reads a series, and the other way round."""
    reads = dataset_of(recipe, owner, name).series is not None
    if reads != (publication.series is not None):
        raise UsageError(
            f"the recipe reads {name} as a series" if reads else f"{name} is no series",
            check="--series",
            hint="write --series in place of --name" if reads else "write --name in its place",
        )


def _register(owner: OwnerFiles, folder: Path, deployment: LockedRecipe) -> AtEach[None]:
    """Register a dataset whose folder is complete; a refusal says how to go on from there."""
    try:
        envelope = read_bounded(folder / MANIFEST_NAME, MAX_DATASET_BYTES)
        return register_at(owner, envelope, deployment)
    except SealtrainError as error:
        again = f"{folder} is sealed and not registered; once that is mended: sealtrain register"
        hint = f"{error.hint}; {again}" if error.hint else again
        raise error.with_message(error.message, hint=hint) from error


def _new_dataset(
    owner: OwnerFiles, name: str, attested: list[AttestedBroker], publication: Publication
) -> NewDataset:
    me = owner.keys
    public = me.public

    def stanzas(data_key: DataKey, dataset_id: str) -> tuple[Stanza, ...]:
        return (
            wrap_for_owner(
                data_key,
                dataset_id=dataset_id,
                owner_id=public.owner_id,
                public=HpkePublicKey(public.sealing_bytes),
            ),
            *wrap_for_brokers(
                data_key,
                dataset_id=dataset_id,
                owner=public,
                brokers=attested,
                threshold=owner.threshold,
            ),
        )

    def sign(description: DatasetDescription) -> bytes:
        envelope = sign_dataset(
            description,
            me.signer,
            sealed_at=to_rfc3339(system_clock()),
            publish_counts=publication.counts,
            data_use=publication.data_use,
            series=publication.series,
            threshold=owner.threshold,
        )
        return envelope.to_bytes()

    return NewDataset(
        name=name,
        owner_id=public.owner_id,
        owner_name=public.name,
        binding=RecipeBinding(
            app_id=attested[0].app_id,
            compose_hash=attested[0].compose_hash,
            owner_id=public.owner_id,
        ),
        stanzas=stanzas,
        sign=sign,
        unwrap=me.unwrap,
    )


def register_at(owner: OwnerFiles, envelope: bytes, deployment: LockedRecipe) -> AtEach[None]:
    """Register a dataset at brokers whose ledgers extend those seen last. Errors as ``at_each``."""
    consortium_id = deployment.lock.consortium_id

    def at(broker: Path) -> None:
        with BrokerClient.at(load_pin(broker)) as client:
            members = client.consortium(consortium_id)
        with watch_ledger(broker, members, owner.identity, owner.state) as watch:
            watch.confirm_recorded(
                watch.client.hand_in("dataset", Envelope.from_bytes(envelope)), envelope
            )

    return at_each(owner.brokers, at)
