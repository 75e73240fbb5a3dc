"""A clean room: the model meets the records, and only noisy or thresholded aggregates come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from carrying import carries
from collecting import COLLECTING
from training_world import (
    OWNERS,
    SECRET,
    Ran,
    checkpoint_store,
    classify,
    run,
    seal_records,
    sources_of,
    write_records,
)

from sealtrain.errors import UsageError
from sealtrain.recipe.errors import ModelInvalid, RecipeInvalid
from sealtrain.recipe.phases.evaluate import EvaluateRecipe
from sealtrain.recipe.schema import PhaseRecipe, parse_recipe
from sealtrain.sealing.datakey import DataKey
from sealtrain.training.errors import PrivacyBroken
from sealtrain.training.privacy.counts import BINS, add_noise, histogram, metrics_of, over_floor
from sealtrain.training.privacy.noise import NoiseSource

if not COLLECTING:
    from sklearn.metrics import f1_score, roc_auc_score

METRICS = ["accuracy", "majority", "f1", "auroc"]


def answers(count: int = 400, labels: int = 2, seed: int = 5) -> tuple[Any, Any]:
    source = np.random.default_rng(seed)
    truth = source.integers(0, labels, count)
    scores = source.normal(size=(count, labels)) + 1.2 * np.eye(labels)[truth]
    raised = np.exp(scores)
    return truth, raised / raised.sum(1, keepdims=True)


@pytest.mark.claim("C37")
@pytest.mark.parametrize("labels", [2, 5])
def test_one_record_changes_one_cell_by_one(labels: int) -> None:
    truth, scores = answers(60, labels)
    whole = histogram(truth, scores)
    assert whole.sum() == 60
    for left_out in range(60):
        kept = np.arange(60) != left_out
        changed = whole - histogram(truth[kept], scores[kept])
        assert changed.sum() == np.abs(changed).sum() == 1


@pytest.mark.parametrize("labels", [2, 5])
def test_metrics_of_a_histogram_are_those_of_its_records(labels: int) -> None:
    truth, scores = answers(labels=labels)
    metrics = metrics_of(histogram(truth, scores))
    guess = scores.argmax(1)
    assert metrics["accuracy"] == pytest.approx((guess == truth).mean())
    assert metrics["f1"] == pytest.approx(f1_score(truth, guess, average="macro"))
    assert metrics["majority"] == pytest.approx(np.bincount(truth).max() / len(truth))
    assert ("auroc" in metrics) == (labels == 2)
    if labels == 2:
        tenths = np.minimum((scores[:, 1] * BINS).astype(int), BINS - 1)
        assert metrics["auroc"] == pytest.approx(roc_auc_score(truth, tenths))


def test_a_calibrated_model_has_little_calibration_error() -> None:
    source = np.random.default_rng(3)
    told = source.uniform(size=20_000)
    scores = np.stack([1 - told, told], axis=1)
    truth = (source.uniform(size=20_000) < told).astype(int)
    assert metrics_of(histogram(truth, scores))["ece"] < 0.02
    assert metrics_of(histogram(1 - truth, scores))["ece"] > 0.3


def test_nothing_gives_nothing() -> None:
    assert metrics_of(np.zeros((2, 2, BINS), dtype=np.int64)) == {}


@pytest.mark.claim("C37")
def test_noise_hides_a_record_and_keeps_the_whole() -> None:
    truth, scores = answers(2000)
    counts = histogram(truth, scores)
    noise = NoiseSource(SECRET)
    found = add_noise(counts, 1.0, noise, "a")
    assert (found >= 0).all()
    assert (found != counts).any()
    assert np.array_equal(found, add_noise(counts, 1.0, noise, "a"))
    assert not np.array_equal(found, add_noise(counts, 1.0, noise, "b"))
    assert abs(metrics_of(found)["accuracy"] - metrics_of(counts)["accuracy"]) < 0.05


@pytest.mark.claim("C554")
def test_counts_that_differ_have_noise_that_does_not_cancel() -> None:
    """Another processor puts a record into the next cell: the difference does not show which."""
    counts = np.full((2, 2, BINS), 1000, dtype=np.int64)
    moved = counts.copy()
    moved[0, 0, 4] -= 1
    moved[0, 0, 5] += 1
    noise = NoiseSource(SECRET)
    difference = add_noise(counts, 0.5, noise, "a") - add_noise(moved, 0.5, noise, "a")
    assert np.count_nonzero(difference) > counts.size / 2


@pytest.mark.claim("C37")
def test_the_chance_of_a_cell_changes_by_the_factor_at_most() -> None:
    # Over many draws, how often a cell shows 0 … 6 where it holds 3, or with the neighbour 4.
    epsilon, draws = 0.8, 40_000
    noise = NoiseSource(SECRET)
    shown = [
        add_noise(np.full(draws, held, dtype=np.int64), epsilon, noise, held) for held in (3, 4)
    ]
    shares = [np.bincount(text, minlength=20)[:12] / draws for text in shown]
    allowed = np.exp(epsilon)
    for first, second in (shares, shares[::-1]):
        slack = 6 * np.sqrt(second / draws)
        assert (first <= allowed * (second + slack) + 1e-3).all()


@pytest.mark.parametrize(
    ("counts", "floor", "passes"),
    [([20, 30], 20, True), ([19, 300], 20, False), ([0, 30], 20, True), ([0, 0], 2, False)],
)
def test_without_noise_few_records_of_a_label_let_nothing_out(
    counts: list[int], floor: int, passes: bool
) -> None:
    table = np.zeros((2, 2, BINS), dtype=np.int64)
    table[:, 0, 0] = counts
    if passes:
        assert over_floor(table, floor) is table
    else:
        with pytest.raises(PrivacyBroken):
            over_floor(table, floor)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    paths = write_records(tmp_path_factory.mktemp("records"), count=120)
    return dict(seal_records(paths, tmp_path_factory.mktemp("sealed")))


@pytest.fixture(scope="module")
def trained(sealed: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A model folder, as a recipient would open it."""
    folder = tmp_path_factory.mktemp("models")
    recipe = classify(trainer={"max_steps": 40, "warmup_steps": 0, "save_steps": 40})
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(folder / "store"))
    (folder / "trained").mkdir()
    for name, data in ran.trained.files.items():
        (folder / "trained" / name).write_bytes(data)
    return folder, ran


