"""A run of several parties as an auditor gets it: three owners, each with keys of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from manifest_world import (
    FINISHED,
    LEASE_S,
    OWNERS,
    RECIPE,
    RELEASED,
    RUN_ID,
    World,
    digest,
    identity,
    limits_of,
    make_world,
    simulated_pki,
)

from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.clock import to_rfc3339
from sealtrain.consortium.receipts import Lease, ReleasedDataset, ReleaseReceipt
from sealtrain.signing.parties import party_run_id

FEDERATED: dict[str, Any] = {
    "kind": "federated",
    "policy": "policy.yaml",
    "rounds": 3,
    "local_steps": 100,
    "min_parties": 2,
    "aggregation": "fedavg",
}


def make_joint(folder: Path, together: dict[str, Any] = FEDERATED, **recipe: Any) -> World:
    """A world whose recipe is for several parties, all of which took part."""
    policy = insecure_simulator_policy(simulated_pki().root_der).to_dict()
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    world = make_world(folder, RECIPE | {"collaboration": together} | recipe)
    world.releases = world.record(*(party_receipt(world, owner) for owner in OWNERS))
    world.facts |= {
        "releases": world.releases,
        "collaboration": {"kind": together["kind"], "parties": [party(name) for name in OWNERS]},
    }
    world.facts["limits"] = limits_of(world.facts)
    return world


def party(name: str, **changed: Any) -> dict[str, Any]:
    """A party's line in the manifest."""
    return {
        "name": name,
        "role": "holder",
        "run_id": party_run_id(RUN_ID, name),
        "from": to_rfc3339(RELEASED),
        "until": to_rfc3339(FINISHED),
    } | changed


def party_receipt(world: World, owner: str, **changed: Any) -> ReleaseReceipt:
    """The receipt of one party for its own datasets."""
    own = tuple(
        ReleasedDataset(
            dataset_id=pin.dataset_id,
            owner_id=identity(owner).public.owner_id,
            root=pin.root,
        )
        for key, pin in world.pins.items()
        if key.startswith(f"{owner}/")
    )
    fields = {
        "run_id": party_run_id(RUN_ID, owner),
        "datasets": own,
        "lease": Lease(lease_id=digest(f"lease {owner}"), not_after=to_rfc3339(RELEASED + LEASE_S)),
    }
    return world.receipt(**fields | changed)


def with_receipts(
    world: World, receipts: Sequence[ReleaseReceipt]
) -> Callable[[dict[str, Any]], None]:
    """A change that puts other receipts, recorded in a ledger, in the place of the honest ones."""
    recorded = world.record(*receipts)

    def change(facts: dict[str, Any]) -> None:
        facts["releases"] = recorded

    return change
