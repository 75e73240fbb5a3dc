"""Seal the trained model: to every recipient that the recipe names, or to another recipe's guests.

A model for recipients is one sealed file for each of its files; where the recipe's next run begins
with it, the broker can release its key too, to guests of this recipe alone. A model that is handed
on is a sealed dataset of raw files without an owner's stanza: only the brokers release its key
(spec/recipe.md §2.16).
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from sealtrain.base.files import atomic_folder
from sealtrain.base.secret import Random
from sealtrain.client.broker_proof import AttestedBroker
from sealtrain.client.wrapping import wrap_for_brokers
from sealtrain.sealing.batch_counts import new_file
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.description import DatasetDescription, ShardInfo, dataset_root
from sealtrain.sealing.file import FileContext, Suite, seal_file
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.sealing.index import Index, IndexedShard, schema_digest_of
from sealtrain.sealing.stanza import (
    BrokerBinding,
    RecipeBinding,
    Stanza,
    wrap_for_owner,
    wrap_for_recipe,
)
from sealtrain.sealing.trainedmodel import (
    MAX_FILES,
    MODEL_FOLDER,
    TrainedModel,
    TrainedOutput,
    check_sealed_names,
    dataset_context,
    dataset_names,
    model_context,
)
from sealtrain.signing.identity import PublicIdentity
from sealtrain.training.model_files import KeptFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


FileContent = bytes | KeptFile


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRecipe:
    """The recipe that a model is handed on to.

    Attributes:
        owner: The owner that adopts the model.
        dataset: Name of its sealed model.
        brokers: Every broker of the run's lock, with its signed key for that owner and recipe.
        threshold: So many of several brokers restore the key; ``None`` for one broker.
    """

    owner: PublicIdentity
    dataset: str
    brokers: tuple[AttestedBroker, ...]
    threshold: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """The guests of the recipe's next run, which begins with this run's model.

    See spec/schedule.md §4.1.

    Attributes:
        app_id: Of the recipe's deployment, 40 hex digits.
        compose_hash: The same, 64 hex digits.
        broker_id: The one broker of the lock.
        public_key: Its signed key for models of this recipe's runs, 1216 bytes.
    """

    app_id: str
    compose_hash: str
    broker_id: str
    public_key: bytes

    def stanza(self, data_key: DataKey, *, run_id: str, owner_id: str) -> Stanza:
        """The model's key for that broker; arguments as ``seal_model``."""
        recipe = RecipeBinding(self.app_id, self.compose_hash, owner_id)
        return wrap_for_recipe(
            data_key,
            dataset_id=run_id,
            binding=BrokerBinding.of(recipe, self.broker_id),
            public=HpkePublicKey(self.public_key),
        )


def seal_model(
    files: Mapping[str, FileContent],
    out: Path,
    *,
    run_id: str,
    owner_id: str,
    recipients: Iterable[PublicIdentity],
    next_run: NextRun | None = None,
    random: Random = os.urandom,
) -> TrainedModel:
    """Write ``out/model/NAME.sealed`` for every file; the folder appears whole or not at all.

    Digests and roots are computed over the bytes on their way to the disk: the operator owns the
    disk and may replace a file as soon as it is written.

    Args:
        files: Name → content, in memory or where it waits.
        out: The run's folder.
        run_id: Bound into every file.
        owner_id: Bound into every file: the consortium's id.
        recipients: Keys of the owners who can open the files.
        next_run: Where the recipe's next run begins with this model.
        random: Source of the data key and salts.

    Returns:
        The entries that the manifest signs.

    Raises:
        ValueError: Two names collide in a folder on some file system.
    """
    data_key = DataKey.generate(random)
    stanzas = [
        wrap_for_owner(
            data_key,
            dataset_id=run_id,
            owner_id=owner.owner_id,
            public=HpkePublicKey(owner.sealing_bytes),
        )
        for owner in recipients
    ]
    if next_run is not None:
        stanzas.append(next_run.stanza(data_key, run_id=run_id, owner_id=owner_id))
    names = sorted(files)
    with atomic_folder(out / MODEL_FOLDER, mode=0o755, overwrite=True) as folder:
        sealing = _ModelSealing(folder, data_key, random)
        made = tuple(
            sealing.seal(
                names[position],
                sealed,
                files[names[position]],
                model_context(names[position], position, len(names), run_id, owner_id),
                stanzas,
            )
            for position, sealed in enumerate(check_sealed_names(names))
        )
    return TrainedModel(run_id=run_id, owner_id=owner_id, files=made)


