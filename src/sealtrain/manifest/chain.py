"""Verify a chain of run manifests: the links, their order, data that only grows, epsilon in sum.

Each manifest is verified by itself first (``manifest.verify``), each with its own trust and folder.
The checks here are those of spec/schedule.md §5, in its order; they read verified facts alone. With
entries of a ledger, the chain must also be whole: no recorded manifest of it is left out, and every
due time of the schedule ended, with a manifest of the chain or for a reason that the ledger names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from sealtrain.base.clock import from_rfc3339
from sealtrain.errors import RunChainBroken
from sealtrain.manifest.checks.case import CLOCK_TOLERANCE_S
from sealtrain.manifest.errors import ManifestMalformed
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.verify import Report
from sealtrain.recipe.privacy import spendings
from sealtrain.signing.continues import MAX_CHAIN, number_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedRun:
    """One run of a chain, verified.

    Attributes:
        number: In the chain, from 1.
        digest: SHA-256 of the manifest's file.
        run_id: 32 hex digits.
        started_at: Of the run; RFC 3339.
        finished_at: The same.
        data: Root of each dataset that the run read, by owner, name and id.
        members: Of each series that it read, by owner and name: number of a member → its id.
        replaced: The series of these of which a run reads the newest member alone.
        simulated: The run was.
    """

    number: int
    digest: str
    run_id: str
    started_at: str
    finished_at: str
    data: dict[tuple[str, str, str], str]
    members: dict[tuple[str, str], dict[int, str]]
    replaced: frozenset[tuple[str, str]]
    simulated: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "number": self.number,
            "manifest_digest": self.digest,
            "run_id": self.run_id,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "datasets": [
                {"owner": owner, "name": name, "dataset_id": dataset_id, "root": root}
                for (owner, name, dataset_id), root in sorted(self.data.items())
            ],
            "simulated": self.simulated,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSpending:
    """What the runs of a chain spent together of one owner's data of one name.

    Attributes:
        owner: Of the data.
        name: Of the dataset, or of the series that it is a member of.
        epsilon: Sum over the runs (basic composition); ``None`` where a run promised nothing.
        delta: The same.
        runs: How many runs read it.
    """

    owner: str
    name: str
    epsilon: float | None
    delta: float | None
    runs: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "owner": self.owner,
            "name": self.name,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "runs": self.runs,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A verified chain, oldest run first.

    Attributes:
        recipe_hash: Of the lock of all runs.
        links: The runs.
        spent: What they spent of owners' privacy together.
        begins_with: Each run's model before training: the recipe's, or that of the run before.
    """

    recipe_hash: str
    links: tuple[ChainedRun, ...]
    spent: tuple[ChainSpending, ...]
    begins_with: Literal["base", "last"]

    @property
    def head(self) -> ChainedRun:
        """The newest run."""
        return self.links[-1]

    @property
    def simulated(self) -> bool:
        """Whether any run was simulated."""
        return any(link.simulated for link in self.links)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "recipe_hash": self.recipe_hash,
            "head": self.head.digest,
            "runs": [link.to_dict() for link in self.links],
            "privacy": [total.to_dict() for total in self.spent],
            "begins_with": self.begins_with,
            "simulated": self.simulated,
        }


def verify_chain(reports: Sequence[Report]) -> Chain:
    """Verify that verified manifests are one whole chain, from its first run on.

    1. there is at least one, and each passed every check by itself;
    2. no manifest and no run is there twice;
    3. all are of one consortium, recipe and deployment;
    4. their numbers are 1, 2, 3 …, without a gap and none twice;
    5. each names the digest of the one before; where the recipe says ``continue: last``, so does
       the receipt with which the broker released that run's model, to which each manifest was held;
    6. each began after the one before ended;
    7. no dataset id is read under two roots, and no member of a series that is appended to is
       left out again.

    Args:
        reports: In any order, at most ``MAX_CHAIN``.

    Raises:
        Refused: A manifest's own refusal.
        RunChainBroken: They are not one whole chain.
    """
    if not 1 <= len(reports) <= MAX_CHAIN:
        raise _broken("members", f"{len(reports)} manifests", f"1 to {MAX_CHAIN}")
    read = sorted(
        (_read(report) for report in reports), key=lambda pair: number_of(pair[1].continues)
    )
    _require_once([report.digest for report, _ in read], "manifest")
    _require_once([predicate.run.run_id for _, predicate in read], "run")
    first = read[0][1]
    for _, predicate in read:
        _require_same(first, predicate)
    numbers = [number_of(predicate.continues) for _, predicate in read]
    expected = list(range(1, len(read) + 1))
    if numbers != expected:
        wrong = next(
            (got, wanted) for got, wanted in zip(numbers, expected, strict=True) if got != wanted
        )
        raise _broken("number", f"run {wrong[0]}", f"run {wrong[1]}")
    for (before, earlier), (_, later) in pairwise(read):
        _require_follows(before.digest, earlier, later)
    links = tuple(_link(report, predicate) for report, predicate in read)
    _require_growth(links)
    return Chain(
        recipe_hash=first.recipe.recipe_hash,
        links=links,
        spent=_sum_spent(read),
        begins_with=_begins_with(read),
    )


def _begins_with(read: Sequence[tuple[Report, Predicate]]) -> Literal["base", "last"]:
    lock = read[0][0].facts.lock
    schedule = None if lock is None else lock.recipe.schedule
    return "base" if schedule is None else schedule.continues


