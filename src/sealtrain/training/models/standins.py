"""Other layers in the place of a built model's own, for as long as it trains.

Training knows neither their computation nor the accelerator that multiplies for them: the caller of
``training.run.train`` provides them, and a phase puts them in once its model and adapter are
complete.
"""

from __future__ import annotations

from typing import Any, Protocol


class StandIns(Protocol):
    """Put in before the first step, taken out after the last measurement."""

    def put_in(self, model: Any) -> None:
        """Change a model in place. Called once, with the adapter on it.

        Args:
            model: As the trainer holds it, before the optimizer is built.

        Raises:
            ModelInvalid: It has no layer to replace.
        """

    def take_out(self, model: Any) -> None:
        """Change the same model back, in place, before it is merged and exported."""
