"""``open``: decrypt a recipient's model, or an owner's dataset, on their own machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sealtrain.base.clock import system_clock
from sealtrain.cli.manifest import manifest_bytes
from sealtrain.cli.output import Json, emit, say
from sealtrain.client.connection import own_key
from sealtrain.consortium.datasets import load_dataset_manifest
from sealtrain.errors import NotSealed, UsageError
from sealtrain.keys.identity import Identity
from sealtrain.manifest.opening import named_outputs, refuse_code, unnamed_outputs, write_opened
from sealtrain.manifest.trust import load_trust
from sealtrain.manifest.verify import verify_manifest
from sealtrain.sealing.dataset import export
from sealtrain.sealing.trainedmodel import MODEL_FOLDER, holds_sealed_files

if TYPE_CHECKING:
    from sealtrain.sealing.openedmodel import TrainedFile

__all__ = ["ManifestOptions", "model_source", "open_sealed"]

_UNVERIFIED = (
    "not verified: these are the files that the manifest names, and anyone can write such a "
    "manifest; --trust verifies it"
)
_UNNAMED = (
    "no manifest: anyone can seal files to a recipient's public key; nothing says which training "
    "made these, if one did"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestOptions:
    """The manifest of a model's run, which names the model's files."""

    manifest: Annotated[
        Path | None, typer.Option(help="Manifest of the model's run [the one beside it].")
    ] = None
    trust: Annotated[
        Path | None, typer.Option(help="What you trust (YAML): verify the manifest first.")
    ] = None
    no_manifest: Annotated[
        bool,
        typer.Option(
            "--no-manifest",
            help="Use no manifest: skips whose files they are, and whether one was exchanged.",
        ),
    ] = False

    @property
    def given(self) -> bool:
        """Whether any of the options was."""
        return self.no_manifest or self.manifest is not None or self.trust is not None


def open_sealed(
    sealed: Annotated[
        Path, typer.Argument(help="Folder of a run, its model folder, or your sealed dataset.")
    ],
    identity: Annotated[Path, typer.Option(help="Private identity of a recipient.")],
    out: Annotated[Path, typer.Option(help="File or folder to write the plaintext to.")],
    *,
    to: Annotated[
        str, typer.Option(help="jsonl, csv, parquet, arrow or raw (datasets only).")
    ] = "jsonl",
    manifest: ManifestOptions,
    insecure_code: Annotated[
        bool,
        typer.Option(
            "--insecure-code", help="Also write files of a model that can run code when loaded."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Open what was sealed to you: your own dataset, or a model trained for you.

    Of a model, exactly the files that the manifest of its run names are opened. With --trust the
    manifest is verified first; without, anyone can have written it.
    """
    me = Identity.load(identity)
    if not (manifest.given or _is_run(sealed)) and (sealed / "dataset.json").exists():
        name = _open_dataset(sealed, me, out, to)
        emit(
            as_json,
            {"out": str(out), "files": [out.name], "dataset": name},
            [f"opened   {out}", f"dataset  {name}, your own", out.name],
        )
        return
    outputs = _outputs_at(sealed, me, manifest)
    names = write_opened(outputs.files, out, insecure_code=insecure_code)
    outputs.tell()
    emit(
        as_json,
        {"out": str(out), "files": names} | outputs.to_dict(),
        [f"opened   {out}", *outputs.lines(), *names],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outputs:
    """A model's files, and what verifies where they come from.

    Attributes:
        files: By the names they had in training.
        run_id: As the manifest says; ``None`` without one.
        finished_at: The same.
        checks: How many checks of the manifest passed; ``None`` where it was not verified.
        simulated: The manifest says that the run was.
    """

    files: dict[str, TrainedFile]
    run_id: str | None = None
    finished_at: str | None = None
    checks: int | None = None
    simulated: bool = False

    def tell(self) -> None:
        """Say what was not verified, and whether the run was simulated."""
        if self.run_id is None:
            say(_UNNAMED)
        elif self.checks is None:
            say(_UNVERIFIED)
        if self.simulated:
            say("SIMULATED — NOT ATTESTED")

    def lines(self) -> list[str]:
        """As lines of text."""
        if self.run_id is None:
            return ["manifest none"]
        verified = "not verified" if self.checks is None else f"{self.checks} checks passed"
        return [f"run      {self.run_id}, finished {self.finished_at}", f"manifest {verified}"]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, without the files."""
        return {
            "run_id": self.run_id,
            "finished_at": self.finished_at,
            "manifest": self.run_id is not None,
            "verified": self.checks is not None,
            "simulated": self.simulated,
        }


def model_source(source: Path, me: Identity, manifest: ManifestOptions) -> _Outputs | None:
    """Open a model to seal it again, and refuse code in it; ``None`` for any other data.

    Args:
        source: Folder or file to seal.
        me: Its owner.
        manifest: Of its run.

    Raises:
        SealtrainError: As ``open``.
    """
    if not holds_sealed_files(source):
        if manifest.given:
            raise UsageError("only a run's model has a manifest", got=str(source))
        return None
    found = _outputs_at(source, me, manifest)
    refuse_code(found.files)
    return found


def _outputs_at(sealed: Path, me: Identity, manifest: ManifestOptions) -> _Outputs:
    """The files of a model that its recipient may open.

    Args:
        sealed: Folder of a run, or its model folder.
        me: The recipient.
        manifest: Of the run; the manifest beside the model folder where none is named. Without
            a trust file it is only a list of files; with ``no_manifest`` the folder is the list.

    Raises:
        UsageError: The manifest is missing, or ``no_manifest`` contradicts another option.
        Refused: The manifest does not verify, or the folder's files are not those it names.
    """
    run_folder = sealed.absolute()
    if run_folder.name == MODEL_FOLDER:
        run_folder = run_folder.parent
    folder = run_folder / MODEL_FOLDER
    if not folder.is_dir():
        raise NotSealed(
            f"nothing sealed at {sealed}",
            hint="name a run's folder, its folder 'model', or what `sealtrain seal` made",
        )
    if manifest.no_manifest:
        if manifest.manifest is not None or manifest.trust is not None:
            raise UsageError("--no-manifest goes with neither --manifest nor --trust")
        return _Outputs(files=unnamed_outputs(folder, me))
    path = manifest.manifest or run_folder / "manifest.json"
    if not path.exists():
        raise UsageError(
            f"there is no manifest at {path}",
            check="--manifest",
            hint="name it with --manifest; --no-manifest opens the files without it",
        )
    data, checks = manifest_bytes(path), None
    if manifest.trust is not None:
        checks = _verified(data, manifest.trust, run_folder)
    read, files = named_outputs(data, folder, me)
    run = read.predicate.run
    simulated = read.predicate.simulated or read.predicate.deployment.platform == "simulator"
    return _Outputs(
        files=files,
        run_id=run.run_id,
        finished_at=run.finished_at,
        checks=checks,
        simulated=simulated,
    )


def _verified(data: bytes, trust: Path, run_folder: Path) -> int:
    verified = verify_manifest(data, load_trust(trust), artefacts=run_folder, now=system_clock())
    return len(verified.checks)


def _is_run(sealed: Path) -> bool:
    """Whether a folder is a run's, or its model: what lies there is never opened as a dataset.

    The operator has the sealed records of every owner. Put in the place of a model, they would be
    decrypted and given away as the model.
    """
    name = sealed.absolute().name
    return name == MODEL_FOLDER or any(
        (sealed / inside).exists() for inside in (MODEL_FOLDER, "manifest.json")
    )


def _open_dataset(sealed: Path, me: Identity, out: Path, to: str) -> str:
    manifest = load_dataset_manifest(sealed, me.public)
    export(sealed, out, key=own_key(sealed, me), root=manifest.root, to=to)
    return manifest.name
