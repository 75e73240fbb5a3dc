"""Words without an encoder: TF-IDF of one and two words with logistic regression (scikit-learn)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from medical_sets import Rows

STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Inverse strengths of regularisation to choose from."""


def tfidf(train: Rows, test: Rows, *, strength: float = 10.0) -> tuple[float, float]:
    """Accuracy and macro F1 of a linear model on TF-IDF.

    Args:
        train: Rows to fit.
        test: Rows to measure.
        strength: Inverse strength of regularisation (``C``).
    """
    return _scores(_fitted(train, strength), test)


def chosen_tfidf(
    train: Rows, validation: Rows, test: Rows, strengths: Sequence[float] = STRENGTHS
) -> dict[str, Any]:
    """The strength that is best on validation, and its metrics there and on test."""
    models = [(strength, _fitted(train, strength)) for strength in strengths]
    found = [(_scores(model, validation), strength, model) for strength, model in models]
    # Of equals the first: the strongest regularisation.
    (accuracy, _), strength, model = max(found, key=lambda one: one[0][0])
    of_test = _scores(model, test)
    return {
        "strength": strength,
        "validation": accuracy,
        "accuracy": of_test[0],
        "f1": of_test[1],
    }


def _fitted(train: Rows, strength: float) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2),
        LogisticRegression(max_iter=300, C=strength),
    )
    return model.fit([row["text"] for row in train], [row["label"] for row in train])


def _scores(model: Any, rows: Rows) -> tuple[float, float]:
    from sklearn.metrics import accuracy_score, f1_score

    truth = [row["label"] for row in rows]
    guessed = model.predict([row["text"] for row in rows])
    return float(accuracy_score(truth, guessed)), float(
        f1_score(truth, guessed, average="macro", zero_division=0)
    )
