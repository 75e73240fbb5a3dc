"""Manifests of several runs of one recipe, day after day, each linked to the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from manifest_world import (
    FINISHED,
    LEASE_S,
    NOW,
    RELEASED,
    START,
    World,
    facts_of,
    limits_of,
    make_world,
)
from run_logs import fields_of
from world import DAY, RECIPE, digest

from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.consortium.receipts import Lease
from sealtrain.manifest.build import build_manifest
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.verify import Report, examine
from sealtrain.signing.continues import Continues
from sealtrain.signing.runlog import RunLog

Change = Callable[[dict[str, Any]], None]


def linked_world(folder: Path, brokers: Sequence[str] | None = None, **recipe: Any) -> World:
    """What the runs of ``chained`` have in common; ``brokers`` as ``make_world``."""
    return make_world(folder, RECIPE | recipe, brokers=brokers)


def run_of(number: int) -> str:
    """Run id of the run of a day, from 1."""
    return digest(f"run {number}", 16)


def chained(
    world: World, days: int, changes: dict[int, Change] | None = None, *, every: int = DAY
) -> list[bytes]:
    """The manifests of so many days, oldest first; ``changes`` are made before one is signed."""
    made: list[bytes] = []
    for number in range(1, days + 1):
        later = (number - 1) * every
        facts = _facts(world, number, later, made[-1] if made else None)
        change = (changes or {}).get(number)
        if change is not None:
            change(facts)
        made.append(_signed(world, facts, later=later))
    return made


def reports_of(world: World, manifests: Sequence[bytes]) -> list[Report]:
    """Each examined by itself, without its outputs."""
    now = NOW + 400 * DAY
    return [examine(manifest, world.trust(), artefacts=None, now=now) for manifest in manifests]


def _facts(world: World, number: int, later: int, before: bytes | None) -> dict[str, Any]:
    run_id = run_of(number)
    lease = Lease(
        lease_id=digest(f"lease {number}"), not_after=to_rfc3339(RELEASED + later + LEASE_S)
    )
    place = None
    if before is not None:
        place = Continues(manifest_digest=sha256_hex(before), number=number)
    schedule = world.locked.lock.recipe.schedule
    follows = schedule is not None and schedule.continues == "last"
    receipt = world.receipt(
        run_id=run_id,
        released_at=to_rfc3339(RELEASED + later),
        lease=lease,
        continues=place if follows else None,
    )
    log = RunLog(run_id)
    log.append("run.started", fields_of("run.started"), START + later)
    log.append("training.finished", fields_of("training.finished"), FINISHED + later)
    facts = facts_of(world, run_id)
    facts["run"] |= {
        "started_at": to_rfc3339(START + later),
        "finished_at": to_rfc3339(FINISHED + later),
    }
    facts["releases"] = world.record(receipt)
    facts["run_log"] = {"head": log.head, "entries": log.entries}
    if place is not None:
        facts["continues"] = place.to_dict()
    return facts


def _signed(world: World, facts: dict[str, Any], *, later: int) -> bytes:
    facts["limits"] = limits_of(facts)

    def quote(binding: Binding) -> Any:
        return world.evidence(binding, at=FINISHED + later)

    return build_manifest(
        subjects=world.subjects,
        predicate=Predicate.model_validate_json(canonical_json(facts)),
        guest_signer=world.guest_key,
        quote=quote,
    )
