"""Pages of the consortium: owners and thresholds; one recipe as an owner must read it.

What is counted is counted here, from the owners' signatures, under the consortium file of this
machine: a broker can keep a decision back, and invent none. What only a broker says is marked so.
A page paints from files alone; what brokers say comes into it afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from sealtrain.consortium.approvals import tally
from sealtrain.consortium.errors import ConsortiumMismatch
from sealtrain.errors import SealtrainError
from sealtrain.owner.imagerecords import verify_records
from sealtrain.owner.owners_datasets import list_registered
from sealtrain.owner.reviewing import facts, is_empty, text_of
from sealtrain.owner.standing import StandingUsed, join_uses
from sealtrain.recipe.diff import diff
from sealtrain.recipe.needs import needs_of
from sealtrain.release.errors import AnswerInvalid
from sealtrain.signing.needs import PURPOSES, REASONS
from sealtrain_console.web import deciding
from sealtrain_console.web.app import NavigationPage
from sealtrain_console.web.rendering import page, part
from sealtrain_console.web.sources import BrokerAnswer, Sources, sources_of

if TYPE_CHECKING:
    from sealtrain.client.broker_api import BrokerClient
    from sealtrain.client.pin import BrokerPin
    from sealtrain.consortium.approvals import ApprovalTally
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.consortium.members import Consortium
    from sealtrain.recipe.lock import Lock, LockedRecipe

_router = APIRouter()
_router.include_router(deciding.router)
CONSORTIUM = NavigationPage(path="/consortium", title="Consortium", router=_router)
Hash = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]

_SAID = {
    "approved": "approves",
    "spent": "approved; as many runs as allowed have begun",
    "expired": "approval has ended",
    "not-yet": "approval is dated in the future",
    "mistaken": "approved something else than the recipe needs",
    "revoked": "revoked",
    "missing": "has not decided",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Where one owner stands.

    Attributes:
        owner: Its name.
        state: A key of the words below.
        words: The same for people.
        until: Until when it counts.
        demanded: The owner must be among those who approve, because its data is read.
    """

    owner: str
    state: str
    words: str
    until: str | None
    demanded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeCounts:
    """What a broker holds about a recipe, counted here.

    Attributes:
        tally: From the signed decisions.
        votes: Of each owner.
        standing: Standing approvals; what was used of them is the broker's word.
        registered: Datasets, as their owners signed them.
    """

    tally: ApprovalTally
    votes: tuple[Vote, ...]
    standing: tuple[StandingUsed, ...]
    registered: tuple[DatasetManifest, ...]


def votes_of(tally: ApprovalTally, members: Consortium) -> tuple[Vote, ...]:
    """Where each owner stands, in the order of the consortium."""
    states = dict.fromkeys((owner.name for owner in members.owners), "missing")
    for state, owners in (
        ("not-yet", tally.not_yet),
        ("mistaken", tally.mistaken),
        ("expired", tally.expired),
        ("spent", tally.spent),
        ("approved", tally.approved_by),
        ("revoked", tally.revoked_by),
    ):
        states |= dict.fromkeys(owners, state)
    ends = {
        signed.owner.name: signed.decision.not_after
        for signed in (*tally.approvals, *tally.exhausted)
    }
    return tuple(
        Vote(
            owner=owner,
            state=state,
            words=_SAID[state],
            until=ends.get(owner),
            demanded=owner in tally.own_data,
        )
        for owner, state in states.items()
    )


def count_at(
    client: BrokerClient, pin: BrokerPin, locked: LockedRecipe, members: Consortium, now: int
) -> RecipeCounts:
    """Ask one broker about a recipe.

    Raises:
        SealtrainError: It does not answer, or what it answers does not verify.
    """
    lock, target = locked.lock, locked.target
    counted = tally(
        client.list_decisions(target, members), members, target, now, needs=needs_of(lock.recipe)
    )
    said = client.standing(target)
    try:
        size = int(client.ledger_checkpoint().split("\n", 2)[1])
    except (IndexError, ValueError) as error:
        raise AnswerInvalid("the broker's tree head names no size", check="tree head") from error
    return RecipeCounts(
        tally=counted,
        votes=votes_of(counted, members),
        standing=join_uses(counted, [(use.approval, use.runs, use.epsilon) for use in said]),
        registered=tuple(list_registered(client, members, target, min(size, 1 << 40))),
    )


@_router.get("/consortium")
def _consortium(request: Request) -> Response:
    sources = sources_of(request)
    members = sources.members()
    return page(
        request,
        "consortium.html",
        members=members,
        thresholds=[(PURPOSES[name], count) for name, count in members.thresholds],
        documents=sources.documents(),
        brokers=len(sources.brokers),
    )


@_router.get("/consortium/{compose_hash}/standing")
def _standing(request: Request, compose_hash: Hash) -> Response:
    """What brokers hold, as a part of the page of the consortium."""
    sources = sources_of(request)
    locked = sources.document(compose_hash)
    asked = _ask_brokers(sources, locked, sources.members())
    furthest = _furthest(asked)
    return part(
        "standing.html",
        asked=asked,
        furthest=furthest,
        differ=_differ(asked),
        reasons=[REASONS[action] for action in furthest.tally.demanded_by] if furthest else [],
    )


