"""``approve``, ``revoke`` and ``approvals``: owners' decisions about a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.base.clock import system_clock
from sealtrain.cli import log
from sealtrain.cli.brokers import AtEach, BrokerFiles, at_each, own_state
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.recipe import change_lines
from sealtrain.client.api import BrokerClient
from sealtrain.client.connection import brokers_of_lock, deployment_of, lock_of, watched_ledger
from sealtrain.client.pin import load_pin
from sealtrain.consortium.datasets import load_dataset_manifest
from sealtrain.consortium.decisions import DatasetPin, Decision, Target, sign_decision
from sealtrain.consortium.members import Consortium
from sealtrain.errors import UsageError
from sealtrain.keys.identity import Identity
from sealtrain.recipe.diff import diff
from sealtrain.recipe.needs import needs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sealtrain.consortium.approvals import Tally
    from sealtrain.recipe.lock import Lock
    from sealtrain.signing.identity import PublicIdentity
    from sealtrain.signing.needs import Needs

__all__ = ["approve", "confirm", "review", "revoke", "status"]

Deployment = Annotated[Path, typer.Argument(help="app-compose.json of the recipe.")]
ConsortiumFile = Annotated[Path, typer.Option(help="The consortium file.")]
IdentityFile = Annotated[Path, typer.Option(help="Your private identity file.")]
StateFile = log.StateFile


def approve(
    deployment: Deployment,
    identity: IdentityFile,
    brokers: BrokerFiles,
    consortium: ConsortiumFile = Path("consortium.json"),
    dataset: Annotated[
        list[Path] | None, typer.Option(help="Your sealed datasets, pinned by root; repeat.")
    ] = None,
    approved_before: Annotated[
        Path | None, typer.Option(help="app-compose.json you approved last, to see the difference.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Valid for so many days.")] = 30,
    lift_revocation: Annotated[
        bool, typer.Option("--lift-revocation", help="Take back your own revocation of it.")
    ] = False,
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
    lock, target = deployment_of(deployment)
    needs = needs_of(lock.recipe)
    before = lock_of(approved_before) if approved_before else None
    known = brokers_of_lock(brokers, lock)
    review(lock, needs, before, known=known, quiet=as_json)
    confirm("APPROVE", yes)
    members = Consortium.load(consortium)
    owner = Identity.load(identity).public
    lifts = _own_revocations(brokers, members, owner, target)
    _check_lift(lift_revocation, revoked=bool(lifts))
    manifests = [load_dataset_manifest(folder, owner) for folder in dataset or ()]
    now = system_clock()
    decision = Decision.approve(
        consortium_id=members.consortium_id,
        target=target,
        needs=needs,
        datasets=[DatasetPin(dataset_id=found.dataset_id, root=found.root) for found in manifests],
        lifts=lifts,
        signed_at=now,
        not_after=now + days * 86400,
    )
    answers = _submit(decision, needs, identity, brokers, members, state)
    _show(answers, as_json)


def revoke(
    deployment: Deployment,
    identity: IdentityFile,
    brokers: BrokerFiles,
    consortium: ConsortiumFile = Path("consortium.json"),
    state: StateFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Stop further key releases and lease renewals for a recipe.

    Keys that a running guest already holds cannot be recalled; its lease is not renewed.
    """
    confirm("REVOKE", yes)
    members = Consortium.load(consortium)
    lock, target = deployment_of(deployment)
    decision = Decision.revoke(
        consortium_id=members.consortium_id, target=target, signed_at=system_clock()
    )
    answers = _submit(decision, needs_of(lock.recipe), identity, brokers, members, state)
    say("keys already released stay released; running guests stop when their lease ends")
    _show(answers, as_json)


def status(
    deployment: Deployment,
    brokers: BrokerFiles,
    consortium: ConsortiumFile = Path("consortium.json"),
    as_json: Json = False,
) -> None:
    """Show threshold and progress of a recipe's approval, counted from the signed decisions."""
    members = Consortium.load(consortium)
    lock, target = deployment_of(deployment)

    def at(broker: Path) -> Tally:
        with BrokerClient(load_pin(broker).url) as client:
            needs = needs_of(lock.recipe)
            return client.approvals_status(target, members, system_clock(), needs=needs)

    _show(at_each(brokers, at), as_json)


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


def _own_revocations(
    brokers: list[Path], consortium: Consortium, owner: PublicIdentity, target: Target
) -> set[str]:
    """Digests of an owner's revocations of a recipe, from every broker that answers."""

    def at(broker: Path) -> set[str]:
        with BrokerClient(load_pin(broker).url) as client:
            return {
                signed.digest
                for signed in client.decided(target, consortium)
                if signed.owner == owner and signed.decision.decision == "revoke"
            }

    return set().union(*at_each(brokers, at).done.values())


def _check_lift(lift: bool, *, revoked: bool) -> None:
    """Require that an owner who lifts a revocation says so, and has one to lift.

    Raises:
        UsageError: It was revoked and is not lifted, or the other way round.
    """
    if lift != revoked:
        raise UsageError(
            "you revoked this recipe" if revoked else "you did not revoke this recipe",
            check="--lift-revocation",
            hint="take the revocation back: --lift-revocation"
            if revoked
            else "there is nothing to lift: leave --lift-revocation out",
        )


def _submit(
    decision: Decision,
    needs: Needs,
    identity: Path,
    brokers: list[Path],
    consortium: Consortium,
    state: Path | None,
) -> AtEach[Tally]:
    """Sign a decision, hand it to each broker and count again from the signed decisions."""
    own_state(state, brokers)
    signer = Identity.load(identity).signer
    envelope = sign_decision(decision, signer)

    def at(broker: Path) -> Tally:
        index = None
        if decision.decision == "revoke":
            # Nothing keeps an owner from stopping, whatever became of the ledger.
            pin = load_pin(broker)
            with BrokerClient(pin.url, signer=signer, broker=pin.broker_id) as client:
                index = client.submit_decision(envelope)
        with watched_ledger(broker, consortium, identity, state) as watch:
            if index is None:
                index = watch.client.submit_decision(envelope)
            watch.recorded(index, envelope.to_bytes())
            return watch.client.approvals_status(
                decision.target, consortium, system_clock(), needs=needs
            )

    return at_each(brokers, at)


def _show(answers: AtEach[Tally], as_json: bool) -> None:
    """Show the tally that is furthest behind, and each broker's where there are several."""
    furthest = min(answers.done.values(), key=lambda tally: (not tally.sealed, tally.progress))
    each = {url: tally.to_dict() for url, tally in answers.done.items()}
    lines = _tally_lines(furthest)
    if len(each) + len(answers.failed) > 1:
        lines += [
            f"at {url}: {tally.progress}/{tally.threshold}" for url, tally in answers.done.items()
        ]
    emit(as_json, furthest.to_dict() | {"brokers": each, "failed": list(answers.failed)}, lines)
    answers.finish()


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
