"""Open what was sealed to a person: an owner's dataset, or a model for its recipient.

Of a model, exactly the files that the manifest of its run names are opened. The manifest is
verified first where the recipient says what they trust; else it is only a list, and anyone can
write one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.base.clock import system_clock
from sealtrain.client.connection import own_key
from sealtrain.consortium.datasets import load_dataset_manifest
from sealtrain.errors import UsageError
from sealtrain.manifest.files import manifest_bytes
from sealtrain.manifest.opening import open_named, open_unnamed, refuse_code, write_opened
from sealtrain.manifest.trainedrecords import StatedRecords, read_stated
from sealtrain.manifest.trust import Trust, load_trust
from sealtrain.manifest.verify import verify_manifest
from sealtrain.sealing.description import MANIFEST_NAME
from sealtrain.sealing.errors import NotSealed
from sealtrain.sealing.export import export
from sealtrain.sealing.opened_dataset import SealedDataset, contains_record
from sealtrain.sealing.trainedmodel import MODEL_FOLDER, RUN_MANIFEST, holds_sealed_files

if TYPE_CHECKING:
    from sealtrain.keys.identity import Identity
    from sealtrain.sealing.opened_model import TrainedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
    """How the files of a model are known.

    Attributes:
        path: Manifest of the model's run; the one beside the model folder when ``None``.
        trust: What the recipient trusts, or the file (YAML): the manifest is verified first.
        unnamed: Use no manifest: nothing says whose files they are, or whether one was exchanged.
    """

    path: Path | None = None
    trust: Path | Trust | None = None
    unnamed: bool = False

    @property
    def given(self) -> bool:
        """Whether the caller said anything."""
        return self != RunManifest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model's files, and what verifies where they come from.

    Attributes:
        files: By the names they had in training.
        run_id: As the manifest says; ``None`` without one.
        finished_at: The same.
        checks: How many checks of the manifest passed; ``None`` where it was not verified.
        simulated: The manifest says that the run was.
        records: What the manifest says of the records that trained; ``None`` without a manifest.
    """

    files: dict[str, TrainedFile]
    run_id: str | None = None
    finished_at: str | None = None
    checks: int | None = None
    simulated: bool = False
    records: StatedRecords | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFiles:
    """What was written in the clear.

    Attributes:
        out: File or folder.
        files: Names of the files in it, sorted; of a dataset its one file.
        dataset: Name of the dataset, if it is one.
        model: Where the files of a model come from, if it is one.
    """

    out: Path
    files: list[str]
    dataset: str | None = None
    model: ModelFiles | None = None


def open_sealed(
    sealed: Path,
    out: Path,
    *,
    identity: Identity,
    run: RunManifest = RunManifest(),
    to: str = "jsonl",
    insecure_code: bool = False,
) -> OpenedFiles:
    """Decrypt a recipient's model, or an owner's dataset, on their own machine.

    Args:
        sealed: Folder of a run, its model folder, or a sealed dataset.
        out: File or folder to write; it appears whole or not at all.
        identity: The recipient's, or the owner's.
        run: How the files of a model are known.
        to: Format of a dataset: ``jsonl``, ``csv``, ``parquet``, ``arrow`` or ``raw``.
        insecure_code: Also write files of a model that can run code where a library loads them.

    Raises:
        NotSealed: Nothing sealed is there.
        UsageError: The manifest is missing, or ``run`` contradicts itself.
        Refused: The manifest does not verify, or the files are not those it names.
        NoStanza, WrongKey: It is sealed to another recipient.
        ModelInvalid: A file of the model can carry code.
        AlreadyExists: ``out`` exists.
    """
    if not (run.given or _is_run(sealed)) and (sealed / MANIFEST_NAME).exists():
        return open_dataset(sealed, out, identity=identity, to=to)
    return open_model(sealed, out, identity=identity, run=run, insecure_code=insecure_code)


def open_dataset(sealed: Path, out: Path, *, identity: Identity, to: str = "jsonl") -> OpenedFiles:
    """Decrypt an owner's dataset. Arguments as ``open_sealed``.

    Raises:
        NotSealed: It is no sealed dataset, or a run's folder.
        SignatureInvalid: It is another owner's.
        SealtrainError: As ``open_sealed``.
    """
    if _is_run(sealed) or not (sealed / MANIFEST_NAME).exists():
        raise NotSealed(
            f"no sealed dataset at {sealed}", hint="name a folder that `sealtrain seal` made"
        )
    manifest = load_dataset_manifest(sealed, identity.public)
    export(sealed, out, key=own_key(sealed, identity), root=manifest.root, to=to)
    return OpenedFiles(out=out, files=[out.name], dataset=manifest.name)


