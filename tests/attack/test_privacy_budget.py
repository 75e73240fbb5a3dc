"""A dataset's privacy is spent once: not again, not by two at a time, not after a setback."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from release_world import ReleaseWorld, release_world
from world import OWNERS

from sealtrain.consortium.errors import BudgetSpent
from sealtrain.errors import LedgerInconsistent
from sealtrain.ledger.ledger import Ledger
from sealtrain.recipe.privacy import Spending
from sealtrain.release.checks import within_budget
from sealtrain.release.messages import ledger_origin

pytestmark = pytest.mark.claim("C38")


def private(recipe: dict[str, Any], *, epsilon: float = 2.0, steps: int = 300) -> None:
    recipe["privacy"] = {
        "dp": "sgd",
        "target_epsilon": epsilon,
        "delta": 1e-5,
        "budgets": {"hospital-a": 5.0},
    }
    recipe["trainer"]["max_steps"] = steps
    recipe["release_policy"]["metrics"] = ["accuracy"]


def use(world: ReleaseWorld, **settings: Any) -> None:
    """Lock, seal and approve a private recipe, and make it the world's."""
    world.locked = world.lock(lambda recipe: private(recipe, **settings))
    for owner in OWNERS:
        world.sealed[owner] = world.seal(owner)
        world.register(world.sealed[owner])
    for owner in OWNERS[:2]:
        world.approve(owner)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ReleaseWorld]:
    with release_world(tmp_path) as made:
        use(made)
        yield made


def reservations(world: ReleaseWorld) -> list[list[dict[str, Any]]]:
    bodies = [entry["body"] for entry in world.ledger.entries() if entry["kind"] == "release"]
    return [body["privacy"] for body in bodies if isinstance(body, dict) and "privacy" in body]


def test_a_release_reserves_the_whole_epsilon_in_the_ledger(world: ReleaseWorld) -> None:
    world.obtain()
    (reserved,) = reservations(world)
    assert [(share["owner"], share["epsilon"], share["budget"]) for share in reserved] == [
        ("hospital-a", 2.0, 5.0),
        ("hospital-b", 2.0, None),
        ("hospital-c", 2.0, None),
    ]


def test_the_run_that_would_overspend_gets_no_key(world: ReleaseWorld) -> None:
    world.obtain()
    world.obtain()
    with pytest.raises(BudgetSpent) as caught:
        world.obtain()
    assert caught.value.owner == "hospital-a"
    assert caught.value.exit_code == 3
    assert world.refusals()[-1]["code"] == "budget-spent"
    assert len(reservations(world)) == 2
    world.assert_no_key_left()


def test_another_recipe_and_sealing_anew_spend_from_the_same_budget(world: ReleaseWorld) -> None:
    world.obtain()
    use(world, epsilon=4.0, steps=200)
    with pytest.raises(BudgetSpent):
        world.obtain()
    use(world, epsilon=3.0, steps=100)
    world.obtain()


def test_a_resume_spends_nothing_more(world: ReleaseWorld) -> None:
    run_id = os.urandom(16).hex()
    world.obtain(run_id=run_id)
    for _ in range(4):
        world.obtain(run_id=run_id, resume=True)
    assert len(reservations(world)) == 1


def test_requests_at_the_same_time_cannot_both_have_the_rest(world: ReleaseWorld) -> None:
    world.obtain()
    assert sorted(world.outcomes_at_once(4)) == ["budget-spent"] * 3 + ["released"]


@pytest.mark.negative(60)
def test_setting_back_the_database_refunds_nothing(world: ReleaseWorld) -> None:
    world.obtain()
    world.obtain()
    (database,) = world.folder.glob("state-*/broker.sqlite")
    with sqlite3.connect(database) as connection:
        assert connection.execute("DELETE FROM reservations").rowcount == 2
    with pytest.raises(BudgetSpent):
        world.obtain()


@pytest.mark.negative(60)
def test_setting_back_the_ledger_is_noticed(world: ReleaseWorld, tmp_path: Path) -> None:
    (path,) = world.folder.glob("state-*/ledger.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(path, tmp_path / "old.sqlite")
    world.obtain()
    grants_before = len(reservations(world))
    origin = ledger_origin(world.consortium.consortium_id)
    with Ledger.open(
        tmp_path / "old.sqlite", origin=origin, signer=world.keyring.signer, clock=world.clock
    ) as old:
        assert grants_before == 1
        object.__setattr__(world.parts, "ledger", old)  # under the running broker
        with pytest.raises(
            LedgerInconsistent, check=carries(check="privacy budget", got="1 of 1 missing")
        ):
            world.obtain()
        assert "release" not in [entry["kind"] for entry in old.entries()]


def test_a_replayed_reservation_of_another_run_does_not_stand_in(world: ReleaseWorld) -> None:
    world.obtain()
    (database,) = world.folder.glob("state-*/broker.sqlite")
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE reservations SET run_id = ?", ("00" * 16,))
    with pytest.raises(LedgerInconsistent):
        world.obtain()


@pytest.mark.parametrize(
    ("before", "asked", "budget", "fits"),
    [
        (0.0, 5.0, 5.0, True),
        (0.7, 0.2, 0.9, True),  # 0.7 + 0.2 is 0.8999… in binary
        (0.1, 0.2, 0.3, True),  # 0.1 + 0.2 is 0.3000…4 in binary
        (3.0, 2.0001, 5.0, False),
        (100.0, 1.0, None, True),
    ],
)
def test_the_sum_decides(before: float, asked: float, budget: float | None, fits: bool) -> None:
    spending = Spending(owner="a", name="x", epsilon=asked, delta=1e-5, budget=budget)
    if fits:
        within_budget([spending], {("a", "x"): before, ("a", "y"): 1000.0})
    else:
        with pytest.raises(BudgetSpent):
            within_budget([spending], {("a", "x"): before})
