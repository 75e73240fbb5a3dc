"""Seal the trained model: every model file to every recipient that the recipe names."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from sealtrain.base.files import atomic_folder
from sealtrain.base.secret import Random
from sealtrain.sealing.counted import new_file
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.file import seal_file
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.sealing.stanza import wrap_for_owner
from sealtrain.sealing.trainedmodel import (
    MODEL_FOLDER,
    TrainedModel,
    TrainedOutput,
    model_context,
    sealed_names,
)
from sealtrain.signing.identity import PublicIdentity

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["seal_model"]


def seal_model(
    files: Mapping[str, bytes],
    out: Path,
    *,
    run_id: str,
    owner_id: str,
    recipients: Iterable[PublicIdentity],
    random: Random = os.urandom,
) -> TrainedModel:
    """Write ``out/model/NAME.sealed`` for every file; the folder appears whole or not at all.

    Digests and roots are computed over the bytes on their way to the disk: the operator owns the
    disk and may replace a file as soon as it is written.

    Args:
        files: Name → content, as the trainer built them in memory.
        out: The run's folder.
        run_id: Bound into every file.
        owner_id: Bound into every file: the consortium's id.
        recipients: Keys of the owners who can open the files.
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
    names = sorted(files)
    made = []
    with atomic_folder(out / MODEL_FOLDER, mode=0o755, overwrite=True) as folder:
        for position, sealed in enumerate(sealed_names(names)):
            name = names[position]
            path = folder / sealed
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(path) as file:
                seen = _Hashed(file)
                info = seal_file(
                    io.BytesIO(files[name]),
                    cast("BinaryIO", seen),
                    data_key=data_key,
                    context=model_context(name, position, len(names), run_id, owner_id),
                    stanzas=stanzas,
                    random=random,
                )
            made.append(
                TrainedOutput(name=name, size=info.size, sha256=seen.sha256, root=info.root)
            )
    return TrainedModel(run_id=run_id, owner_id=owner_id, files=tuple(made))


class _Hashed(io.RawIOBase):
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
