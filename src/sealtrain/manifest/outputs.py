"""The output files that a manifest names, and whether a folder holds exactly them.

The folder is untrusted. Links, pipes and files of another size are refused before a byte of them is
read; hash, header and trailer are then read from the same open file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from sealtrain.base.encoding import from_hex
from sealtrain.base.files import open_regular
from sealtrain.errors import DataInvalid
from sealtrain.manifest.errors import SubjectMismatch
from sealtrain.manifest.predicate import Outputs, Predicate, output_name
from sealtrain.sealing.description import DatasetDescription, ShardInfo
from sealtrain.sealing.errors import NoStanza, SealRefused
from sealtrain.sealing.header import read_header_from
from sealtrain.sealing.index import schema_digest_of
from sealtrain.sealing.stanza import RecipeBinding
from sealtrain.sealing.trailer import read_trailer
from sealtrain.sealing.trainedmodel import (
    MODEL_FOLDER,
    TrainedModel,
    TrainedOutput,
    check_sealed_names,
    strange_entry,
)
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.statement import Subject

_PIECE = 1 << 20


def model_of(predicate: Predicate, subjects: Sequence[Subject]) -> TrainedModel:
    """The model that a manifest names; as unverified as the manifest."""
    return TrainedModel(
        run_id=predicate.run.run_id,
        owner_id=predicate.consortium.consortium_id,
        files=tuple(
            TrainedOutput(
                name=output_name(file.name), size=file.size, sha256=subject.sha256, root=file.root
            )
            for file, subject in zip(predicate.outputs.files, subjects, strict=True)
        ),
        dataset=_describe_outputs(predicate.outputs),
    )


def subjects_of(model: TrainedModel) -> tuple[Subject, ...]:
    """The statement's ``subject`` for a model."""
    return tuple(
        Subject(name=f"{MODEL_FOLDER}/{sealed}", sha256=file.sha256)
        for sealed, file in zip(check_sealed_names(model.names), model.files, strict=True)
    )


def files_of(model: TrainedModel) -> list[dict[str, str | int]]:
    """The predicate's ``outputs.files`` for a model, as JSON."""
    return [
        {"name": subject.name, "size": file.size, "root": file.root}
        for subject, file in zip(subjects_of(model), model.files, strict=True)
    ]


def dataset_of(model: TrainedModel) -> dict[str, dict[str, str]]:
    """The predicate's ``outputs.dataset`` for a model that is handed on, as JSON; else nothing."""
    made = model.dataset
    if made is None:
        return {}
    return {
        "dataset": {
            "dataset_id": made.dataset_id,
            "owner": made.owner_name,
            "owner_id": made.owner_id,
            "name": made.name,
            "root": made.root,
            "app_id": made.binding.app_id,
            "compose_hash": made.binding.compose_hash,
        }
    }


def _describe_outputs(outputs: Outputs) -> DatasetDescription | None:
    stated = outputs.dataset
    if stated is None:
        return None
    return DatasetDescription(
        dataset_id=stated.dataset_id,
        name=stated.name,
        owner_id=stated.owner_id,
        owner_name=stated.owner,
        root=stated.root,
        shards=tuple(
            ShardInfo(
                name=file.name.removeprefix(f"{MODEL_FOLDER}/"), size=file.size, root=file.root
            )
            for file in outputs.files[1:]
        ),
        records=None,
        tokens=None,
        schema_digest=schema_digest_of(None),
        binding=RecipeBinding(stated.app_id, stated.compose_hash, stated.owner_id),
    )


