"""The best evaluation and early stopping, compared with Transformers' own decisions."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from carrying import carries
from training_world import sft

from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.training.checkpoints.best import BestSoFar

COMPARED = {"eval_steps": 1, "metric_for_best_model": "accuracy"}


def best(**settings: Any) -> BestSoFar:
    return BestSoFar(sft(trainer=COMPARED | settings).trainer)


def test_better_is_greater_unless_the_name_ends_with_loss() -> None:
    rising, falling = best(), best(metric_for_best_model="eval_loss")
    taken = [rising.take(step, {"accuracy": value}) for step, value in enumerate((0.5, 0.4, 0.6))]
    assert taken == [True, False, True]
    assert [falling.take(step, {"eval_loss": number}) for step, number in enumerate((2, 3, 1))] == [
        True, False, True,
    ]  # fmt: skip
    assert (rising.value, rising.step) == (0.6, 2)
    turned = best(greater_is_better=False)
    assert turned.take(1, {"accuracy": 0.9})
    assert turned.take(2, {"accuracy": 0.1})


@pytest.mark.parametrize("written", ["loss", "eval_loss"])
@pytest.mark.parametrize("measured", ["loss", "eval_loss"])
def test_the_prefix_may_be_left_out(written: str, measured: str) -> None:
    assert best(metric_for_best_model=written).take(1, {measured: 1.0})


def test_what_is_not_measured_is_refused_by_name() -> None:
    with pytest.raises(
        RecipeInvalid, check=carries(check="trainer.metric_for_best_model", got="accuracy")
    ) as refusal:
        best().take(1, {"f1": 0.5, "eval_loss": 1.0})
    assert refusal.value.expected == "eval_loss or f1"


def test_no_number_is_never_better() -> None:
    kept = best(early_stopping_patience=2)
    assert not kept.take(1, {"accuracy": math.nan})
    assert kept.take(2, {"accuracy": 0.1})
    assert not kept.take(3, {"accuracy": math.inf})
    assert not kept.stopped
    assert not kept.take(4, {"accuracy": math.nan})
    assert kept.stopped


@pytest.mark.parametrize("seed", range(20))
def test_it_stops_where_transformers_stops(seed: int) -> None:
    from transformers import EarlyStoppingCallback, TrainerControl, TrainerState

    source = random.Random(seed)  # noqa: S311 - test values
    patience, threshold = source.randint(1, 3), source.choice([0.0, 0.1])
    ours = best(early_stopping_patience=patience, early_stopping_threshold=threshold)
    theirs = EarlyStoppingCallback(patience, threshold)
    state = TrainerState()
    arguments: Any = type(
        "Arguments", (), {"metric_for_best_model": "accuracy", "greater_is_better": True}
    )
    for step in range(1, 40):
        value = source.random()
        control = TrainerControl()
        theirs.on_evaluate(arguments, state, control, {"eval_accuracy": value})
        if state.best_metric is None or value > state.best_metric:
            state.best_metric = value
        ours.take(step, {"accuracy": value})
        assert ours.value == state.best_metric
        assert ours.stopped == control.should_training_stop
        if ours.stopped:
            break
    again = best(early_stopping_patience=patience)
    again.restore(ours.state())
    assert again.state() == ours.state()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"early_stopping_patience": 2}, "eval_steps"),
        ({"load_best_model_at_end": True, "eval_steps": 2}, "eval_steps"),
        ({"early_stopping_patience": 2, "metric_for_best_model": "f1"}, "eval_steps"),
        ({"save_total_limit": 0}, "save_total_limit"),
    ],
)
def test_half_a_rule_is_refused_with_the_recipe(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeInvalid, match=said):
        sft(trainer=settings)


def test_evaluation_needs_records_to_test_on() -> None:
    datasets = [{"owner": "hospital-a", "name": "records", "role": "train"}]
    with pytest.raises(RecipeInvalid, match=r"trainer\.eval_steps"):
        sft(trainer={"eval_steps": 2}, datasets=datasets)