def rows_of(
    sealed: Path, record: Mapping[str, Any], *, identity: Identity
) -> tuple[str, tuple[int, ...]]:
    """A dataset's name, and the row numbers at which a record lies; none where it is not in.

    Args:
        sealed: An owner's dataset that was sealed with commitments.
        record: Column names and values; null ones may be left out.
        identity: The owner's.

    Raises:
        NotSealed: It is no sealed dataset, or a run's folder.
        SignatureInvalid: It is another owner's.
        FormatUnknown: It was sealed without commitments.
        SealRefused: Its commitments do not open.
    """
    if _is_run(sealed) or not (sealed / MANIFEST_NAME).exists():
        raise NotSealed(
            f"no sealed dataset at {sealed}", hint="name a folder that `sealtrain seal` made"
        )
    manifest = load_dataset_manifest(sealed, identity.public)
    with SealedDataset.open(sealed, own_key(sealed, identity), root=manifest.root) as dataset:
        return manifest.name, contains_record(dataset, record)


def open_model(
    sealed: Path,
    out: Path,
    *,
    identity: Identity,
    run: RunManifest,
    insecure_code: bool = False,
) -> OpenedFiles:
    """Decrypt a recipient's model; never a dataset. Arguments and errors as ``open_sealed``."""
    model = _model_at(sealed, identity, run)
    names = write_opened(model.files, out, insecure_code=insecure_code)
    return OpenedFiles(out=out, files=names, model=model)


def model_of_run(source: Path, identity: Identity, run: RunManifest) -> ModelFiles | None:
    """Open a model in memory, to seal it again, and refuse code in it; ``None`` for other data.

    Args:
        source: Folder or file to seal.
        identity: Its owner's.
        run: How the files of the model are known.

    Raises:
        SealtrainError: As ``open_sealed``.
    """
    if not holds_sealed_files(source):
        if run.given:
            raise UsageError("only a run's model has a manifest", got=str(source))
        return None
    found = _model_at(source, identity, run)
    refuse_code(found.files)
    return found


def _model_at(sealed: Path, me: Identity, run: RunManifest) -> ModelFiles:
    """The files of a model that its recipient may open."""
    run_folder = sealed.absolute()
    if run_folder.name == MODEL_FOLDER:
        run_folder = run_folder.parent
    folder = run_folder / MODEL_FOLDER
    if not folder.is_dir():
        raise NotSealed(
            f"nothing sealed at {sealed}",
            hint="name a run's folder, its folder 'model', or what `sealtrain seal` made",
        )
    if run.unnamed:
        if run.path is not None or run.trust is not None:
            raise UsageError("--no-manifest goes with neither --manifest nor --trust")
        return ModelFiles(files=open_unnamed(folder, me))
    path = run.path or run_folder / RUN_MANIFEST
    if not path.exists():
        raise UsageError(
            f"there is no manifest at {path}",
            check="--manifest",
            hint="name it with --manifest; --no-manifest opens the files without it",
        )
    data, checks = manifest_bytes(path), None  # read once: what is verified is what is opened
    if run.trust is not None:
        trust = run.trust if isinstance(run.trust, Trust) else load_trust(run.trust)
        verified = verify_manifest(data, trust, artefacts=run_folder, now=system_clock())
        checks = len(verified.checks)
    read, files = open_named(data, folder, me)
    of_run = read.predicate.run
    return ModelFiles(
        files=files,
        run_id=of_run.run_id,
        finished_at=of_run.finished_at,
        checks=checks,
        simulated=read.predicate.simulated or read.predicate.deployment.platform == "simulator",
        records=read_stated(read.predicate),
    )


def _is_run(sealed: Path) -> bool:
    """Whether a folder is a run's, or its model: what lies there is never opened as a dataset.

    The operator has the sealed records of every owner. Put in the place of a model, they would be
    decrypted and given away as the model.
    """
    name = sealed.absolute().name
    return name == MODEL_FOLDER or any(
        (sealed / inside).exists() for inside in (MODEL_FOLDER, RUN_MANIFEST)
    )
