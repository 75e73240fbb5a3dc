"""Epochs of a recipe: the rule that owners approve, and the steps that a guest makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from carrying import carries
from training_world import numbered, source_of
from training_world import sft as tiny

from sealtrain.base.canonical import canonical_json
from sealtrain.errors import DataInvalid
from sealtrain.recipe.epochs import records_a_step, steps_in_words, steps_of, with_steps
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.schema import parse_recipe
from sealtrain.training.data.rank_part import RankPart
from sealtrain.training.data.stream import RecordStream

Locks = Callable[..., LockedRecipe]
EVEN = [
    {"owner": "hospital-a", "name": "biopsies", "role": "train"},
    {"owner": "hospital-b", "name": "biopsies", "role": "train"},
]


def of_epochs(document: dict[str, Any], epochs: Any = 3, **trainer: Any) -> dict[str, Any]:
    settings = {name: value for name, value in document["trainer"].items() if name != "max_steps"}
    settings |= {"num_train_epochs": epochs, **trainer}
    return document | {"datasets": EVEN, "trainer": settings}


def test_a_lock_has_the_rule_and_no_number_of_steps(sft: dict[str, Any], lock_of: Locks) -> None:
    locked = lock_of(of_epochs(sft))
    assert locked.lock.recipe.trainer.num_train_epochs == 3
    assert locked.lock.recipe.trainer.max_steps == 0
    assert b"num_train_epochs" not in lock_of(sft).lock_bytes
    assert lock_of(of_epochs(sft, epochs=4)).recipe_hash != locked.recipe_hash


@pytest.mark.parametrize(
    "trainer",
    [{"max_steps": 3, "num_train_epochs": 1}, {}, {"max_steps": 0}, {"num_train_epochs": 0},
     {"num_train_epochs": -1}, {"num_train_epochs": 1e300}, {"num_train_epochs": float("nan")},
     {"num_train_epochs": "3"}, {"max_steps": -1, "num_train_epochs": 1}],
)  # fmt: skip
def test_one_of_both_says_when_training_ends(sft: dict[str, Any], trainer: dict[str, Any]) -> None:
    with pytest.raises(RecipeInvalid):
        parse_recipe(sft | {"datasets": EVEN, "trainer": trainer})


UNFIT: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "packing": lambda recipe: of_epochs(recipe, packing=True),
    "weights": lambda recipe: of_epochs(recipe) | {"datasets": [EVEN[0] | {"weight": 2}, EVEN[1]]},
    "caps": lambda recipe: of_epochs(recipe)
    | {"datasets": [EVEN[0] | {"max_records": 5}, EVEN[1]]},
    "script": lambda recipe: of_epochs(recipe) | {"scripts": ["train.py"]},
    "blocks": lambda recipe: of_epochs(recipe) | {"phase": "cpt", "columns": {"text": "prompt"}},
    "answers": lambda recipe: of_epochs(recipe, algorithm="grpo")
    | {"phase": "rlhf", "columns": {"prompt": "prompt", "answer": "answer"},
       "reward": {"rule": "contains"}},
    "draws": lambda recipe: of_epochs(recipe)
    | {"privacy": {"dp": "sgd", "unit": "record", "target_epsilon": 8.0, "delta": 1e-5,
                   "max_grad_norm": 1.0}},
    "parties": lambda recipe: of_epochs(recipe)
    | {"collaboration": {"kind": "cut", "policy": "policy.json", "layers": 0}},
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_where_steps_do_not_follow_from_records_epochs_are_refused_by_name(
    sft: dict[str, Any], name: str
) -> None:
    with pytest.raises(RecipeInvalid, match="num_train_epochs"):
        parse_recipe(UNFIT[name](sft))


@pytest.mark.parametrize(
    ("epochs", "records", "batch", "accumulated", "ranks", "steps"),
    [
        (1, 100, 8, 1, 1, 13),
        (3, 100, 8, 1, 1, 38),  # the epochs join: 300 records, not three times 13 steps
        (3, 100, 8, 2, 2, 10),
        (0.5, 100, 10, 1, 1, 5),
        (0.1, 1000, 10, 1, 1, 10),  # a tenth, and not its nearest binary fraction
        (0.001, 100, 8, 1, 1, 1),
        (10_000, 8000, 8, 1, 1, 10_000_000),
    ],
)
def test_steps_follow_from_the_records(
    epochs: float, records: int, batch: int, accumulated: int, ranks: int, steps: int
) -> None:
    recipe = tiny(
        trainer={
            "max_steps": 0, "num_train_epochs": epochs, "per_device_train_batch_size": batch,
            "gradient_accumulation_steps": accumulated, "warmup_steps": 0,
        },
        backend={"name": "trl", "ranks": ranks},
    )  # fmt: skip
    assert steps_of(recipe, records) == steps
    counted = with_steps(recipe, [records - 1, 1])
    assert (counted.trainer.max_steps, counted.trainer.num_train_epochs) == (steps, None)
    assert with_steps(counted, [1]) is counted
    assert str(steps) in steps_in_words(recipe, records)
    assert str(records_a_step(recipe)) in steps_in_words(recipe, None)


def test_more_steps_than_a_recipe_may_have_end_the_run() -> None:
    recipe = tiny(trainer={"max_steps": 0, "num_train_epochs": 10_000})
    with pytest.raises(DataInvalid, check=carries(check="num_train_epochs", got="10002500")):
        steps_of(recipe, 4001)


@pytest.mark.claim("C739")
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_owners_and_ranks_read_each_record_once_an_epoch(epochs: int, ranks: int) -> None:
    owners = [numbered([7, 80, 3]), numbered([33] * 5, first=1000), numbered([1], first=5000)]
    every = sum(sum(dataset.batch_rows) for dataset in owners)
    step = 4 * ranks
    recipe = tiny(
        trainer={"max_steps": 0, "num_train_epochs": epochs},
        backend={"name": "trl", "ranks": ranks},
    )
    steps = steps_of(recipe, every)
    assert 0 <= steps * step - epochs * every < step
    seen: Counter[int] = Counter()
    begun: Counter[int] = Counter()
    for rank in range(ranks):
        stream = RecordStream([source_of(dataset) for dataset in owners], seed=3, ahead=0)
        part = RankPart(rank=rank, world=ranks, step=step)
        for rows in stream.rounds(0, epochs * every, part=part):
            seen.update(rows["id"].to_pylist())
        for rows in stream.rounds(epochs * every, steps * step, part=part):
            begun.update(rows["id"].to_pylist())
    assert len(seen) == every
    assert set(seen.values()) == {epochs}
    # Records of the next epoch fill the last step, each at most once.
    assert begun.total() == steps * step - epochs * every
    assert set(begun.values()) <= {1}


def test_a_recipe_without_epochs_keeps_its_bytes(sft: dict[str, Any]) -> None:
    recipe = parse_recipe(sft)
    assert with_steps(recipe, [10]) is recipe
    assert b"num_train_epochs" not in canonical_json(recipe.to_dict())
