"""How good a classifier's probabilities are: right or wrong, ranked, and calibrated.

A metric also stands in the table of ``recipe.metricnames``, or no release policy may name it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sealtrain.training.finite import answers_not_finite

if TYPE_CHECKING:
    import numpy as np

_BINS = 15


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Probabilities, float64 (records, labels).

    Args:
        logits: float (records, labels).
        temperature: Above 1 makes them less sure, below 1 more.

    Raises:
        TrainingDiverged: A row has no probabilities: its greatest number is not finite.
    """
    import numpy as np

    scaled = np.asarray(logits, np.float64) / temperature
    with np.errstate(invalid="ignore"):
        raised = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    if np.isnan(raised).any():
        raise answers_not_finite("logits")
    probabilities: np.ndarray = raised / raised.sum(axis=1, keepdims=True)
    return probabilities


def measure(truth: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Metrics of a classifier.

    Args:
        truth: int (records,), the label of each record.
        probabilities: float (records, labels), rows sum to 1.

    Returns:
        ``accuracy``; ``majority``, the accuracy of always guessing the most frequent label; ``f1``,
        the mean over labels (macro); ``auroc``, of two labels, or the mean of each label against
        the rest over labels that occur, left out where only one occurs; ``ece``, the expected
        difference of confidence and accuracy over 15 equal bins of confidence; ``brier``, the mean
        squared difference of probabilities and truth, summed over labels (0 to 2); ``eval_loss``,
        the mean negative log probability of the truth.
    """
    import numpy as np
    from sklearn.metrics import f1_score

    labels = probabilities.shape[1]
    guessed = probabilities.argmax(axis=1)
    right = guessed == truth
    wanted = np.eye(labels)[truth]
    of_truth = probabilities[np.arange(len(truth)), truth]
    metrics = {
        "accuracy": float(right.mean()),
        "majority": float(np.bincount(truth).max() / len(truth)),
        "f1": float(f1_score(truth, guessed, average="macro")),
        "ece": _calibration_error(probabilities.max(axis=1), right),
        "brier": float(((probabilities - wanted) ** 2).sum(axis=1).mean()),
        "eval_loss": float(-np.log(of_truth.clip(1e-12)).mean()),
    }
    ranked = _ranking(truth, probabilities)
    return metrics if ranked is None else metrics | {"auroc": ranked}


def fit_temperature(truth: np.ndarray, logits: np.ndarray) -> float:
    """Temperature with the least mean negative log probability of the truth, 0.05 to 20.

    Args:
        truth: int (records,).
        logits: float (records, labels).
    """
    import numpy as np
    from scipy.optimize import minimize_scalar

    rows = np.arange(len(truth))

    def loss(log_temperature: float) -> float:
        of_truth = softmax(logits, float(np.exp(log_temperature)))[rows, truth]
        return float(-np.log(of_truth.clip(1e-300)).mean())

    bounds = (float(np.log(0.05)), float(np.log(20.0)))
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x))


def _calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    import numpy as np

    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    error = 0.0
    for part in np.unique(bins):
        chosen = bins == part
        error += chosen.mean() * abs(confidence[chosen].mean() - right[chosen].mean())
    return float(error)


def _ranking(truth: np.ndarray, probabilities: np.ndarray) -> float | None:
    import numpy as np
    from sklearn.metrics import roc_auc_score

    occurring = np.unique(truth)
    if len(occurring) < 2:
        return None
    if probabilities.shape[1] == 2:
        return float(roc_auc_score(truth, probabilities[:, 1]))
    areas = [roc_auc_score(truth == label, probabilities[:, label]) for label in occurring]
    return float(np.mean(areas))
