"""One histogram from which all metrics of an evaluation are computed, with noise or over a floor.

Every record enters one cell: its label, the model's guess, and the decile of the probability that
the guess got (of label 1 where there are two labels). One record more or less changes one cell by
one, so two-sided geometric noise of parameter epsilon in every cell makes the histogram, and all
metrics computed from it, epsilon-differentially private. Cells that noise took below zero count as
zero. Metrics from noisy counts are themselves approximate; metrics that need the probabilities
(``auroc``, ``ece``) are approximate even without noise, because the histogram holds only deciles.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from sealtrain.training.errors import PrivacyBroken

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sealtrain.training.privacy.noise import NoiseSource

BINS = 10


def histogram(truth: NDArray[np.int64], probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    """Counts int64 (labels, labels, BINS): truth, guess, tenth of the probability.

    Args:
        truth: (records,), 0 … labels - 1.
        probabilities: (records, labels), rows sum to 1.
    """
    import numpy as np

    labels = probabilities.shape[1]
    guess = probabilities.argmax(axis=1)
    told = probabilities[:, 1] if labels == 2 else probabilities.max(axis=1)
    tenth = np.minimum((told * BINS).astype(np.int64), BINS - 1)
    counts = np.zeros((labels, labels, BINS), dtype=np.int64)
    np.add.at(counts, (truth, guess, tenth), 1)
    return counts


def add_noise(
    counts: NDArray[np.int64], epsilon: float, noise: NoiseSource, *place: int | str
) -> NDArray[np.int64]:
    """The histogram with noise in every cell, none below zero.

    Args:
        counts: From ``histogram``.
        epsilon: > 0.
        noise: The run's source of noise.
        place: Purpose of the noise; each histogram has its own, and so have other counts.
    """
    import numpy as np

    # Counts that differ, on another processor say, have noise that does not cancel between them.
    mark = hashlib.sha256(counts.astype("<i8").tobytes()).hexdigest()
    drawn = noise.geometric_noise(counts.size, epsilon, "counts", *place, mark)
    shown: NDArray[np.int64] = np.maximum(counts + drawn.reshape(counts.shape), 0)
    return shown


def over_floor(counts: NDArray[np.int64], floor: int) -> NDArray[np.int64]:
    """Return the histogram if every label that occurs has enough records.

    Args:
        counts: From ``histogram``.
        floor: Fewest records of each label that occurs.

    Raises:
        PrivacyBroken: A label has fewer records.
    """
    of_label = counts.sum(axis=(1, 2))
    few = of_label[of_label > 0]
    if not few.size or few.min() < floor:
        raise PrivacyBroken(
            "too few test records for a metric to leave",
            check="min_records",
            expected=f"at least {floor} of each label that occurs",
            hint="bring more records, or ask for noise: privacy {dp: counts, …}",
        )
    return counts


def metrics_of(counts: NDArray[np.int64]) -> dict[str, float]:
    """Metrics of a histogram, noisy or not.

    Returns:
        ``accuracy``, ``majority``, ``f1`` (macro), ``ece`` over tenths, and of two labels
        ``auroc``; an empty mapping for an empty histogram.
    """
    import numpy as np

    total = counts.sum()
    if total == 0:
        return {}
    table = counts.sum(axis=2)
    right, of_truth, of_guess = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    occurring = (of_truth + of_guess) > 0
    scores = 2 * right[occurring] / (of_truth + of_guess)[occurring]
    metrics = {
        "accuracy": float(right.sum() / total),
        "majority": float(of_truth.max() / total),
        "f1": float(scores.mean()),
        "ece": _calibration(counts),
    }
    if len(counts) == 2 and (of_truth > 0).all():
        metrics["auroc"] = _ranking(counts.sum(axis=1))
    return metrics


def _calibration(counts: NDArray[np.int64]) -> float:
    """Expected difference of probability and share, a tenth's middle standing for it."""
    import numpy as np

    middle = (np.arange(BINS) + 0.5) / BINS
    # Of two labels the probability is that of label 1, else that of the guess.
    happened = counts[1].sum(axis=0) if len(counts) == 2 else np.einsum("iik->k", counts)
    of_tenth = counts.sum(axis=(0, 1))
    return float(np.abs(middle * of_tenth - happened).sum() / of_tenth.sum())


def _ranking(of_label: NDArray[np.int64]) -> float:
    """Chance that a record of label 1 ranks above one of label 0; ties count half."""
    import numpy as np

    zero, one = of_label
    below = np.concatenate([[0], np.cumsum(zero)[:-1]])
    return float((one * (below + zero / 2)).sum() / (zero.sum() * one.sum()))
