"""A manifest shows whose model its run began with; a chain shows that each followed the last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from linked_runs import chained, linked_world, reports_of, run_of
from manifest_world import LEASE_S, NOW, RELEASED, World
from second_verifier import Question, compare
from world import DAY, digest, signer

from sealtrain.base.clock import to_rfc3339
from sealtrain.consortium.receipts import Lease
from sealtrain.errors import RunChainBroken
from sealtrain.manifest.chain import verify_chain
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.signing.continues import Continues
from sealtrain.signing.identity import broker_id

pytestmark = pytest.mark.claim("C205")
SCHEDULE = {
    "when": "cron",
    "cron": "0 3 * * *",
    "runs": 10,
    "starts_at": "2027-01-04T03:00:00Z",
    "ends_at": "2027-01-14T03:00:00Z",
}
Change = Callable[[dict[str, Any]], None]


def world_of(folder: Path, begins_with: str) -> World:
    folder.mkdir()
    return linked_world(
        folder,
        [broker_id(signer("broker").public)],
        schedule=SCHEDULE | {"continue": begins_with},
        peft=None,
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world_of(tmp_path_factory.mktemp("linked") / "last", "last")


@pytest.fixture(scope="module")
def manifests(world: World) -> list[bytes]:
    return chained(world, 3)


def released(world: World, day: int, continues: Continues | None, **changed: Any) -> Change:
    """A manifest whose receipt is with the key of another model."""

    def change(facts: dict[str, Any]) -> None:
        at = RELEASED + (day - 1) * DAY
        lease = Lease(lease_id=digest(f"lease {day}"), not_after=to_rfc3339(at + LEASE_S))
        receipt = world.receipt(
            run_id=run_of(day), released_at=to_rfc3339(at), lease=lease, continues=continues
        )
        renewal = receipt.model_copy(
            update={
                "kind": "renewal",
                "datasets": (),
                "released_at": to_rfc3339(at + 60),
                "lease": Lease(lease_id=lease.lease_id, not_after=to_rfc3339(at + LEASE_S + 60)),
            }
        )
        receipts = [receipt.model_copy(update={"continues": changed.get("first", continues)})]
        facts["releases"] = world.record(*receipts, *([renewal] if "first" in changed else []))

    return change


def ends_alike(world: World, manifests: list[bytes]) -> dict[str, int]:
    """Both verifiers end alike; how many ended how."""
    comparison = compare(
        [
            Question(
                label=f"run {number}",
                manifest=manifest,
                trust=world.trust(),
                artefacts=None,
                now=NOW + 400 * DAY,
            )
            for number, manifest in enumerate(manifests, 1)
        ]
    )
    assert comparison.disagreements == ()
    return dict(comparison.verdicts)


def test_a_chain_says_that_each_run_began_with_the_one_before(
    world: World, manifests: list[bytes]
) -> None:
    chain = verify_chain(reports_of(world, manifests))
    assert chain.begins_with == "last"
    assert [link.number for link in chain.links] == [1, 2, 3]
    assert sum(ends_alike(world, manifests).values()) == 3


def test_a_chain_of_runs_that_begin_anew_says_so(tmp_path: Path) -> None:
    base = world_of(tmp_path / "base", "base")
    assert verify_chain(reports_of(base, chained(base, 2))).begins_with == "base"


OTHER = Continues(manifest_digest="ab" * 32, number=2)


@pytest.mark.parametrize("continues", [None, OTHER], ids=["none", "another"])
def test_a_release_without_the_model_that_the_manifest_names_is_refused(
    world: World, continues: Continues | None
) -> None:
    lie = chained(world, 2, {2: released(world, 2, continues)})
    _honest, report = reports_of(world, lie)
    assert isinstance(report.refusal, ClaimContradicted)
    assert report.refusal.check == "model before"
    with pytest.raises(ClaimContradicted, check=carries(check="model before")):
        verify_chain(reports_of(world, lie))
    ends_alike(world, lie)


def test_a_renewal_is_with_no_model(world: World, manifests: list[bytes]) -> None:
    mine = Continues.model_validate(
        reports_of(world, manifests)[1].manifest.predicate.continues.to_dict()  # type: ignore[union-attr]
    )
    lie = chained(world, 2, {2: released(world, 2, mine, first=mine)})
    assert reports_of(world, lie)[1].refusal.check == "model before"  # type: ignore[union-attr]
    ends_alike(world, lie)


def test_a_first_run_with_a_model_of_before_is_refused(world: World) -> None:
    lie = chained(world, 1, {1: released(world, 1, OTHER)})
    assert reports_of(world, lie)[0].refusal.check == "model before"  # type: ignore[union-attr]
    ends_alike(world, lie)


def test_a_run_of_a_recipe_that_begins_anew_has_no_model_of_before(tmp_path: Path) -> None:
    """The links say that run 2 follows run 1, and not that it learned from it."""
    base = world_of(tmp_path / "base", "base")
    lie = chained(base, 2, {2: released(base, 2, OTHER)})
    assert reports_of(base, lie)[1].refusal.check == "model before"  # type: ignore[union-attr]
    ends_alike(base, lie)


def test_an_older_model_in_the_chain_is_found(world: World, manifests: list[bytes]) -> None:
    """Run 3 was given the model of run 1, and says so in receipt and manifest alike."""
    older = reports_of(world, manifests)[1].manifest.predicate.continues  # type: ignore[union-attr]

    def change(facts: dict[str, Any]) -> None:
        facts["continues"] = older.to_dict() | {"number": 3}  # type: ignore[union-attr]
        released(world, 3, Continues.model_validate(facts["continues"]))(facts)

    lie = chained(world, 3, {3: change})
    assert reports_of(world, lie)[2].refusal is None
    with pytest.raises(RunChainBroken, check=carries(check="predecessor")):
        verify_chain(reports_of(world, lie))