def _read(report: Report) -> tuple[Report, Predicate]:
    if report.refusal is not None:
        raise report.refusal
    if report.manifest is None or report.facts.lock is None or report.facts.datasets is None:
        raise ManifestMalformed("run manifest was not examined", check="form")
    return report, report.manifest.predicate


def _require_once(values: list[str], what: str) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise _broken(f"{what} twice", value, f"each {what} once")
        seen.add(value)


def _require_same(first: Predicate, other: Predicate) -> None:
    pairs = {
        "consortium": (first.consortium.consortium_id, other.consortium.consortium_id),
        "recipe": (first.recipe.recipe_hash, other.recipe.recipe_hash),
        "compose hash": (first.deployment.compose_hash, other.deployment.compose_hash),
        "app id": (first.deployment.app_id, other.deployment.app_id),
    }
    for check, (expected, got) in pairs.items():
        if got != expected:
            raise _broken(check, got, expected)


def _require_follows(digest: str, earlier: Predicate, later: Predicate) -> None:
    named = None if later.continues is None else later.continues.manifest_digest
    if named != digest:
        raise _broken("predecessor", named, digest)
    ended, began = earlier.run.finished_at, later.run.started_at
    if from_rfc3339(began) + CLOCK_TOLERANCE_S < from_rfc3339(ended):
        raise _broken("order", began, f"{ended} or later")


def _link(report: Report, predicate: Predicate) -> ChainedRun:
    datasets = report.facts.datasets or ()
    members: dict[tuple[str, str], dict[int, str]] = {}
    for dataset in datasets:
        if dataset.series is not None:
            members.setdefault((dataset.owner, dataset.name), {})[dataset.series.number] = (
                dataset.dataset_id
            )
    return ChainedRun(
        number=number_of(predicate.continues),
        digest=report.digest,
        run_id=predicate.run.run_id,
        started_at=predicate.run.started_at,
        finished_at=predicate.run.finished_at,
        data={
            (dataset.owner, dataset.name, dataset.dataset_id): dataset.root for dataset in datasets
        },
        members=members,
        replaced=frozenset(
            (dataset.owner, dataset.name)
            for dataset in datasets
            if dataset.series is not None and dataset.series.mode == "replace"
        ),
        simulated=report.simulated,
    )


def _require_growth(links: Sequence[ChainedRun]) -> None:
    roots: dict[tuple[str, str], str] = {}
    for link in links:
        for (owner, _, dataset_id), root in link.data.items():
            if roots.setdefault((owner, dataset_id), root) != root:
                raise _broken("dataset root", root, roots[owner, dataset_id])
    for before, link in pairwise(links):
        for series, earlier in before.members.items():
            later = link.members.get(series, {})
            changed = [n for n in earlier if later.get(n, earlier[n]) != earlier[n]]
            # Of a series that is replaced a run reads the newest member alone, which only rises.
            kept = max(later, default=0) if series in link.replaced else len(later)
            needed = max(earlier) if series in before.replaced else len(earlier)
            if changed or kept < needed or (series in before.replaced) != (series in link.replaced):
                raise _broken(
                    "series",
                    f"run {link.number}: members {sorted(later)} of {'/'.join(series)}",
                    f"at least {sorted(earlier)}, the same ones",
                )


def _sum_spent(read: Sequence[tuple[Report, Predicate]]) -> tuple[ChainSpending, ...]:
    sums: dict[tuple[str, str], list[tuple[float, float] | None]] = defaultdict(list)
    for report, predicate in read:
        costs = _costs(report, predicate)
        names = {(dataset.owner, dataset.name) for dataset in report.facts.datasets or ()}
        for name in names:
            sums[name].append(costs.get(name))
    return tuple(_sum(name, costs) for name, costs in sorted(sums.items()))


def _costs(report: Report, predicate: Predicate) -> dict[tuple[str, str], tuple[float, float]]:
    """Epsilon and delta that one run spent, by owner and name; what is missing has no bound."""
    privacy = predicate.privacy
    if privacy.dp == "sgd":
        found: dict[tuple[str, str], tuple[float, float]] = {}
        for dataset in privacy.datasets:
            # Members of a series have one name, and a record may be in any: the largest counts.
            known = found.get((dataset.owner, dataset.name), (0.0, 0.0))
            found[dataset.owner, dataset.name] = (max(known[0], dataset.epsilon), privacy.delta)
        return found
    lock = report.facts.lock
    if privacy.dp == "counts" and lock is not None:
        protected = spendings(lock.recipe)
        return {(dataset.owner, dataset.name): (privacy.epsilon, 0.0) for dataset in protected}
    return {}


def _sum(name: tuple[str, str], costs: Sequence[tuple[float, float] | None]) -> ChainSpending:
    known = [cost for cost in costs if cost is not None]
    bounded = len(known) == len(costs)
    return ChainSpending(
        owner=name[0],
        name=name[1],
        epsilon=sum(epsilon for epsilon, _ in known) if bounded else None,
        delta=sum(delta for _, delta in known) if bounded else None,
        runs=len(costs),
    )


def _broken(check: str, got: object, expected: object) -> RunChainBroken:
    return RunChainBroken(
        "the manifests are not one whole chain of runs",
        check=check,
        got=got,
        expected=expected,
        hint="give every manifest of the chain, from the first run on, each once",
    )
