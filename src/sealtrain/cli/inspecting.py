"""``inspect``: what a sealed dataset or file, or a run's manifest, tells without any key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.base.canonical import parse_json
from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_DATASET_BYTES
from sealtrain.cli.output import Json, emit, say
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.keys.identity import Identity
from sealtrain.manifest import form
from sealtrain.manifest.files import manifest_bytes
from sealtrain.manifest.trainedrecords import read_stated
from sealtrain.sealing.description import MANIFEST_NAME
from sealtrain.sealing.errors import NotSealed
from sealtrain.sealing.file import read_header
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.signing.dsse import Envelope


def inspect(
    sealed: Annotated[
        Path,
        typer.Argument(
            help="Sealed dataset folder, sealed file, a run's folder or its manifest.json."
        ),
    ],
    identity: Annotated[
        Path | None,
        typer.Option(help="Your private identity: names and types of your dataset's columns too."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a sealed file or dataset, or a run's manifest, tells without any key.

    Nothing here is verified. The columns of a dataset are sealed: with --identity its owner sees
    them, of a dataset that verifies as theirs.
    """
    of_run = _manifest_at(sealed)
    if of_run is not None:
        _show_run(of_run, as_json)
        return
    if sealed.is_dir() and not (sealed / MANIFEST_NAME).exists():
        raise NotSealed(
            f"{sealed} holds neither a sealed dataset nor a finished run",
            expected=f"{MANIFEST_NAME} or {RUN_MANIFEST} in it",
            hint="name a folder that `sealtrain seal` or `sealtrain train` made",
        )
    if sealed.is_dir():
        dataset_id, stanzas = read_stanzas(sealed)
        envelope = Envelope.from_bytes(read_bounded(sealed / "dataset.json", MAX_DATASET_BYTES))
        claimed = parse_json(envelope.payload)
        manifest = DatasetManifest.from_bytes(envelope.payload)
        stated = manifest.data_use
        told = _dataset_lines(manifest)
    else:
        header = read_header(sealed)
        dataset_id, stanzas, claimed = header.dataset_id, header.stanzas, None
        stated, told = None, []
    columns = None if identity is None else _columns(sealed, Identity.load(identity))
    emit(
        as_json,
        {
            "dataset_id": dataset_id,
            "stanzas": [{"kind": s.kind, "recipient": s.recipient} for s in stanzas],
            "claimed": claimed,
            **({} if columns is None else {"columns": columns}),
        },
        [
            f"id       {dataset_id}",
            *told,
            *(f"column   {name}  {kind}" for name, kind in (columns or {}).items()),
            *(f"stanza   {s.kind}  {s.recipient}" for s in stanzas),
            *(f"{name}: {text}" for name, text in (stated.in_words() if stated else {}).items()),
        ],
    )


def _dataset_lines(manifest: DatasetManifest) -> list[str]:
    """Owner, name and size, as the manifest states them."""
    counts = {"records": manifest.records, "tokens": manifest.tokens}
    told = [f"{count:,} {what}" for what, count in counts.items() if count is not None]
    return [
        f"dataset  {manifest.owner}.{manifest.name}, sealed {manifest.sealed_at}",
        f"holds    {', '.join(told) or 'no count is stated'} in {manifest.shards:,} shards",
    ]


def _columns(sealed: Path, me: Identity) -> dict[str, str]:
    """Column → type, of an owner's dataset of records; none of files.

    Raises:
        SealtrainError: It is no dataset of this owner, or does not open.
    """
    from sealtrain.client.connection import own_key
    from sealtrain.consortium.datasets import load_dataset_manifest
    from sealtrain.sealing.opened_dataset import SealedDataset

    root = load_dataset_manifest(sealed, me.public).root
    with SealedDataset.open(sealed, own_key(sealed, me), root=root) as dataset:
        schema = dataset.schema
        return {} if schema is None else {field.name: str(field.type) for field in schema}


def _manifest_at(place: Path) -> Path | None:
    """The manifest of a completed run; ``None`` where a dataset or a sealed file is named."""
    if not place.is_dir():
        return place if place.name == RUN_MANIFEST else None
    file = place / RUN_MANIFEST
    return file if file.is_file() and not (place / MANIFEST_NAME).exists() else None


def _show_run(manifest: Path, as_json: bool) -> None:
    predicate = form.read(manifest_bytes(manifest)).predicate
    records, run = read_stated(predicate), predicate.run
    if predicate.simulated:
        say("SIMULATED — NOT ATTESTED")
    emit(
        as_json,
        {
            "run_id": run.run_id,
            "finished_at": run.finished_at,
            "steps": run.steps,
            "recipients": list(predicate.outputs.recipients),
            "simulated": predicate.simulated,
            **records.to_dict(),
        },
        [
            f"run      {run.run_id}, finished {run.finished_at}, {run.steps:,} steps",
            f"sealed   to {', '.join(predicate.outputs.recipients) or 'guests of another recipe'}",
            *records.lines(),
        ],
    )
