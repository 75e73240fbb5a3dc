"""A broker records no manifest that does not follow the newest one of its chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from linked_runs import chained, run_of
from manifest_world import LEASE_S, NOW, RELEASED, World, make_world
from release_world import ROOT, ReleaseWorld, release_world
from world import BROKER_IDS, DAY, RECIPE, digest, identity

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.base.secret import Secret
from sealtrain.broker.service.keyring import Keyring
from sealtrain.consortium.receipts import Lease, RunDataset
from sealtrain.errors import RunChainBroken
from sealtrain.manifest.form import read

pytestmark = pytest.mark.claim("C193")
DAYS = 4


def written(world: ReleaseWorld, folder: Path, others: Sequence[str] = (), **recipe: Any) -> World:
    """What the runs have in common whose keys this broker released."""
    folder.mkdir()
    made = make_world(
        folder,
        RECIPE | recipe,
        rules={"own_data_consent": False},
        brokers=[*world.locked.lock.brokers, *others],
    )
    made.broker = Keyring(Secret(ROOT)).signer
    with world.store.transaction() as transaction:
        data = [
            RunDataset(identity(key.partition("/")[0]).public.owner_id, pin.dataset_id, pin.root)
            for key, pin in made.pins.items()
        ]
        for day in range(1, DAYS + 1):
            ids = made.target.to_dict()
            transaction.begin_run(run_of(day), **ids, data=data, now=RELEASED)
    world.clock.now = NOW + 30 * DAY
    return made


def submit(world: ReleaseWorld, manifest: bytes) -> int:
    run_id = read(manifest).predicate.run.run_id
    return world.broker.registry.submit_manifest(manifest, run_id).index


@pytest.fixture
def made(world: ReleaseWorld, tmp_path: Path) -> World:
    return written(world, tmp_path / "runs")


@pytest.fixture
def world(tmp_path: Path) -> Any:
    with release_world(tmp_path) as world:
        yield world


def test_a_chain_is_recorded_link_by_link(world: ReleaseWorld, made: World) -> None:
    manifests = chained(made, DAYS)
    for manifest in manifests:
        index = submit(world, manifest)
        assert submit(world, manifest) == index
    bodies = [entry["body"] for entry in world.ledger.entries() if entry["kind"] == "manifest"]
    assert (
        [body.get("continues") for body in bodies]
        == [  # type: ignore[union-attr]
            None,
            *(
                {"manifest_digest": sha256_hex(before), "number": number}
                for number, before in enumerate(manifests[:-1], 2)
            ),
        ]
    )


def numbered(number: int) -> Callable[[dict[str, Any]], None]:
    def change(facts: dict[str, Any]) -> None:
        facts["continues"]["number"] = number

    return change


def following(digest: str) -> Callable[[dict[str, Any]], None]:
    def change(facts: dict[str, Any]) -> None:
        facts["continues"]["manifest_digest"] = digest

    return change


@pytest.mark.parametrize("number", [2, 4, 10_000])
def test_a_made_up_number_is_refused(world: ReleaseWorld, made: World, number: int) -> None:
    *before, lie = chained(made, 3, {3: numbered(number)})
    for manifest in before:
        submit(world, manifest)
    refused(world, lie, "number")


def test_a_predecessor_that_is_not_recorded_is_refused(world: ReleaseWorld, made: World) -> None:
    manifests = chained(made, 3)
    submit(world, manifests[0])
    refused(world, manifests[2], "predecessor")
    submit(world, manifests[1])
    submit(world, manifests[2])


def test_a_fork_is_refused(world: ReleaseWorld, made: World) -> None:
    """Two runs after the same one: day 3 names day 1, as day 2 did."""
    manifests = chained(made, 2)
    for manifest in manifests:
        submit(world, manifest)

    def fork(facts: dict[str, Any]) -> None:
        facts["continues"] = {"manifest_digest": sha256_hex(manifests[0]), "number": 2}

    refused(world, chained(made, 3, {3: fork})[2], "fork")


def refused(world: ReleaseWorld, manifest: bytes, check: str) -> None:
    before = world.kinds()
    with pytest.raises(RunChainBroken, check=carries(check=check)):
        submit(world, manifest)
    assert world.kinds() == [*before, "refusal"]
    assert world.refusals()[-1]["code"] == "run-chain-broken"


def test_one_of_several_brokers_may_have_missed_a_run(world: ReleaseWorld, tmp_path: Path) -> None:
    """It records what follows; where it knows the predecessor it compares all the same."""
    made = written(world, tmp_path / "runs", others=BROKER_IDS[:1])
    manifests = chained(made, 4, {4: numbered(3)})
    submit(world, manifests[1])
    submit(world, manifests[2])
    refused(world, manifests[3], "number")


SCHEDULE = {
    "when": "cron",
    "cron": "0 3 * * *",
    "continue": "last",
    "runs": 10,
    "starts_at": "2027-01-04T03:00:00Z",
    "ends_at": "2027-01-14T03:00:00Z",
}


@pytest.mark.claim("C204")
def test_a_recipe_whose_runs_follow_each_other_begins_once(
    world: ReleaseWorld, tmp_path: Path
) -> None:
    """A second run that began with the recipe's model is not recorded, before or after a third."""
    made = written(world, tmp_path / "runs", schedule=SCHEDULE, peft=None)

    def anew(facts: dict[str, Any]) -> None:
        del facts["continues"]
        receipt = made.receipt(
            run_id=run_of(3),
            released_at=to_rfc3339(RELEASED + 2 * DAY),
            lease=Lease(
                lease_id=digest("lease 3"), not_after=to_rfc3339(RELEASED + 2 * DAY + LEASE_S)
            ),
        )
        facts["releases"] = made.record(receipt)

    first, second, again = chained(made, 3, {3: anew})
    submit(world, first)
    refused(world, again, "number")
    submit(world, second)
    refused(world, again, "number")
    assert submit(world, first) < submit(world, second)
