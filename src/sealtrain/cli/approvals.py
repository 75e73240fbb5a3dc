"""``approve``, ``revoke`` and ``approvals``: owners' decisions about a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.cli import log
from sealtrain.cli.brokers import BrokerFiles, exit_for, failures
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.recipe import change_lines
from sealtrain.client import approving
from sealtrain.client.connection import brokers_of_lock, deployment_of, lock_of
from sealtrain.client.owner import Owner
from sealtrain.consortium.members import Consortium
from sealtrain.errors import UsageError
from sealtrain.recipe.diff import diff
from sealtrain.recipe.needs import needs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sealtrain.client.owner import AtEach
    from sealtrain.consortium.approvals import Tally
    from sealtrain.recipe.lock import Lock
    from sealtrain.signing.needs import Needs

__all__ = ["approve", "confirm", "review", "revoke", "status"]

Deployment = Annotated[Path, typer.Argument(help="app-compose.json of the recipe.")]
ConsortiumFile = Annotated[Path, typer.Option(help="The consortium file.")]
IdentityFile = Annotated[Path, typer.Option(help="Your private identity file.")]
StateFile = log.StateFile


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerOptions:
    """The owner who decides, and the brokers and the consortium that count it."""

    identity: IdentityFile
    brokers: BrokerFiles
    consortium: ConsortiumFile = Path("consortium.json")

    def at(self, state: Path | None) -> Owner:
        """As the library takes it, with the memory of the broker's ledger."""
        return Owner(identity=self.identity, brokers=tuple(self.brokers), state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalOptions:
    """What an approval says besides the recipe."""

    dataset: Annotated[
        list[Path] | None, typer.Option(help="Your sealed datasets, pinned by root; repeat.")
    ] = None
    approved_before: Annotated[
        Path | None, typer.Option(help="app-compose.json you approved last, to see the difference.")
    ] = None
    days: Annotated[int, typer.Option(min=1, max=3650, help="Valid for so many days.")] = 30
    lift_revocation: Annotated[
        bool, typer.Option("--lift-revocation", help="Take back your own revocation of it.")
    ] = False


def approve(
    deployment: Deployment,
    owner: OwnerOptions,
    terms: ApprovalOptions,
    state: StateFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Read what a recipe will do, then approve exactly that.

    The recipe's lock names the brokers that guests will obey. One that you name with --broker and
    the lock does not is refused: your word there would stop nothing.
    The approval states what the recipe needs, such as to let a model out, and the threshold
    follows from that. A broker whose ledger is older than the last one you saw, or another one,
    gets no approval. A recipe you revoked needs --lift-revocation: the approval then names your
    revocation, and only your approval can do that.
    """
    read = deployment_of(deployment)
    lock, _ = read
    before = lock_of(terms.approved_before) if terms.approved_before else None
    known = brokers_of_lock(owner.brokers, lock)
    review(lock, needs_of(lock.recipe), before, known=known, quiet=as_json)
    confirm("APPROVE", yes)
    answers = approving.approve(
        owner.at(state),
        read,
        Consortium.load(owner.consortium),
        datasets=terms.dataset or (),
        days=terms.days,
        lift_revocation=terms.lift_revocation,
    )
    _show(answers, as_json)


def revoke(
    deployment: Deployment,
    owner: OwnerOptions,
    state: StateFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Stop further key releases and lease renewals for a recipe.

    Keys that a running guest already holds cannot be recalled; its lease is not renewed.
    """
    confirm("REVOKE", yes)
    answers = approving.revoke(owner.at(state), deployment, Consortium.load(owner.consortium))
    say("keys already released stay released; running guests stop when their lease ends")
    _show(answers, as_json)


def status(
    deployment: Deployment,
    brokers: BrokerFiles,
    consortium: ConsortiumFile = Path("consortium.json"),
    as_json: Json = False,
) -> None:
    """Show threshold and progress of a recipe's approval, counted from the signed decisions."""
    _show(approving.tallies(tuple(brokers), deployment, Consortium.load(consortium)), as_json)


def review(
    lock: Lock,
    needs: Needs,
    before: Lock | None = None,
    *,
    known: Mapping[str, str],
    quiet: bool,
) -> None:
    """Show an owner what a signature would allow, unless ``quiet``.

    Args:
        lock: Of the recipe.
        needs: Of the recipe.
        before: What the owner approved last.
        known: URL of each broker of the lock that the owner has a broker file of, by its id there.
        quiet: Show nothing.
    """
    if quiet:
        return
    say("You are about to approve" + (" these changes:" if before else ":"))
    for line in change_lines(diff(before, lock)):
        say(f"  {line}")
    say(f"  recipe hash {lock.recipe_hash}")
    say(f"  it needs: {needs.to_text()}")
    for broker_id in lock.brokers:
        say(f"  broker {broker_id}  {known.get(broker_id, 'no broker file was given for it')}")


def confirm(word: str, yes: bool) -> None:
    """Have an owner type a word before anything is signed, unless ``yes``.

    Raises:
        UsageError: Another word was typed.
    """
    if yes:
        return
    typed = typer.prompt(f"Type {word} to go on", err=True)
    if typed != word:
        raise UsageError("nothing was signed", got="another word", expected=word)


def _show(answers: AtEach[Tally], as_json: bool) -> None:
    """Show the tally that is furthest behind, and each broker's where there are several."""
    failures(answers)
    furthest = min(answers.done.values(), key=lambda tally: (not tally.sealed, tally.progress))
    each = {url: tally.to_dict() for url, tally in answers.done.items()}
    lines = _tally_lines(furthest)
    if len(each) + len(answers.failed) > 1:
        lines += [
            f"at {url}: {tally.progress}/{tally.threshold}" for url, tally in answers.done.items()
        ]
    emit(as_json, furthest.to_dict() | {"brokers": each, "failed": list(answers.failed)}, lines)
    exit_for(answers)


def _tally_lines(tally: Tally) -> list[str]:
    state = "sealed" if tally.sealed else "unsealed"
    lines = [
        f"status     {state}",
        f"needs      {tally.needs.to_text()}",
        f"threshold  {tally.threshold} of {tally.owners}, for {', '.join(tally.demanded_by)}",
        f"progress   {tally.progress}/{tally.threshold}",
        f"approved   {', '.join(tally.approved_by) or '-'}",
    ]
    named = {
        "awaited": tally.awaited,
        "expired": tally.expired,
        "mistaken": tally.mistaken,
        "revoked": tally.revoked_by,
    }
    return lines + [f"{word:<10} {', '.join(who)}" for word, who in named.items() if who]
