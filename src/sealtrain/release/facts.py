"""What a release is decided on: plain facts the broker gathers and ``release.decide`` judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from sealtrain.consortium.approvals import Tally, Target
from sealtrain.consortium.receipts import Anchor, ReleasedDataset
from sealtrain.recipe.collaboration import is_shared_out
from sealtrain.recipe.needs import needs_of
from sealtrain.recipe.privacy import Spending, spendings
from sealtrain.release.messages import ChallengePurpose
from sealtrain.signing.needs import Needs

if TYPE_CHECKING:
    from sealtrain.recipe.lock import Lock

__all__ = [
    "ChallengeState",
    "Known",
    "LeaseState",
    "Limits",
    "Measured",
    "Permit",
    "RunState",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
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
        needs: What the recipe needs of the owners.
        privacy: What a run of the recipe reserves of each dataset it protects.
        apart: The recipe is for several parties: no guest gets data of two owners.
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
    needs: Needs
    privacy: tuple[Spending, ...] = ()
    apart: bool = False

    @classmethod
    def of(cls, lock: Lock, target: Target, *, instance_id: str, platform: str) -> Self:
        """What a guest runs that measured a lock.

        Args:
            lock: Inside the measured deployment document.
            target: That document, and the hash of the lock in it.
            instance_id: Which guest.
            platform: What attested it.
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
            needs=needs_of(recipe),
            privacy=spendings(recipe),
            apart=is_shared_out(recipe),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run the broker released keys to before.

    Attributes:
        data: Id and root of all data that it began with.
        checkpoint: The newest that it anchored.
    """

    app_id: str
    compose_hash: str
    recipe_hash: str
    data: frozenset[tuple[str, str]]
    checkpoint: Anchor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the broker knows when it decides about a request.

    Attributes:
        challenge: State before this request burnt it; ``None`` when never issued here.
        tally: Where approval of the requested target stands now.
        run: The run of that id; ``None`` when there is none.
        withdrawn: Of the data of the run those datasets that were withdrawn, with their owners.
    """

    challenge: ChallengeState | None
    tally: Tally
    run: RunState | None
    withdrawn: Mapping[str, str]


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
    """

    datasets: tuple[ReleasedDataset, ...]
    approved_by: tuple[str, ...]
    not_after: int
    checkpoint: Anchor | None
    reserves: tuple[Spending, ...] = ()