@_router.get("/consortium/{compose_hash}")
def _recipe(
    request: Request,
    compose_hash: Hash,
    before: Annotated[str | None, Query(pattern="^[0-9a-f]{64}$")] = None,
) -> Response:
    """One recipe, as an owner must read it before a decision."""
    sources = sources_of(request)
    locked = sources.document(compose_hash)
    lock, target = locked.lock, locked.target
    members = sources.members()
    _require_same(lock, members)
    others = [
        document.locked
        for document in sources.documents()
        if document.locked is not None and document.locked.target != target
    ]
    earlier = None if before is None else sources.document(before)
    return page(
        request,
        "recipe.html",
        lock=lock,
        target=target,
        facts=_group_facts(sources, lock, members, ()),
        scripts=[change for change in diff(None, lock) if change.text_lines],
        others=others,
        before=earlier,
        changes=[] if earlier is None else _changes(earlier.lock, lock),
        needs=needs_of(lock.recipe),
        reasons=[REASONS[action] for action in needs_of(lock.recipe).actions],
        members=members,
        agent=sources.agent is not None,
        brokers=len(sources.brokers),
    )


@_router.get("/consortium/{compose_hash}/facts")
def _facts(request: Request, compose_hash: Hash) -> Response:
    """The recipe with the records of its registered datasets, once brokers named them."""
    sources = sources_of(request)
    locked = sources.document(compose_hash)
    members = sources.members()
    asked = _ask_brokers(sources, locked, members)
    answers = (at.answer for at in asked if at.answer)
    known = {
        (dataset.owner, dataset.dataset_id): dataset for at in answers for dataset in at.registered
    }
    registered = sorted(
        known.values(), key=lambda dataset: (dataset.owner, dataset.name, dataset.sealed_at)
    )
    return part("facts.html", facts=_group_facts(sources, locked.lock, members, registered))


def _ask_brokers(
    sources: Sources, locked: LockedRecipe, members: Consortium
) -> list[BrokerAnswer[RecipeCounts]]:
    _require_same(locked.lock, members)
    now = sources.clock()
    return sources.ask(lambda client, pin: count_at(client, pin, locked, members, now))


def _require_same(lock: Lock, members: Consortium) -> None:
    if lock.consortium_id != members.consortium_id:
        raise ConsortiumMismatch(
            "the recipe is another consortium's than the file of this console",
            check="consortium",
            got=lock.consortium_id,
            expected=members.consortium_id,
            hint="start the console with the consortium file that belongs to the recipe",
        )


def _furthest(asked: Sequence[BrokerAnswer[RecipeCounts]]) -> RecipeCounts | None:
    """The broker's answer that is furthest behind: what a page must not overstate."""
    answers = [broker_answer.answer for broker_answer in asked if broker_answer.answer is not None]
    return min(
        answers,
        key=lambda counts: (
            not counts.tally.revoked,
            not counts.tally.sealed,
            counts.tally.progress,
        ),
        default=None,
    )


def _differ(asked: Sequence[BrokerAnswer[RecipeCounts]]) -> bool:
    """Whether brokers show different decisions."""
    return (
        len(
            {
                broker_answer.answer.votes
                for broker_answer in asked
                if broker_answer.answer is not None
            }
        )
        > 1
    )


def _group_facts(
    sources: Sources, lock: Lock, members: Consortium, registered: Sequence[DatasetManifest]
) -> list[tuple[str, list[str]]]:
    """The facts of a recipe, with the sentences under each label together."""
    try:
        verified = verify_records(sources.verified, lock, members, now=sources.clock())
        problem = None
    except SealtrainError as error:
        verified, problem = (), error
    rows: list[tuple[str, list[str]]] = []
    for label, text in facts(lock, registered, verified):
        if label or not rows:
            rows.append((label, [text]))
        else:
            rows[-1][1].append(text)
    if problem is not None:
        rows.append(("WARNING", [f"records of the image: [{problem.code}] {problem.message}"]))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShownDifference:
    """One difference, as a row."""

    area: str
    severity: str
    path: str
    before: str
    after: str
    lines: tuple[str, ...]


def _changes(before: Lock, after: Lock) -> list[tuple[str, list[_ShownDifference]]]:
    """What differs between two locks, by area in reading order."""
    rows = [
        _ShownDifference(
            area=change.area,
            severity=change.severity,
            path=change.path,
            before="" if is_empty(change.before) else text_of(change.before),
            after="" if is_empty(change.after) else text_of(change.after),
            lines=tuple(change.text_lines),
        )
        for change in diff(before, after)
        if not (is_empty(change.before) and is_empty(change.after))
    ]
    return [(area, list(found)) for area, found in groupby(rows, key=lambda change: change.area)]
