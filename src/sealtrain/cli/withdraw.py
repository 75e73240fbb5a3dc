"""``withdraw`` takes data back for good; ``log uses`` lists the runs that used it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sealtrain.cli.approvals import confirm
from sealtrain.cli.brokers import BrokerFiles, exit_for, failures
from sealtrain.cli.ledgermemory import ConsortiumFile, plain, read_given
from sealtrain.cli.log import auditing
from sealtrain.cli.output import Json, emit, say
from sealtrain.consortium.datasets import dataset_id_in
from sealtrain.consortium.members import Consortium
from sealtrain.errors import Refused, Unreachable, UsageError
from sealtrain.ledger.uses import DatasetUse
from sealtrain.owner.owner_files import OwnerFiles
from sealtrain.owner.withdrawing import uses_at
from sealtrain.owner.withdrawing import withdraw as withdraw_for

if TYPE_CHECKING:
    from sealtrain.owner.withdrawing import Withdrawn

Datasets = Annotated[
    list[str], typer.Argument(help="Sealed folders, or ids of datasets.", metavar="DATASET...")
]


def withdraw(
    dataset: Datasets,
    identity: Annotated[Path, typer.Option(help="Your private identity file.")],
    broker: BrokerFiles,
    consortium: ConsortiumFile = Path("consortium.json"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Take datasets of yours back for good, and list what has them in it.

    No key of them is released again, no lease of a run that has them renewed, and they are never
    registered again. What left before stays where it is: the list names runs, manifests and model
    files. Every broker is told; exits 4 when one did not answer, 3 when one refused.
    """
    members, owner = (
        Consortium.load(consortium),
        OwnerFiles(identity=identity, brokers=tuple(broker)),
    )
    members.owner(owner.keys.name)
    named = [_dataset_id(word) for word in dataset]
    if not as_json:
        say(f"You are about to withdraw for good: {', '.join(named)}")
    confirm("WITHDRAW", yes)
    answers = failures(withdraw_for(owner, named, members, progress=auditing(shown=not as_json)))
    lines: list[str] = []
    for url, done in answers.done.items():
        lines.append(f"{url}: withdrawn, entry {done.index}")
        lines.extend(_lines(done.uses))
        if done.unread is not None:
            say(f"{url} does not tell what used it [{done.unread.code}]: {done.unread.message}")
    say("keys and models that left before stay where they are; delete your copies of the data")
    lost = {url: {"index": None, "error": why.to_dict()} for url, why in answers.failed.items()}
    told = {url: _as_json(done) for url, done in answers.done.items()}
    shown = [{"broker": url, **answer} for url, answer in (lost | told).items()]
    digest = next(iter(answers.done.values())).digest
    emit(as_json, {"digest": digest, "brokers": shown}, lines)
    exit_for(answers)
    if any("error" in answer for answer in shown):
        raise typer.Exit(Unreachable.exit_code)


def uses(
    dataset: Datasets,
    broker: Annotated[Path, typer.Option(help="Broker file (made by: sealtrain broker pin).")],
    consortium: ConsortiumFile = Path("consortium.json"),
    state: Annotated[
        Path | None,
        typer.Option(
            "--memory", help="Your memory of the ledger (see log witness): its key and tree head."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what became of datasets: runs that got them, their manifests and model files.

    Reads the whole ledger and verifies it as ``log audit`` does; exits 3 where it does not hold.
    """
    key, notes = read_given(state, None, [])
    named = [_dataset_id(word) for word in dataset]
    members = Consortium.load(consortium)
    report, found = uses_at(
        broker, named, members, key=key, notes=notes, progress=auditing(shown=not as_json)
    )
    emit(
        as_json,
        {
            "ledger": {"size": report.size, "root": report.root, "holds": report.holds},
            "datasets": [use.to_dict() for use in found],
        },
        _lines(found),
    )
    if not report.holds:
        say(f"refused: the ledger does not hold ({len(report.findings)} findings): see log audit")
        raise typer.Exit(Refused.exit_code)


def _as_json(done: Withdrawn) -> dict[str, Any]:
    if done.unread is not None or done.audit is None:
        return {
            "index": done.index,
            "error": None if done.unread is None else done.unread.to_dict(),
        }
    return {
        "index": done.index,
        "ledger_holds": done.audit.holds,
        "datasets": [use.to_dict() for use in done.uses],
    }


def _dataset_id(read_given: str) -> str:
    """The id of a dataset, given as such or as a sealed folder."""
    if re.fullmatch("[0-9a-f]{32}", read_given):
        return read_given
    folder = Path(read_given)
    if not folder.is_dir():
        raise UsageError(
            "neither a sealed folder nor the id of a dataset",
            check="dataset",
            got=read_given,
            expected="a folder with dataset.json, or 32 hex digits",
        )
    return dataset_id_in(folder)


def _lines(found: tuple[DatasetUse, ...]) -> list[str]:
    lines: list[str] = []
    for use in found:
        state = f"withdrawn {use.withdrawn_at}" if use.withdrawn_at else "not withdrawn"
        name = f" {use.owner}/{use.name}" if use.name else f" of {use.owner}" if use.owner else ""
        lines.append(f"dataset {use.dataset_id}{name}: {state}, {len(use.runs)} runs")
        for run in use.runs:
            lines.append(
                f"  run {run.run_id} of recipe {run.recipe_hash[:16]}, keys {run.released_at}, "
                f"lease until {run.leased_until}"
            )
            for manifest in run.manifests:
                lines.append(f"    manifest {manifest['digest']} (entry {manifest['index']})")
                outputs = manifest["outputs"]
                if outputs is None:
                    lines.append("      files: more than the ledger lists; see the manifest")
                lines += [f"      {plain(o['name'])} {o['sha256']}" for o in outputs or ()]
            if not run.manifests:
                lines.append("    no manifest was recorded: what it made is not known here")
    return lines
