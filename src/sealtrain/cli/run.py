"""``run``: what became of submitted runs; stop them, fetch what they made."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.base.visible_text import escape_hidden
from sealtrain.cli.durations import Duration
from sealtrain.cli.output import (
    Json,
    emit,
    json_text,
    progress_bytes,
    quote_path,
    report_error,
    require_name,
    say,
    table,
)
from sealtrain.errors import SealtrainError, UsageError
from sealtrain.keys.identity import Identity
from sealtrain.owner.runs import Waiting, desk
from sealtrain.sealing.trainedmodel import RUN_MANIFEST

if TYPE_CHECKING:
    from sealtrain.owner.runs import RunDesk
    from sealtrain.release.run_control import ShownSubmission
    from sealtrain.storage.outputs import OutputIndex

BrokerFile = Annotated[Path, typer.Option("--broker", help="Broker file of the broker to ask.")]
IdentityFile = Annotated[Path, typer.Option(help="Your private identity file.")]


def _name(text: str) -> str:
    require_name(text, "NAME")
    return text


Name = Annotated[
    str, typer.Argument(parser=_name, metavar="NAME", help="Name of the submission, or its id.")
]

_SCHEMA: Final = 1
_CATEGORIES: Final = {"again": "retry", "later": "wait", "never": "fix"}
_FOLLOW_SECONDS: Final = 2.0
_FOLLOWED: Final = 500


def list_runs(
    broker: BrokerFile,
    every: Annotated[bool, typer.Option("--all", help="Those that have ended, too.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many.")] = 20,
    as_json: Json = False,
) -> None:
    """List submitted runs, newest first: the runner's word, and the broker's own record."""
    with desk(broker) as asked:
        found = asked.client.submissions(open_only=not every, limit=limit)
    rows = [
        (
            submission.name,
            submission.state,
            submission.submitted_at,
            _word(submission),
            _record(submission),
        )
        for submission in found
    ]
    header = ("name", "state", "submitted", "runner says", "broker recorded")
    lines = table(rows, header=header) if rows else ["no runs: sealtrain run submit"]
    answer(as_json, {"submissions": [submission.to_dict() for submission in found]}, lines)


def wait(
    name: Name,
    broker: BrokerFile,
    timeout: Annotated[
        float | None,
        typer.Option(click_type=Duration("s", whole=False), help="Longest wait [no end]."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Wait until a run has ended: 0 with its manifest in the ledger, 1 without, 124 too late."""
    with desk(broker) as asked:
        waiting = Waiting(
            desk=asked,
            monotonic=time.monotonic,
            sleep=time.sleep,
            on_change=lambda shown: say(f"{shown.name}: {shown.state}  {_word(shown)}"),
        )
        try:
            shown = waiting.until_ended(name, timeout)
        except SealtrainError as error:
            _show_failure(as_json, error)
    record = shown.broker
    manifest = None if record is None or record.manifest is None else record.manifest.digest
    answer(
        as_json,
        shown.to_dict(),
        [
            f"completed  {shown.name}",
            f"run        {None if record is None else record.run_id}",
            f"manifest   {manifest}",
            f"next       sealtrain run download {shown.name}",
        ],
    )


def logs(
    name: Name,
    broker: BrokerFile,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run ends.")] = False,
    as_json: Json = False,
) -> None:
    """Show what the ledger and the output store hold of a run, and who says each line.

    With --json one object a line. Metrics are those that the recipe releases, in the manifest.
    """
    with desk(broker) as asked:
        shown = asked.find(name)
        seen = 0
        stored: str | None = None
        while True:
            shown = asked.find(shown.submission_id)
            seen = _show_entries(asked, shown, seen, as_json)
            index = _index_of(asked, shown)
            told = None if index is None else f"{index.state} {index.code or ''}".strip()
            if told is not None and index is not None and told != stored:
                stored = told
                fields: dict[str, Any] = {
                    "run_id": index.run_id,
                    "state": index.state,
                    "code": index.code,
                }
                fields |= {"attempts": index.attempts, "files": len(index.files)}
                _log_line(as_json, "store", None, "index", fields)
            if not follow or shown.state in (
                "completed",
                "failed",
                "stopped",
                "skipped",
                "expired",
            ):
                return
            time.sleep(_FOLLOW_SECONDS)


def stop(name: Name, broker: BrokerFile, identity: IdentityFile, as_json: Json = False) -> None:
    """Stop a run: its guest seals a checkpoint, and no runner starts it again.

    A stop withdraws no approval: sealtrain revoke does.
    """
    with desk(broker, Identity.load(identity).signer) as asked:
        shown = asked.find(name)
        posted = asked.stop(shown.submission_id)
    answer(
        as_json,
        {"name": shown.name, "submission_id": posted.submission_id, "index": posted.index},
        [f"stop recorded  {shown.name}, entry {posted.index}"],
    )