def require_recipient(predicate: Predicate, me: PublicIdentity) -> None:
    """Refuse a manifest whose outputs are not sealed to this owner under these keys.

    Raises:
        NoStanza: The owner is not a recipient, or has other keys in the manifest's consortium.
    """
    if predicate.outputs.dataset is not None:
        raise NoStanza(
            "the model was handed on to another recipe: no person has a key of it",
            check="recipients",
            got=f"{me.name} {me.owner_id[:16]}…",
            expected=f"a guest of {predicate.outputs.dataset.compose_hash[:16]}…",
            hint="its guests open it once its owner adopted it: sealtrain adopt",
        )
    recipients = predicate.outputs.recipients
    named = [owner for owner in predicate.consortium.owners if owner.name in recipients]
    if me.owner_id not in {owner.owner_id for owner in named}:
        raise NoStanza(
            "the manifest names another recipient",
            check="recipients",
            got=f"{me.name} {me.owner_id[:16]}…",
            expected=", ".join(f"{owner.name} {owner.owner_id[:16]}…" for owner in named),
            hint="use the identity file whose keys the consortium had at the run",
        )


def require_named_entries(model: TrainedModel, folder: Path) -> None:
    """Refuse a model's folder that holds anything but the named files; none of them is read.

    Args:
        model: The model that the manifest names.
        folder: ``model`` in the run's folder.

    Raises:
        SubjectMismatch: A file is missing, is not a regular file, or is not named.
    """
    sealed = check_sealed_names(model.names)
    if folder.is_symlink() or not folder.is_dir():
        raise _missing(MODEL_FOLDER)
    strange = strange_entry(folder, sealed)
    if strange is not None:
        raise SubjectMismatch(
            "the outputs' folder holds an entry that the manifest does not name",
            check="artefacts",
            got=f"{MODEL_FOLDER}/{strange}",
            expected=f"the {len(sealed)} files that the manifest names",
            hint="remove the entry, which no guest signed, or fetch the outputs again",
        )
    for name, file in zip(sealed, model.files, strict=True):
        _refuse_other_size(folder / name, f"{MODEL_FOLDER}/{name}", file.size)


def require_named_files(model: TrainedModel, folder: Path) -> None:
    """As ``require_named_entries``; then hash every file and compare its header.

    Raises:
        SubjectMismatch: As above, or a file has another digest, root or core than the signed one.
    """
    require_named_entries(model, folder)
    for position, name in enumerate(check_sealed_names(model.names)):
        shown = f"{MODEL_FOLDER}/{name}"
        try:
            with os.fdopen(open_regular(folder / name), "rb") as file:
                _refuse_other_file(file, shown, model, position)
        except (DataInvalid, SealRefused) as error:
            raise SubjectMismatch(
                f"the output file {shown} is not a sealed file of this model: {error.message}",
                check="artefacts",
                got=error.got,
                expected=error.expected,
            ) from error


def _refuse_other_size(path: Path, shown: str, size: int) -> None:
    got = path.lstat().st_size if path.is_file() and not path.is_symlink() else None
    if got is None:
        raise _missing(shown)
    if got != size:
        raise SubjectMismatch(
            f"the output file {shown} has another size",
            check="artefacts",
            got=f"{got} bytes",
            expected=f"{size} bytes",
        )


def _missing(shown: str) -> SubjectMismatch:
    return SubjectMismatch(
        f"{shown} is missing from the run's folder",
        check="artefacts",
        expected=shown,
        hint="name the folder with --artefacts, or pass --without-artefacts",
    )


def _refuse_other_file(file: BinaryIO, shown: str, model: TrainedModel, position: int) -> None:
    signed = model.files[position]
    got = _sha256(file, signed.size)
    if got != signed.sha256:
        raise SubjectMismatch(
            f"the output file {shown} has another digest",
            check="artefacts",
            got=got,
            expected=signed.sha256,
            hint="fetch the file again: it changed after the guest signed the manifest",
        )

    def read_at(offset: int, length: int) -> bytes:
        file.seek(offset)
        return file.read(length)

    header, _ = read_header_from(read_at)
    model.context(position).require(header.context)
    read_trailer(read_at, signed.size, header, keys=None, root=from_hex(signed.root, length=32))


def _sha256(file: BinaryIO, size: int) -> str:
    """SHA-256 of the file's first ``size`` bytes and one more, in case it grew meanwhile."""
    seen, left = hashlib.sha256(), size + 1
    while left and (piece := file.read(min(_PIECE, left))):
        seen.update(piece)
        left -= len(piece)
    return seen.hexdigest()
