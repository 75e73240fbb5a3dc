"""A standing approval: one recipe, at most so many runs, within a budget of privacy.

See ``spec/approvals.md`` §2.1. What was used of one follows from the order of a ledger alone: a run
counts if the entry of its first release stands after the approval's entry and is of its target. The
broker, an audit and an owner who asks ahead count with the functions of this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AllowInfNan, Field, model_validator

from sealtrain.base.models import Hex64, OwnerName, StrictModel
from sealtrain.consortium.series import member_digest

if TYPE_CHECKING:
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.consortium.decisions import Decision, SignedDecision
    from sealtrain.signing.target import Target

Spent = Literal["runs", "epsilon"]
"""By what a standing approval is spent for a run that would begin."""
Reserve = tuple[str, str, float]
"""Owner, name and epsilon of a dataset whose privacy a run reserves."""
_ROUNDING = 1e-9
"""Sums of decimal fractions miss by less."""


class StandingUse(StrictModel):
    """An item of ``standing`` in the ledger entry of a run's first release."""

    owner: OwnerName
    approval: Hex64
    """Digest of the approval's envelope."""
    run: int = Field(ge=1)
    """Which run under it this is."""
    epsilon: Annotated[float, AllowInfNan(False), Field(ge=0)] | None = Field(
        default=None, exclude_if=lambda value: value is None
    )
    """Largest sum of reservations of one of its owner's datasets, this run's included."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.epsilon is None and "epsilon" in self.model_fields_set:
            raise ValueError("an epsilon that is not counted is left out")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A run that began, as the ledger entry of its first release says.

    Attributes:
        index: Of that entry.
        target: Of the run.
        reserved: What it reserved of owners' privacy.
    """

    index: int
    target: Target
    reserved: tuple[Reserve, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What runs took of one standing approval.

    Attributes:
        runs: How many began under it.
        epsilon: Sum of what they reserved, by name of the owner's dataset.
    """

    runs: int = 0
    epsilon: Mapping[str, float] = field(default_factory=dict)

    @property
    def most(self) -> float:
        """The largest sum of one dataset."""
        return max(self.epsilon.values(), default=0.0)


def use_of(signed: SignedDecision, place: int, begun: Iterable[Begun]) -> Use:
    """What was used of a standing approval.

    Args:
        signed: The approval.
        place: Index of its entry in the ledger.
        begun: Runs, of any target.
    """
    counted = [run for run in begun if run.index > place and run.target == signed.decision.target]
    return Use(runs=len(counted), epsilon=_sum(signed, (run.reserved for run in counted)))


def is_spent(signed: SignedDecision, use: Use, asked: Sequence[Reserve]) -> Spent | None:
    """By what an approval is spent for a run that would begin; ``None`` where it is not.

    Args:
        signed: An approval.
        use: What runs took of it.
        asked: What the run reserves, of all owners.
    """
    terms = signed.decision.standing
    if terms is None:
        return None
    if use.runs >= terms.runs:
        return "runs"
    if terms.epsilon is None:
        return None
    own = _sum(signed, [asked])
    if not own or _after(use, own) > terms.epsilon + _ROUNDING:
        return "epsilon"
    return None


def admits(decision: Decision, manifest: DatasetManifest, chain: Sequence[DatasetManifest]) -> bool:
    """Whether an owner's approval admits a dataset of that owner, root aside.

    Args:
        decision: The approval.
        manifest: Of the owner's dataset.
        chain: The series that it is a member of, from member 1 on; may be empty.
    """
    pins = decision.pins()
    if manifest.dataset_id in pins:
        return True
    terms = decision.standing
    if terms is None or not terms.series:
        return not pins
    known = manifest.dataset_id in {member.dataset_id for member in chain}
    return known and member_digest(chain[0]) == terms.first_of(manifest.name)


def entries_of(
    approvals: Iterable[SignedDecision], uses: Mapping[str, Use], asked: Sequence[Reserve]
) -> tuple[StandingUse, ...]:
    """The items ``standing`` of the entry with which a run begins.

    Args:
        approvals: Those that count, in the order of owners.
        uses: Of each standing one before this run, by digest.
        asked: What the run reserves.
    """
    found = []
    for signed in approvals:
        terms = signed.decision.standing
        if terms is None:
            continue
        use = uses.get(signed.digest, Use())
        item = {
            "owner": signed.owner.name,
            "approval": signed.digest,
            "run": use.runs + 1,
        }
        if terms.epsilon is not None:
            item["epsilon"] = _after(use, _sum(signed, [asked]))
        found.append(StandingUse.model_validate(item))
    return tuple(found)


def _after(use: Use, own: Mapping[str, float]) -> float:
    """The largest sum of one dataset, after a run that reserves ``own``."""
    total = Counter(dict(use.epsilon))
    total.update(own)
    return max(total.values(), default=0.0)


def _sum(signed: SignedDecision, reserved: Iterable[Sequence[Reserve]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for run in reserved:
        for owner, name, epsilon in run:
            if owner == signed.owner.name:
                total[name] += epsilon  # type: ignore[assignment]  # a Counter of floats
    return dict(total)
