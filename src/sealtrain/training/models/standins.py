"""Other layers in the place of a built model's own, for as long as it trains.

Training knows neither what they do nor who multiplies for them: whoever runs it gives them
(``training.run.train``), and a phase has them put in once its model and adapter are complete.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["StandIns"]


class StandIns(Protocol):
    """Put in before the first step, taken out after the last measurement."""

    def put_in(self, model: Any) -> None:
        """Change a model in place. Called once, with the adapter on it.

        Args:
            model: As the trainer holds it; its optimizer is not made yet.

        Raises:
            ModelInvalid: It has no layer to stand in for.
        """

    def take_out(self, model: Any) -> None:
        """Change the same model back, in place: it is merged and exported next."""
