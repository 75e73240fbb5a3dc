"""``approve``, ``revoke`` and ``approvals``: owners' decisions about a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sealtrain.base.clock import from_rfc3339, system_clock
from sealtrain.cli.brokers import BrokerFiles, exit_for, failures
from sealtrain.cli.durations import Duration
from sealtrain.cli.ledgermemory import StateFile
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.review import review
from sealtrain.consortium.members import Consortium
from sealtrain.errors import SealtrainError, UsageError
from sealtrain.owner import approving
from sealtrain.owner.imagerecords import image_records
from sealtrain.owner.owner_files import OwnerFiles
from sealtrain.owner.standing import StandingRequest
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.needs import needs_of
from sealtrain.signing.needs import reasons_in_words

if TYPE_CHECKING:
    from sealtrain.consortium.approvals import ApprovalTally
    from sealtrain.owner.owner_files import AtEach

Deployment = Annotated[Path, typer.Option("--deployment", help="app-compose.json of the recipe.")]
ConsortiumFile = Annotated[Path, typer.Option(help="The consortium file.")]
IdentityFile = Annotated[Path, typer.Option(help="Your private identity file.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerOptions:
    """The owner who decides, and the brokers and the consortium that count it."""

    identity: IdentityFile
    brokers: BrokerFiles
    consortium: ConsortiumFile = Path("consortium.json")

    def at(self, state: Path | None) -> OwnerFiles:
        """As the library takes it, with the memory of the broker's ledger."""
        return OwnerFiles(identity=self.identity, brokers=tuple(self.brokers), state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalOptions:
    """What an approval says besides the recipe."""

    dataset: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            help="Sealed dataset of yours to pin; repeat. Without it, all that you registered.",
        ),
    ] = None
    unpinned: Annotated[
        bool,
        typer.Option("--unpinned", help="Pin nothing: whatever you register for it counts."),
    ] = False
    approved_before: Annotated[
        Path | None, typer.Option(help="app-compose.json you approved last, to see the difference.")
    ] = None
    days: Annotated[
        float,
        typer.Option(
            "--valid-for",
            click_type=Duration("d", least=1 / 48, most=3650, whole=False),
            help="How long it holds, half an hour at least, such as 2h or 30d.",
        ),
    ] = 30
    until: Annotated[
        str | None,
        typer.Option(help="Day or time at which it ends, as 2027-01-31, in place of --valid-for."),
    ] = None
    runs: Annotated[
        int | None,
        typer.Option(
            min=1, max=1_000_000, help="Standing: at most so many runs; resumes are none."
        ),
    ] = None
    budget: Annotated[
        float | None,
        typer.Option(help="With --runs: most epsilon that they reserve of each dataset of yours."),
    ] = None
    series: Annotated[
        list[str] | None,
        typer.Option(help="With --runs: series of yours whose later members count too; repeat."),
    ] = None
    lift_revocation: Annotated[
        bool, typer.Option("--lift-revocation", help="Take back your own revocation of it.")
    ] = False
    verified: Annotated[
        list[Path] | None,
        typer.Option("--verified", help="Record of another owner who verified the image; repeat."),
    ] = None

    @property
    def standing(self) -> StandingRequest | None:
        """How often it may run.

        Raises:
            UsageError: A budget or a series without a number of runs, or no such budget.
        """
        if self.runs is None:
            if self.budget is not None or self.series:
                raise UsageError(
                    "a budget and series belong to an approval of several runs",
                    check="--runs",
                    hint="say how many: --runs",
                )
            return None
        if self.budget is not None and not 0 < self.budget <= 1000:
            raise UsageError(
                "a budget is a number above 0, at most 1000",
                check="--budget",
                got=f"{self.budget:g}",
            )
        return StandingRequest(runs=self.runs, epsilon=self.budget, series=tuple(self.series or ()))

    @property
    def ends(self) -> int | None:
        """Last second, where ``until`` names one.

        Raises:
            UsageError: It is neither a day nor a time.
        """
        return None if self.until is None else _end_of(self.until)


