"""``approve``, ``revoke``, ``approvals``, ``log``: what owners decide, and the ledger of it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.cli.output import Json, emit, say, table

if TYPE_CHECKING:
    from sealtrain.consortium.approvals import Tally
    from sealtrain.recipe.lock import Lock

__all__ = ["register"]

approvals_app = typer.Typer(help="Where the approval of a recipe stands.")

Deployment = Annotated[Path, typer.Argument(help="app-compose.json of the recipe.")]
ConsortiumFile = Annotated[Path, typer.Option(help="The consortium file.")]
IdentityFile = Annotated[Path, typer.Option(help="Your private identity file.")]
BrokerUrl = Annotated[str, typer.Option(help="URL of the broker.")]


def register(app: typer.Typer) -> None:
    """Add this noun's commands to the root."""
    app.command()(approve)
    app.command()(revoke)
    app.command("log")(show_log)
    app.add_typer(approvals_app, name="approvals")


def approve(
    deployment: Deployment,
    identity: IdentityFile,
    broker: BrokerUrl,
    consortium: ConsortiumFile = Path("consortium.json"),
    dataset: Annotated[
        list[Path] | None, typer.Option(help="Your sealed datasets, pinned by root; repeat.")
    ] = None,
    approved_before: Annotated[
        Path | None, typer.Option(help="app-compose.json you approved last, to see the difference.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Valid for so many days.")] = 30,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Read what a recipe will do, then approve exactly that."""
    from sealtrain.cli.recipe import change_lines
    from sealtrain.recipe.diff import diff

    lock = _lock_of(deployment)
    before = _lock_of(approved_before) if approved_before else None
    if not as_json:
        say("You are about to approve" + (" these changes:" if before else ":"))
        for line in change_lines(diff(before, lock)):
            say(f"  {line}")
        say(f"  recipe hash {lock.recipe_hash}")
    _confirm("APPROVE", yes)
    tally = _decide(
        "approve", deployment, lock, identity, broker, consortium, dataset or [], days * 86400
    )
    emit(as_json, tally.to_dict(), _tally_lines(tally))


def revoke(
    deployment: Deployment,
    identity: IdentityFile,
    broker: BrokerUrl,
    consortium: ConsortiumFile = Path("consortium.json"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Stop further key releases and lease renewals for a recipe.

    Keys that a running guest already holds cannot be recalled; its lease is not renewed.
    """
    _confirm("REVOKE", yes)
    lock = _lock_of(deployment)
    tally = _decide("revoke", deployment, lock, identity, broker, consortium, [], None)
    say("keys already released stay released; running guests stop when their lease ends")
    emit(as_json, tally.to_dict(), _tally_lines(tally))


@approvals_app.command("status")
def status(deployment: Deployment, broker: BrokerUrl, as_json: Json = False) -> None:
    """Show threshold and progress of a recipe's approval."""
    from sealtrain.release.client import BrokerClient

    tally = BrokerClient(broker).approvals_status(_target_of(deployment))
    emit(as_json, tally.to_dict(), _tally_lines(tally))


def show_log(
    broker: BrokerUrl,
    start: Annotated[int, typer.Option(min=0, help="First entry.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most entries.")] = 100,
    as_json: Json = False,
) -> None:
    """Show the ledger: every approval, release, refusal and manifest, in order."""
    from sealtrain.release.client import BrokerClient

    client = BrokerClient(broker)
    entries = client.ledger_entries(start, limit)
    checkpoint = client.ledger_checkpoint()
    rows = [
        (str(start + offset), entry["at"], entry["kind"], _summary(entry["body"]))
        for offset, entry in enumerate(entries)
    ]
    emit(
        as_json,
        {"entries": entries, "checkpoint": checkpoint},
        [*table(rows, header=("index", "time", "kind", "what")), "", checkpoint.strip()],
    )


def _summary(body: dict[str, object]) -> str:
    """The few fields of an entry a person looks for."""
    named = ("owner", "decision", "code", "run_id", "dataset_id", "recipe_hash")
    shown = [f"{key}={str(body[key])[:16]}" for key in named if body.get(key)]
    return " ".join(shown) or json.dumps(body)[:80]


def _confirm(word: str, yes: bool) -> None:
    from sealtrain.errors import UsageError

    if yes:
        return
    typed = typer.prompt(f"Type {word} to go on", err=True)
    if typed != word:
        raise UsageError("nothing was signed", got="another word", expected=word)


def _lock_of(deployment: Path) -> Lock:
    from sealtrain.base.files import read_bounded
    from sealtrain.recipe.compose import extract_lock
    from sealtrain.recipe.lock import parse_lock

    return parse_lock(extract_lock(read_bounded(deployment, 4 << 20)))


def _target_of(deployment: Path):  # type: ignore[no-untyped-def]
    raise NotImplementedError


def _decide(
    decision: str,
    deployment: Path,
    lock: Lock,
    identity: Path,
    broker: str,
    consortium_path: Path,
    datasets: list[Path],
    lifetime: int | None,
) -> Tally:
    raise NotImplementedError


def _tally_lines(tally: Tally) -> list[str]:
    state = "sealed" if tally.sealed else "unsealed"
    lines = [
        f"status     {state}",
        f"threshold  {tally.threshold}",
        f"progress   {tally.progress}/{tally.threshold}",
        f"approved   {', '.join(tally.approved_by) or '-'}",
    ]
    if tally.expired:
        lines.append(f"expired    {', '.join(tally.expired)}")
    if tally.revoked_by:
        lines.append(f"revoked    {', '.join(tally.revoked_by)}")
    return lines
