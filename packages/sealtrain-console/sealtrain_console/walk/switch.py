"""A protection as a switch: on, its step passes; off, the code itself refuses the step.

A switch is no text about an attack. ``Make`` builds the step over the prepared run, once honestly
and once with the protection attacked or left out, and ``act`` runs it with the code that owners,
broker, guest and auditor run. What comes back is that code's own error.

1. All that an attacker does beforehand happens in ``Make``: a refusal there is a fault of the walk.
2. Only what ``act`` raises counts as the refusal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from sealtrain.errors import SealtrainError

if TYPE_CHECKING:
    from sealtrain_console.walk.stage import Stage

StepName = Literal["seal", "approve", "release", "train", "verify"]
STEPS: Final[tuple[StepName, ...]] = get_args(StepName)
"""The five steps, in the order of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One step that is about to be taken.

    Attributes:
        act: Takes it; what it gives when nothing refuses, as a sentence.
        stake: What an attacker would have had if nothing refused, with values of this run.
    """

    act: Callable[[], str]
    stake: str


Make = Callable[["Stage", bool], Attempt]
"""Builds a step; with ``True`` the protection is switched off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a step gave.

    Attributes:
        switch: The protection that it was about.
        off: Whether that protection was switched off.
        passed: What it gave, where nothing refused.
        refusal: The error of the code that refused it.
        stake: As ``Attempt``.
        seconds: For preparing the step and taking it.
    """

    switch: Switch
    off: bool
    passed: str | None
    refusal: SealtrainError | None
    stake: str
    seconds: float

    @property
    def as_promised(self) -> bool:
        """The step passed with the protection and was refused without it."""
        return (self.refusal is not None) is self.off

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        error = self.refusal
        return {
            **self.switch.to_dict(),
            "switched_off": self.off,
            "as_promised": self.as_promised,
            "passed": self.passed,
            "refusal": None
            if error is None
            else {
                **error.to_dict(),
                "exit_code": error.exit_code,
                "http_status": error.http_status,
            },
            "stake": self.stake,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A protection that can be switched off.

    Attributes:
        name: Step and protection, such as ``approve-quorum``.
        step: The step that it protects.
        protection: What holds while it is on, as a sentence.
        off: What happens once it is off, as a sentence.
        claim: The promise of ``spec/claims.md`` that would fall.
        make: Builds the step.
    """

    name: str
    step: StepName
    protection: str
    off: str
    claim: str
    make: Make

    def to_dict(self) -> dict[str, str]:
        """What is known of it without playing it."""
        return {
            "switch": self.name,
            "step": self.step,
            "protection": self.protection,
            "off": self.off,
            "claim": self.claim,
        }

    def play(self, stage: Stage, *, off: bool) -> StepOutcome:
        """Take the step.

        Args:
            stage: Where it is taken, of this switch alone.
            off: Switch the protection off.

        Raises:
            Exception: The step could not be prepared.
        """
        begun = time.monotonic()
        attempt = self.make(stage, off)
        passed: str | None = None
        refusal: SealtrainError | None = None
        try:
            passed = attempt.act()
        except SealtrainError as error:
            refusal = error
        return StepOutcome(
            switch=self,
            off=off,
            passed=passed,
            refusal=refusal,
            stake=attempt.stake,
            seconds=time.monotonic() - begun,
        )
