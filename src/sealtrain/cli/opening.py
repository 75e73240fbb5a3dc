"""``open`` and ``contains``: what owners and recipients learn of files that were sealed to them."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.base.canonical import parse_json
from sealtrain.base.files import read_bounded
from sealtrain.cli.output import Json, emit, say
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.keys.identity import Identity
from sealtrain.owner.opening import ModelFiles, RunManifest, rows_of
from sealtrain.owner.opening import open_sealed as open_for
from sealtrain.sealing.export import EXPORT_FORMATS
from sealtrain.training.basefiles import BASE_FILES, read_list

_MAX_RECORD_BYTES = 64 << 20
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

    def of_run(self) -> RunManifest:
        """As the library takes them."""
        return RunManifest(path=self.manifest, trust=self.trust, unnamed=self.no_manifest)


def open_sealed(
    sealed: Annotated[
        Path, typer.Argument(help="Folder of a run, its model folder, or your sealed dataset.")
    ],
    identity: Annotated[Path, typer.Option(help="Private identity of a recipient.")],
    out: Annotated[Path, typer.Option(help="File or folder to write the plaintext to.")],
    *,
    to: Annotated[
        str | None,
        typer.Option(
            help="jsonl, csv, parquet, arrow or raw (datasets only) [as --out ends, else jsonl]."
        ),
    ] = None,
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
    opened = open_for(
        sealed,
        out,
        identity=Identity.load(identity),
        run=manifest.of_run(),
        to=to or _form_of(out),
        insecure_code=insecure_code,
    )
    data: dict[str, Any] = {"out": str(out), "files": opened.files}
    if opened.model is None:
        data |= {"dataset": opened.dataset}
        lines = [f"dataset  {opened.dataset}, your own"]
    else:
        say_doubts(opened.model)
        data |= _of_run(opened.model)
        lines = _lines(opened.model)
        if BASE_FILES in opened.files:
            # A script may have saved a file of this name that lists nothing.
            with suppress(DataInvalid, LimitExceeded):
                data["base_files"] = files = read_list((out / BASE_FILES).read_bytes())
                lines.append(_counts(files))
    emit(as_json, data, [f"opened   {out}", *lines, *opened.files])


def contains(
    sealed: Annotated[Path, typer.Argument(help="Your dataset, sealed with --commitments.")],
    record: Annotated[
        Path, typer.Argument(help="JSON file with one record, as `sealtrain open` writes it.")
    ],
    identity: Annotated[Path, typer.Option(help="Your private identity file.")],
    as_json: Json = False,
) -> None:
    """Say whether a record is in a dataset of yours, by its commitments and without its shards.

    The record has every column that is not null, with the values that were sealed. Another value
    of any column is another record.
    """
    fields = parse_json(read_bounded(record, _MAX_RECORD_BYTES), max_bytes=_MAX_RECORD_BYTES)
    if not isinstance(fields, dict):
        raise DataInvalid(
            "the file holds no record",
            got=type(fields).__name__,
            expected="an object with the record's columns",
        )
    dataset, rows = rows_of(sealed, fields, identity=Identity.load(identity))
    where = ", ".join(str(row + 1) for row in rows[:10]) + (", …" if len(rows) > 10 else "")
    emit(
        as_json,
        {"dataset": dataset, "contained": bool(rows), "rows": list(rows)},
        [
            f"dataset  {dataset}, your own",
            f"record   {len(rows)} times, as record {where}" if rows else "record   not in it",
        ],
    )


def _form_of(out: Path) -> str:
    """The format of records that a file's name says."""
    suffix = out.suffix.lower().removeprefix(".")
    return suffix if suffix in EXPORT_FORMATS else "jsonl"


def say_doubts(model: ModelFiles) -> None:
    """Say what was not verified of a model, and whether its run was simulated."""
    if model.run_id is None:
        say(_UNNAMED)
    elif model.checks is None:
        say(_UNVERIFIED)
    if model.simulated:
        say("SIMULATED — NOT ATTESTED")


def _lines(model: ModelFiles) -> list[str]:
    if model.run_id is None:
        return ["manifest none"]
    verified = "not verified" if model.checks is None else f"{model.checks} checks passed"
    return [
        f"run      {model.run_id}, finished {model.finished_at}",
        f"manifest {verified}",
        *([] if model.records is None else model.records.lines()),
    ]


def _counts(files: dict[str, dict[str, str]]) -> str:
    counts = Counter(entry["state"] for entry in files.values())
    return (
        f"base     {counts['kept']} files kept, {counts['changed']} changed, "
        f"{counts['left-out']} left out: {BASE_FILES}"
    )


def _of_run(model: ModelFiles) -> dict[str, Any]:
    return {
        "run_id": model.run_id,
        "finished_at": model.finished_at,
        "manifest": model.run_id is not None,
        "verified": model.checks is not None,
        "simulated": model.simulated,
        **({} if model.records is None else model.records.to_dict()),
    }
