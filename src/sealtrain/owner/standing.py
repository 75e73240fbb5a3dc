"""Standing approvals as owners give them and as everybody reads how much of one is used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sealtrain.consortium.series import block_of, chain_of, member_digest
from sealtrain.consortium.standing_terms import StandingTerms
from sealtrain.errors import UsageError
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.recipe.privacy import spendings
from sealtrain.recipe.records import dataset_of

if TYPE_CHECKING:
    from sealtrain.consortium.approvals import ApprovalTally
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.recipe.recipe import PhaseRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingRequest:
    """How often an owner lets a recipe run.

    Attributes:
        runs: At most so many runs.
        epsilon: All of them together reserve at most this of each of the owner's datasets.
        series: Names of the owner's series whose later members count too.
    """

    runs: int
    epsilon: float | None = None
    series: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingUsed:
    """One standing approval that counts, and what runs took of it.

    Attributes:
        owner: The owner that gave it.
        runs_used: How many runs count under it.
        until: Last second at which it counts, RFC 3339.
        epsilon_used: The largest sum of reservations of one of the owner's datasets.
        brokers: How many brokers it is for: each counts for itself.
    """

    owner: str
    runs_used: int
    until: str
    epsilon_used: float
    terms: StandingTerms
    brokers: int = 1

    @property
    def in_words(self) -> str:
        """One line for people."""
        words = f"{self.runs_used} of {self.terms.runs} runs used, until {self.until}"
        if self.terms.epsilon is not None:
            words += f", ε {self.epsilon_used:g} of {self.terms.epsilon:g}"
        if self.terms.series:
            words += f", series {', '.join(series.name for series in self.terms.series)}"
        return words + describe_apart(self.brokers)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "owner": self.owner,
            "runs_used": self.runs_used,
            "runs": self.terms.runs,
            "until": self.until,
            "epsilon_used": self.epsilon_used,
            "epsilon": self.terms.epsilon,
            "series": [series.to_dict() for series in self.terms.series],
            "brokers": self.brokers,
        }


def describe_apart(brokers: int) -> str:
    """What several brokers mean for a number of runs; nothing where one broker counts.

    Args:
        brokers: How many brokers a standing approval is for.
    """
    if brokers == 1:
        return ""
    return (
        f"; each of {brokers} brokers counts for itself: where any k of them open your data, "
        f"{brokers}/k times as many runs may begin"
    )


def join_uses(
    tally: ApprovalTally, used: Iterable[tuple[str, int, float]]
) -> tuple[StandingUsed, ...]:
    """The standing approvals of a tally, those that are spent too, each with its use.

    Args:
        tally: Counted from the owners' signatures.
        used: Of approvals, by digest, how many runs and how much epsilon: the broker's word.
    """
    counted = {digest: (runs, epsilon) for digest, runs, epsilon in used}
    found = []
    for approval in (*tally.approvals, *tally.exhausted):
        decision = approval.decision
        if decision.standing is None or decision.not_after is None:
            continue
        runs, epsilon = counted.get(approval.digest, (0, 0.0))
        found.append(
            StandingUsed(
                owner=approval.owner.name,
                runs_used=runs,
                until=decision.not_after,
                epsilon_used=epsilon,
                terms=decision.standing,
                brokers=len(decision.brokers),
            )
        )
    return tuple(found)


def chains_named(
    names: Iterable[str], registered: Iterable[DatasetManifest], me: str, recipe: PhaseRecipe
) -> dict[str, tuple[DatasetManifest, ...]]:
    """Members of an owner's series that are registered for a recipe, by name.

    Args:
        names: Of the series.
        registered: Verified manifests for the recipe's deployment.
        me: The owner.
        recipe: Must name them as series.

    Raises:
        UsageError: The recipe reads a dataset of this name and no series.
        DatasetUnknown: The recipe does not name it, or no member is registered.
        SeriesMismatch: The members are no chain.
    """
    found = {}
    for name in sorted(set(names)):
        if dataset_of(recipe, me, name).series is None:
            raise UsageError(
                f"the recipe reads {name} as one dataset and not as a series",
                check="--series",
                got=name,
                hint="leave --series out: the approval pins the dataset",
            )
        members = [dataset for dataset in registered if (dataset.owner, dataset.name) == (me, name)]
        chain = chain_of(member for member in members if member.series is not None)
        if not chain:
            raise DatasetUnknown(
                f"no member of the series {name} is registered for this recipe",
                check="--series",
                owner=me,
                dataset=name,
                hint="begin it first: sealtrain seal --series",
            )
        found[name] = chain
    return found


def terms_of(
    request: StandingRequest,
    chains: dict[str, tuple[DatasetManifest, ...]],
    me: str,
    recipe: PhaseRecipe,
) -> StandingTerms:
    """What the approval states.

    Args:
        request: As the owner wants it.
        chains: The named series.
        me: The owner.
        recipe: To be approved.

    Raises:
        UsageError: A budget for a recipe that reserves no privacy of the owner's data.
    """
    if request.epsilon is not None:
        own = [spending.epsilon for spending in spendings(recipe) if spending.owner == me]
        if not own or max(own) > request.epsilon:
            raise UsageError(
                "no run of this recipe fits the budget"
                if own
                else "the recipe has no differential privacy of your data, so no budget bounds it",
                check="--budget",
                got=f"{request.epsilon:g}",
                expected=f"at least {max(own):g}" if own else "no --budget",
                hint="leave --budget out, or ask for a recipe with privacy",
            )
    named = [{"name": name, "first": member_digest(chain[0])} for name, chain in chains.items()]
    fields: dict[str, Any] = {"runs": request.runs}
    if request.epsilon is not None:
        fields["epsilon"] = float(request.epsilon)
    if named:
        fields["series"] = tuple(named)
    return StandingTerms.model_validate(fields, strict=False)


def words_of_chain(chain: Sequence[DatasetManifest]) -> str:
    """What an owner reads of a series before approving it."""
    first = block_of(chain[0])
    bounds = "" if first.bounds is None else f"; bounds {first.bounds.to_dict()}"
    reads = "every member" if first.mode == "append" else "the newest member"
    return (
        f"{first.name}: {len(chain)} member{'' if len(chain) == 1 else 's'} so far, runs read "
        f"{reads}, later ones too{bounds}; begins with {member_digest(chain[0])[:16]}…"
    )