def evaluation(**changed: Any) -> PhaseRecipe:
    known = set(EvaluateRecipe.model_fields) - {"trainer", "peft"}
    document = {name: value for name, value in classify().to_dict().items() if name in known}
    return parse_recipe(
        document
        | {
            "phase": "evaluate",
            "model": {"path": "trained", "tokenizer": None},
            "datasets": [{"owner": OWNERS[0], "name": "held-out", "role": "test"}],
            "release_policy": document["release_policy"] | {"metrics": METRICS},
        }
        | changed
    )


def test_it_finds_what_training_found_and_lets_no_model_out(
    sealed: dict[str, Any], trained: tuple[Path, Ran], tmp_path: Path
) -> None:
    folder, before = trained
    recipe = evaluation()
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), base_dir=folder)
    for name in ("accuracy", "majority", "f1"):
        assert ran.trained.metrics[name] == before.trained.metrics[name]
    assert ran.trained.metrics["accuracy"] > ran.trained.metrics["majority"]
    assert set(ran.trained.files) == {"metrics.json"}
    assert json.loads(ran.trained.files["metrics.json"]) == ran.trained.metrics
    assert set(ran.trained.metrics) == set(METRICS)
    assert ran.trained.steps == 0
    assert ran.trained.samples_seen == 60
    assert ran.trained.privacy == {"dp": "none"}


@pytest.mark.claim("C37")
def test_with_noise_the_secret_decides(
    sealed: dict[str, Any], trained: tuple[Path, Ran], tmp_path: Path
) -> None:
    folder, _ = trained
    recipe = evaluation(privacy={"dp": "counts", "target_epsilon": 2.0})
    sources = sources_of(recipe, sealed)

    def measured(name: str, secret: DataKey | None) -> Any:
        store = checkpoint_store(tmp_path / name)
        return run(recipe, sources, store, base_dir=folder, secret=secret).trained

    first, again = measured("a", SECRET), measured("b", SECRET)
    other = measured("c", DataKey(b"\x09" * 32))
    assert first.metrics == again.metrics != other.metrics
    assert first.privacy == {"dp": "counts", "epsilon": 2.0, "unit": "record"}
    with pytest.raises(UsageError, check=carries(code="usage")):
        measured("d", None)


def test_too_few_records_let_no_metric_out(
    sealed: dict[str, Any], trained: tuple[Path, Ran], tmp_path: Path
) -> None:
    recipe = evaluation(min_records=59)
    with pytest.raises(PrivacyBroken, check=carries(check="min_records")):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), base_dir=trained[0])


def test_labels_in_another_order_are_refused(
    sealed: dict[str, Any], trained: tuple[Path, Ran], tmp_path: Path
) -> None:
    recipe = evaluation(labels=["malignant", "benign"])
    with pytest.raises(ModelInvalid, check=carries(check="labels")):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), base_dir=trained[0])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"datasets": [{"owner": "a", "name": "x", "role": "train"}]}, "role test"),
        ({"model": {"config": {"model_type": "llama"}, "init_seed": 1}}, r"model\.sealed"),
        ({"model": {"path": "trained"}}, "tokenizer"),
        ({"labels": ["a", "a"]}, "labels"),
        ({"privacy": {"dp": "sgd", "target_epsilon": 1, "delta": 1e-5}}, "dp: sgd"),
        ({"trainer": {"max_steps": 3}}, "max_steps"),
    ],
)
def test_what_is_no_evaluation_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeInvalid, match=why):
        evaluation(**changed)


def test_noisy_counts_belong_to_evaluations() -> None:
    with pytest.raises(RecipeInvalid, match="evaluate"):
        classify(
            privacy={"dp": "counts", "target_epsilon": 1.0},
        )