def hand_on_model(
    files: Mapping[str, FileContent],
    out: Path,
    *,
    run_id: str,
    owner_id: str,
    to: NextRecipe,
    random: Random = os.urandom,
) -> TrainedModel:
    """Write the model into ``out/model`` as a sealed dataset that guests of ``to`` alone can open.

    Args:
        files: As ``seal_model``.
        out: The run's folder; digests and roots are computed as in ``seal_model``.
        run_id: The run's.
        owner_id: The consortium's id.
        to: The recipe that the model is handed on to.
        random: Source of the data key, the dataset id and salts.

    Returns:
        The entries that the manifest signs, with the dataset that they are.

    Raises:
        ValueError: There are no files, or too many.
    """
    if not 0 < len(files) < MAX_FILES:
        raise ValueError(f"are not 1 to {MAX_FILES - 1} files")
    data_key, dataset_id = DataKey.generate(random), random(16).hex()
    stanzas = wrap_for_brokers(
        data_key,
        dataset_id=dataset_id,
        owner=to.owner,
        brokers=to.brokers,
        threshold=to.threshold,
        random=random,
    )
    names = sorted(files)
    index_name, *shard_names = dataset_names(len(names) + 1)
    index_sealed, *shards_sealed = check_sealed_names((index_name, *shard_names))

    def context(position: int) -> FileContext:
        return dataset_context(dataset_id, to.owner.owner_id, to.dataset, position)

    with atomic_folder(out / MODEL_FOLDER, mode=0o755, overwrite=True) as folder:
        sealing = _ModelSealing(folder, data_key, random)
        shards = [
            sealing.seal(shard, sealed, files[name], context(number + 1), ())
            for number, (name, shard, sealed) in enumerate(
                zip(names, shard_names, shards_sealed, strict=True)
            )
        ]
        listed = tuple(
            ShardInfo(name=sealed, size=shard.size, root=shard.root)
            for sealed, shard in zip(shards_sealed, shards, strict=True)
        )
        content = Index(
            dataset_id=dataset_id,
            name=to.dataset,
            owner_id=to.owner.owner_id,
            owner_name=to.owner.name,
            layout="raw",
            padding="none",
            suite=Suite.BLAKE3,
            schema=None,
            schema_digest=schema_digest_of(None),
            records=None,
            tokens=None,
            shards=tuple(
                IndexedShard(info=info, kind="raw", file=name)
                for info, name in zip(listed, names, strict=True)
            ),
        ).to_bytes()
        index = sealing.seal(index_name, index_sealed, content, context(0), stanzas)
    return TrainedModel(
        run_id=run_id,
        owner_id=owner_id,
        files=(index, *shards),
        dataset=DatasetDescription(
            dataset_id=dataset_id,
            name=to.dataset,
            owner_id=to.owner.owner_id,
            owner_name=to.owner.name,
            root=dataset_root(dataset_id, index.root, listed),
            shards=listed,
            records=None,
            tokens=None,
            schema_digest=schema_digest_of(None),
            binding=RecipeBinding(
                to.brokers[0].app_id, to.brokers[0].compose_hash, to.owner.owner_id
            ),
        ),
    )


@dataclass(frozen=True, slots=True)
class _ModelSealing:
    """Seals files of one model into its folder."""

    folder: Path
    data_key: DataKey
    random: Random

    def seal(
        self,
        name: str,
        sealed: str,
        content: FileContent,
        context: FileContext,
        stanzas: Sequence[Stanza],
    ) -> TrainedOutput:
        """Write one file.

        Args:
            name: Its name among the outputs.
            sealed: Where it lies in the folder.
            content: Its plaintext.
            context: Its core.
            stanzas: Of its header.
        """
        path = self.folder / sealed
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            new_file(path) as file,
            io.BytesIO(content) if isinstance(content, bytes) else content.open() as source,
        ):
            seen = _HashingWriter(file)
            info = seal_file(
                source,
                cast("BinaryIO", seen),
                data_key=self.data_key,
                context=context,
                stanzas=stanzas,
                random=self.random,
            )
        return TrainedOutput(name=name, size=info.size, sha256=seen.sha256, root=info.root)


class _HashingWriter(io.RawIOBase):
    """Passes on the written bytes, and hashes them."""

    def __init__(self, target: BinaryIO) -> None:
        self._target, self._seen = target, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        self._seen.update(data)
        return self._target.write(data)

    @property
    def sha256(self) -> str:
        return self._seen.hexdigest()
