"""What a release is decided on: plain facts the broker gathers and ``release.decide`` judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from sealtrain.base.tiers import Tier
from sealtrain.consortium.approvals import ApprovalTally
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.receipts import Anchor, ReleasedDataset, RunDataset
from sealtrain.consortium.series_block import NewestMember
from sealtrain.consortium.standing_approval import StandingUse, Use
from sealtrain.recipe.collaboration import is_shared_out
from sealtrain.recipe.needs import needs_of
from sealtrain.recipe.privacy import Spending, spendings
from sealtrain.release.messages import ChallengePurpose
from sealtrain.signing.continues import Continues
from sealtrain.signing.needs import Needs
from sealtrain.signing.target import Target

if TYPE_CHECKING:
    from sealtrain.recipe.lock import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLimits:
    """Bounds of a decision.

    Attributes:
        broker_ids: Of this broker, the present one first, then former ones.
        consortium_id: The one consortium this broker serves.
        lease_seconds: Longest lease, seconds.
    """

    broker_ids: tuple[str, ...]
    consortium_id: str
    lease_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeState:
    """A challenge as it was the moment before this request burnt it."""

    purpose: ChallengePurpose
    expires_at: int
    used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What verified evidence says the guest runs.

    Attributes:
        recipe_hash: SHA-256 of the lock inside the measured deployment document.
        consortium_id: The consortium that lock was made for.
        brokers: Ids of the brokers that lock names.
        datasets: (owner name, dataset name) pairs the recipe names.
        instance_id: Which guest; may be empty where the platform has no such thing.
        platform: What attested it.
        platforms: Where the recipe may run.
        tier: What the guest's evidence proves.
        lowest_tier: Lowest tier that the recipe takes.
        needs: What the recipe needs of the owners.
        purpose: Purpose that the recipe states; ``None`` where it states none.
        series: Those of ``datasets`` that are series, in the recipe's order.
        privacy: What a run of the recipe reserves of each dataset it protects.
        apart: The recipe is for several parties: no guest gets data of two owners.
        follows: Each run begins with the model of the run before (``schedule.continue: last``).
    """

    app_id: str
    compose_hash: str
    recipe_hash: str
    consortium_id: str
    brokers: frozenset[str]
    datasets: frozenset[tuple[str, str]]
    instance_id: str
    platform: str
    platforms: frozenset[str]
    tier: Tier
    lowest_tier: Tier
    needs: Needs
    purpose: str | None = None
    series: tuple[tuple[str, str], ...] = ()
    privacy: tuple[Spending, ...] = ()
    apart: bool = False
    follows: bool = False

    @classmethod
    def of(cls, lock: Lock, target: Target, *, instance_id: str, platform: str, tier: Tier) -> Self:
        """What a guest runs that measured a lock.

        Args:
            lock: Inside the measured deployment document.
            target: That document, and the hash of the lock in it.
            instance_id: Which guest.
            platform: What attested it.
            tier: What its evidence proves.
        """
        recipe = lock.recipe
        return cls(
            app_id=target.app_id,
            compose_hash=target.compose_hash,
            recipe_hash=target.recipe_hash,
            consortium_id=lock.consortium_id,
            brokers=frozenset(lock.brokers),
            datasets=frozenset((dataset.owner, dataset.name) for dataset in recipe.datasets),
            instance_id=instance_id,
            platform=platform,
            platforms=frozenset(recipe.hardware.platforms),
            tier=tier,
            lowest_tier=recipe.hardware.tier,
            needs=needs_of(recipe),
            purpose=recipe.purpose,
            series=tuple(
                (dataset.owner, dataset.name)
                for dataset in recipe.datasets
                if dataset.series is not None
            ),
            privacy=spendings(recipe),
            apart=is_shared_out(recipe),
            follows=recipe.schedule is not None and recipe.schedule.continues == "last",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run the broker released keys to before.

    Attributes:
        data: All data that it began with.
        checkpoint: The newest that it anchored.
    """

    app_id: str
    compose_hash: str
    recipe_hash: str
    data: frozenset[RunDataset]
    checkpoint: Anchor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRun:
    """The newest run of a target whose manifest a broker recorded.

    Attributes:
        run_id: Of the run; its model's files are sealed under this id.
        next: What the run after it says of it.
    """

    run_id: str
    next: Continues


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the broker knows when it decides about a request.

    Attributes:
        challenge: State before this request burnt it; ``None`` when never issued here.
        tally: Where approval of the requested target stands now.
        run: The run of that id; ``None`` when there is none.
        withdrawn: Of the data of the run those datasets that were withdrawn, with their owners; and
            of the data of every run before it that its model comes from.
        chains: By owner and name, the members of each series that are registered for the target:
            of those that the recipe names, and of those of which the run names a member.
        uses: What runs took of standing approvals, by digest.
        newest: The newest run of the target, where the recipe's runs follow each other.
        began: Which run this one followed when it began; of a resume.
    """

    challenge: ChallengeState | None
    tally: ApprovalTally
    run: RunState | None
    withdrawn: Mapping[str, str]
    chains: Mapping[tuple[str, str], tuple[DatasetManifest, ...]] = field(default_factory=dict)
    uses: Mapping[str, Use] = field(default_factory=dict)
    newest: NewestRun | None = None
    began: Continues | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """A lease the broker granted; ``superseded`` once a resume took its place."""

    run_id: str
    not_after: int
    superseded: bool
    instance_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """Yes.

    Attributes:
        datasets: What is released, in the order of the request; empty for a renewal.
        approved_by: Owners whose approvals carried it.
        not_after: End of the lease, seconds since the epoch.
        checkpoint: Anchor after this decision.
        reserves: What is reserved of the owners' privacy; nothing on a resume or renewal.
        standing: Which run under each standing approval begins; nothing on a resume or renewal.
        series: The newest member of each series that a new run reads, as far as they are known.
        continues: The run whose model's key is released with the data's.
    """

    datasets: tuple[ReleasedDataset, ...]
    approved_by: tuple[str, ...]
    not_after: int
    checkpoint: Anchor | None
    reserves: tuple[Spending, ...] = ()
    standing: tuple[StandingUse, ...] = ()
    series: tuple[NewestMember, ...] = ()
    continues: Continues | None = None
