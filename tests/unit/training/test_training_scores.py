"""Metrics of a classifier against a second opinion and against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from collecting import COLLECTING

from sealtrain.recipe.metricnames import list_metrics
from sealtrain.training.scores import fit_temperature, measure, softmax

if not COLLECTING:
    from sklearn.metrics import log_loss, roc_auc_score


def drawn(labels: int, count: int = 400, sharpness: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels that occur with the probabilities these mean."""
    source = np.random.default_rng(labels)
    logits = source.normal(0, 1.5, (count, labels))
    chances = softmax(logits)
    truth = np.array([source.choice(labels, p=row) for row in chances])
    return truth, logits * sharpness


@pytest.mark.parametrize("labels", [2, 5])
def test_metrics_are_those_of_scikit_learn(labels: int) -> None:
    truth, logits = drawn(labels)
    chances = softmax(logits)
    found = measure(truth, chances)
    assert found.keys() <= list_metrics("classify"), "a release policy may name each"
    ranked = chances[:, 1] if labels == 2 else chances
    assert found["auroc"] == pytest.approx(roc_auc_score(truth, ranked, multi_class="ovr"))
    assert found["eval_loss"] == pytest.approx(log_loss(truth, chances))
    assert found["accuracy"] == pytest.approx((chances.argmax(1) == truth).mean())
    one_hot = np.eye(labels)[truth]
    assert found["brier"] == pytest.approx(np.square(chances - one_hot).sum(1).mean())
    assert found["majority"] == np.bincount(truth).max() / len(truth)


def test_calibration_by_hand() -> None:
    # Two bins: three records at 0.9 of which two are right, one at 0.6 that is wrong.
    chances = np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.6, 0.4]])
    found = measure(np.array([0, 0, 0, 1]), chances)
    assert found["ece"] == pytest.approx(3 / 4 * (0.9 - 2 / 3) + 1 / 4 * 0.6)
    sure = measure(np.array([0, 1]), np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert (sure["ece"], sure["brier"], sure["f1"], sure["auroc"]) == (0, 0, 1, 1)


def test_labels_that_do_not_occur_do_no_harm() -> None:
    truth, logits = drawn(4)
    kept = truth < 3
    assert 0.5 < measure(truth[kept], softmax(logits[kept]))["auroc"] < 1
    only = measure(np.array([2, 2]), softmax(logits[:2]))
    assert "auroc" not in only
    assert np.isfinite(list(only.values())).all()


@pytest.mark.parametrize("sharpness", [0.25, 1.0, 4.0])
def test_a_temperature_undoes_too_much_or_too_little_confidence(sharpness: float) -> None:
    truth, logits = drawn(4, 4000, sharpness)
    temperature = fit_temperature(truth, logits)
    assert temperature == pytest.approx(sharpness, rel=0.1)
    before, after = measure(truth, softmax(logits)), measure(truth, softmax(logits, temperature))
    assert after["eval_loss"] <= before["eval_loss"] + 1e-9
    assert after["ece"] < 0.05
    if sharpness != 1:
        assert before["ece"] > 2 * after["ece"]


def test_large_logits_stay_finite() -> None:
    chances = softmax(np.array([[1e4, -1e4], [-1e4, 1e4]]))
    assert np.isfinite(chances).all()
    found = measure(np.array([1, 1]), chances)
    assert np.isfinite(list(found.values())).all()
