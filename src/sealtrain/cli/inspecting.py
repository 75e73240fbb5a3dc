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
from sealtrain.manifest import form
from sealtrain.manifest.files import manifest_bytes
from sealtrain.manifest.trainedrecords import stated_records
from sealtrain.sealing.description import MANIFEST_NAME
from sealtrain.sealing.file import read_header
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.signing.dsse import Envelope

__all__ = ["inspect"]


def inspect(
    sealed: Annotated[
        Path,
        typer.Argument(
            help="Sealed dataset folder, sealed file, a run's folder or its manifest.json."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show what a sealed file or dataset, or a run's manifest, tells without any key.

    Nothing here is verified.
    """
    manifest = _manifest_at(sealed)
    if manifest is not None:
        _show_run(manifest, as_json)
        return
    if sealed.is_dir():
        dataset_id, stanzas = read_stanzas(sealed)
        envelope = Envelope.from_bytes(read_bounded(sealed / "dataset.json", MAX_DATASET_BYTES))
        claimed = parse_json(envelope.payload)
        stated = DatasetManifest.from_bytes(envelope.payload).data_use
    else:
        header = read_header(sealed)
        dataset_id, stanzas, claimed = header.dataset_id, header.stanzas, None
        stated = None
    emit(
        as_json,
        {
            "dataset_id": dataset_id,
            "stanzas": [{"kind": s.kind, "recipient": s.recipient} for s in stanzas],
            "claimed": claimed,
        },
        [
            f"id       {dataset_id}",
            *(f"stanza   {s.kind}  {s.recipient}" for s in stanzas),
            *(f"{name}: {text}" for name, text in (stated.in_words() if stated else {}).items()),
        ],
    )


def _manifest_at(place: Path) -> Path | None:
    """The manifest of a completed run; ``None`` where a dataset or a sealed file is named."""
    if not place.is_dir():
        return place if place.name == RUN_MANIFEST else None
    file = place / RUN_MANIFEST
    return file if file.is_file() and not (place / MANIFEST_NAME).exists() else None


def _show_run(manifest: Path, as_json: bool) -> None:
    predicate = form.read(manifest_bytes(manifest)).predicate
    records, run = stated_records(predicate), predicate.run
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
