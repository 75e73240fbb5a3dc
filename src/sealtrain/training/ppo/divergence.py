"""The weight of the divergence from the reference (Ziegler et al. 2019, arXiv:1909.08593, §2.2)."""

from __future__ import annotations

__all__ = ["MAX_ERROR", "DivergenceWeight"]

MAX_ERROR = 0.2
"""Largest relative error that one correction takes into account."""


class DivergenceWeight:
    """Grows while answers diverge more than the target, shrinks while they diverge less.

    Attributes:
        coefficient: The weight now.
    """

    def __init__(self, coefficient: float, *, target: float | None, horizon: int) -> None:
        """Begin.

        Args:
            coefficient: Weight to begin with.
            target: Divergence of an answer in nats; ``None`` keeps the weight.
            horizon: Answers over which the weight follows.
        """
        self.coefficient = coefficient
        self._target = target
        self._horizon = horizon

    def correct(self, divergence: float, answers: int) -> None:
        """Follow what a step's answers showed.

        Args:
            divergence: Their mean divergence in nats.
            answers: How many there were.
        """
        if self._target is None:
            return
        error = min(max(divergence / self._target - 1, -MAX_ERROR), MAX_ERROR)
        self.coefficient *= 1 + error * answers / self._horizon
