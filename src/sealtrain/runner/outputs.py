"""Seal what training made: every model file to every recipient the recipe names."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from sealtrain.base.digests import file_sha256
from sealtrain.base.files import atomic_folder
from sealtrain.records.identity import PublicIdentity
from sealtrain.records.statement import Subject
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.file import FileContext, seal_file
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.sealing.stanza import wrap_for_owner

__all__ = ["MODEL_FOLDER", "seal_model"]

MODEL_FOLDER = "model"


def seal_model(
    files: Mapping[str, bytes],
    out: Path,
    *,
    run_id: str,
    owner_id: str,
    recipients: Iterable[PublicIdentity],
    random: Callable[[int], bytes] = os.urandom,
) -> tuple[Subject, ...]:
    """Write ``out/model/NAME.sealed`` for every file; the folder appears whole or not at all.

    Args:
        files: Name → content, as the trainer made them in memory.
        out: The run's folder.
        run_id: Bound into every file, as its dataset id.
        owner_id: Bound into every file: the consortium's id, since all its owners own the model.
        recipients: Owners who can open the files.
        random: Source of the data key and salts.

    Returns:
        Names relative to ``out`` and the SHA-256 of each sealed file, in order of name.
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
    with atomic_folder(out / MODEL_FOLDER, mode=0o755, overwrite=True) as folder:
        for position, name in enumerate(names):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            seal_file(
                io.BytesIO(files[name]),
                folder / f"{name}.sealed",
                data_key=data_key,
                context=FileContext(
                    dataset_id=run_id,
                    owner_id=owner_id,
                    name=name,
                    shard=position,
                    kind="model",
                ),
                stanzas=stanzas,
                random=random,
            )
    return tuple(
        Subject(
            name=f"{MODEL_FOLDER}/{name}.sealed",
            sha256=file_sha256(out / MODEL_FOLDER / f"{name}.sealed"),
        )
        for name in names
    )