def download(
    name: Name,
    broker: BrokerFile,
    out: Annotated[Path | None, typer.Option(help="Folder to make [NAME].")] = None,
    store: Annotated[
        str | None, typer.Option(help="URL of the output store [that of the ticket].")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fetch model and manifest of a completed run, each verified by its digest.

    The manifest is the one that the broker recorded. The model stays sealed.
    """
    from sealtrain.owner.fetching import fetch_outputs

    target = out or Path(name)
    with desk(broker) as asked:
        shown = asked.find(name)
        completed = asked.require_completed(shown)
        url = store or asked.store_of(shown)
    files = fetch_outputs(
        url,
        shown.compose_hash,
        completed,
        target,
        progress=partial(progress_bytes, target.name, shown=not as_json),
    )
    manifest = target / RUN_MANIFEST
    answer(
        as_json,
        {"out": str(target), "manifest": str(manifest), "files": files},
        [
            f"manifest   {manifest}",
            f"verify     sealtrain verify {quote_path(manifest)} --trust trust.yaml",
            f"open       sealtrain open {quote_path(target)} --trust trust.yaml --identity FILE"
            " --out model",
        ],
    )


def _index_of(asked: RunDesk, shown: ShownSubmission) -> OutputIndex | None:
    from sealtrain.storage.connect import open_folder
    from sealtrain.storage.outputs import OutputStore
    from sealtrain.storage.retry import Patience

    try:
        there = open_folder(asked.store_of(shown), patience=Patience(attempts=1, longest=2.0))
    except UsageError:
        return None
    try:
        return OutputStore(there, shown.compose_hash).read()
    except SealtrainError as error:
        say(f"store [{error.code}]: {error.message}")
        return None
    finally:
        there.close()


def _show_entries(asked: RunDesk, shown: ShownSubmission, start: int, as_json: bool) -> int:
    """Show entries of a submission and its run from an index on; where to continue."""
    found: dict[int, dict[str, Any]] = {}
    asking: list[dict[str, Any]] = [{"submission_id": shown.submission_id}]
    run_id = None if shown.runner is None else shown.runner.run_id
    if run_id is not None:
        asking.append({"run_id": run_id})
    for named in asking:
        place: int | None = start
        for _ in range(_FOLLOWED):
            page = asked.client.ledger_search(**named, start=place or 0)
            found |= {entry.index: entry.entry for entry in page.entries}
            if (place := page.end) is None:
                break
    for index, entry in sorted(found.items()):
        body = entry["body"]
        kind = str(entry["kind"])
        who: Literal["runner", "broker", "submitter"] = "broker"
        if kind == "run-event":
            who = "runner"
        elif kind in ("submission", "run-stop"):
            who = "submitter"
        fields = {name: body[name] for name in _SHOWN if body.get(name) is not None}
        _log_line(as_json, who, str(entry["at"]), kind, {"index": index, **fields})
    return max(found, default=start - 1) + 1


_SHOWN: Final = (
    "by", "event", "code", "action", "check", "run_id", "lease_id", "not_after", "checkpoint",
    "manifest_digest", "simulated",
)  # fmt: skip


def _log_line(
    as_json: bool, who: str, at: str | None, kind: str, fields: Mapping[str, Any]
) -> None:
    at = at or to_rfc3339(system_clock())
    if as_json:
        typer.echo(json.dumps({"at": at, "from": who, "kind": kind, **fields}))
    else:
        said = " ".join(f"{name}={value}" for name, value in fields.items())
        typer.echo(escape_hidden(f"{at}  {who:<9}  {kind:<10}  {said}"))


def _word(shown: ShownSubmission) -> str:
    word = shown.runner
    if word is None:
        return "-"
    code = "" if word.code is None else f" {word.code}"
    return f"{word.name}: {word.event}{code}"


def _record(shown: ShownSubmission) -> str:
    record = shown.broker
    if record is None:
        return "-"
    if record.manifest is not None:
        return f"manifest {record.manifest.digest[:12]}"
    if record.failure is not None:
        return f"failure {record.failure}"
    checkpoint = "" if record.checkpoint is None else f", checkpoint {record.checkpoint}"
    lease = "no lease" if record.lease_until is None else f"lease until {record.lease_until}"
    return f"{lease}{checkpoint}"


def answer(as_json: bool, data: dict[str, Any], lines: Iterable[str]) -> None:
    """Print a command's result: ``data`` in the envelope that scripts read, or ``lines``."""
    envelope = {"schema_version": _SCHEMA, "status": "ok", "exit_code": 0, "data": data}
    emit(as_json, envelope if as_json else data, lines)


def _show_failure(as_json: bool, error: SealtrainError) -> None:
    """Show an error in the envelope that scripts read, and end with its exit code."""
    if as_json:
        told = {
            "error_code": error.code,
            "message": error.message,
            "hint": error.hint,
            "recovery_category": _CATEGORIES[error.retry],
        }
        envelope = {
            "schema_version": _SCHEMA,
            "status": "error",
            "exit_code": error.exit_code,
            "error": {**error.to_dict(), **told},
        }
        typer.echo(json_text(envelope))
        say(f"{error.label} [{error.code}]: {error.message}")
        raise typer.Exit(error.exit_code)
    raise typer.Exit(report_error(error))