def approve(
    deployment: Deployment,
    owner: OwnerOptions,
    terms: ApprovalOptions,
    state: StateFile = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="Show every setting besides the page.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Read what a recipe will do, then approve exactly that.

    Your files are read and the brokers are asked before you are. The approval pins the datasets
    that you registered for this recipe; one that is not registered, or not yours, is refused.

    The recipe's lock names the brokers that guests will obey. One that you name with --broker and
    the lock does not is refused: your word there would stop nothing.
    The approval states what the recipe needs, such as to let a model out, and the threshold
    follows from that. A broker whose ledger is older than the last one you saw, or another one,
    gets no approval. A recipe you revoked needs --lift-revocation: the approval then names your
    revocation, and only your approval can do that. Taken back once, it stays taken back.
    """
    answers, signed = ask_and_approve(
        owner.at(state),
        LockedRecipe.load(deployment),
        Consortium.load(owner.consortium),
        terms,
        detail=detail,
        yes=yes,
        quiet=as_json,
    )
    _show(answers, as_json, signed)


def ask_and_approve(
    me: OwnerFiles,
    deployment: LockedRecipe,
    consortium: Consortium,
    terms: ApprovalOptions,
    *,
    detail: bool = False,
    yes: bool = False,
    quiet: bool = False,
) -> tuple[AtEach[ApprovalTally], dict[str, Any]]:
    """Show an owner what a recipe will do, ask, and approve it.

    Args:
        consortium: Of the owner.
        terms: What the approval says besides.
        detail: Show every setting.
        yes: Do not ask.
        quiet: Show nothing.

    Returns:
        How far the approval is at each broker, and what was signed in the form of ``--json``.

    Raises:
        UsageError: The owner typed another word; nothing was signed.
        SealtrainError: As ``approving.prepare``, ``imagerecords.image_records`` and
            ``approving.give``.
    """
    lock = deployment.lock
    ends = terms.ends
    before = LockedRecipe.load(terms.approved_before) if terms.approved_before else None
    intent = approving.prepare(
        me,
        deployment,
        consortium,
        datasets=terms.dataset or (),
        lift_revocation=terms.lift_revocation,
        unpinned=terms.unpinned,
        standing=terms.standing,
        before=before,
    )
    if before is not None and not intent.approved_before:
        say(f"no broker has your approval of {terms.approved_before}: the whole recipe is shown")
    now = system_clock()
    verified = image_records(me, lock, consortium, terms.verified or (), now=now)
    for url, why in intent.failed.items():
        say(f"broker {url} failed: {why.code}: {why.message}")
    if not (quiet and yes):  # the owner is asked only about what is shown
        review(
            lock,
            needs_of(lock.recipe),
            before.lock if before is not None and intent.approved_before else None,
            known=intent.brokers,
            detail=detail,
            intent=intent,
            days=terms.days if ends is None else None,
            until=ends,
            now=now,
            verified=verified,
        )
    confirm("APPROVE", yes)
    answers = approving.give(me, intent, days=terms.days, until=ends)
    pinned = {dataset.dataset_id: dataset.root for dataset in intent.pinned}
    said: dict[str, Any] = {
        "pinned": pinned,
        "lifted": list(intent.lifts),
        "image_verified_by": {
            verification.owner.name: verification.document.signed_at for verification in verified
        },
    }
    if intent.standing is not None:
        said["signed"] = intent.standing.to_dict()
    return answers, said


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
    locked = LockedRecipe.load(deployment)
    say(f"You are about to revoke {locked.recipe.name}, recipe hash {locked.recipe_hash}")
    confirm("REVOKE", yes)
    answers = approving.revoke(owner.at(state), locked, Consortium.load(owner.consortium))
    say("keys already released stay released; running guests stop when their lease ends")
    _show(answers, as_json)


def status(
    deployment: Deployment,
    brokers: BrokerFiles,
    consortium: ConsortiumFile = Path("consortium.json"),
    as_json: Json = False,
) -> None:
    """Show threshold and progress of a recipe's approval, counted from the signed decisions."""
    say("this counts approvals only; whether train would get keys says: sealtrain status")
    who = Consortium.load(consortium)
    locked = LockedRecipe.load(deployment)
    answers = approving.tallies(tuple(brokers), locked, who)
    used = approving.standing(tuple(brokers), locked, who).done
    told = {url: [use.to_dict() for use in found] for url, found in used.items() if found}
    lines = [
        f"standing   {use.owner}: {use.in_words}" + (f" (at {url})" if len(used) > 1 else "")
        for url, found in used.items()
        for use in found
    ]
    _show(answers, as_json, {"standing": told} if told else {}, lines)


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


def _end_of(text: str) -> int:
    """Last second of a day, or a time."""
    try:
        return from_rfc3339(f"{text}T23:59:59Z" if len(text) == len("2027-01-31") else text)
    except SealtrainError:
        raise UsageError(
            "an approval ends on a day or at a time",
            check="--until",
            got=text[:40],
            expected="2027-01-31 or 2027-01-31T12:00:00Z, in UTC",
        ) from None


def _show(
    answers: AtEach[ApprovalTally],
    as_json: bool,
    besides: dict[str, Any] | None = None,
    further: Sequence[str] = (),
) -> None:
    told, lines = show_tallies(answers)
    emit(as_json, told | (besides or {}), [*lines, *further])
    exit_for(answers)


def show_tallies(answers: AtEach[ApprovalTally]) -> tuple[dict[str, Any], list[str]]:
    """The tally that is furthest behind and each broker's, for ``--json`` and as lines."""
    failures(answers)
    furthest = min(answers.done.values(), key=lambda tally: (not tally.sealed, tally.progress))
    each = {url: tally.to_dict() for url, tally in answers.done.items()}
    lines = _tally_lines(furthest)
    if len(each) + len(answers.failed) > 1:
        lines += [f"at {url}: {tally.in_words()}" for url, tally in answers.done.items()]
    return furthest.to_dict() | {"brokers": each, "failed": list(answers.failed)}, lines


def _tally_lines(tally: ApprovalTally) -> list[str]:
    lines = [
        f"approvals  {tally.verdict()}",
        f"needs      approval because {tally.needs.to_text()}",
        f"threshold  {tally.threshold} of {tally.owners} owners, because "
        + reasons_in_words(tally.demanded_by),
        f"progress   {tally.in_words()}",
        f"approved   {', '.join(tally.approved_by) or '-'}",
    ]
    named = {
        "awaited": tally.awaited,
        "expired": tally.expired,
        "spent": tally.spent,
        "mistaken": tally.mistaken,
        "revoked": tally.revoked_by,
    }
    return lines + [f"{word:<10} {', '.join(who)}" for word, who in named.items() if who]
