"""Whom an orchestrator talks to, and what a run cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sealtrain.collab.channel.proofs import Acceptance, Proof

__all__ = ["Parties", "Progress"]

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """Whom an orchestrator talks to, and how both sides prove themselves.

    Attributes:
        proof: Makes the orchestrator's own proofs.
        accelerator: Its control port.
        writes: Its write port.
        accept_accelerator: Verifies the accelerator's proofs.
        accept_holder: Verifies each holder's, by name.
        timeout: Seconds a holder may be silent.
        patience: Seconds an operation of the accelerator may take.
    """

    proof: Proof
    accelerator: Address
    writes: Address
    accept_accelerator: Acceptance
    accept_holder: Mapping[str, Acceptance]
    timeout: float
    patience: float


@dataclass(slots=True)
class Progress:
    """Seconds of a run by what was done, for benchmarks, and what came of it.

    Attributes:
        transfer: Of trips' steps that training waited for.
        timers: Sums over trips: ``grab``, ``import_key``, ``open``, ``buffer_write``,
            ``export_key``, ``scrub``, ``measure``.
        training: Of training itself.
        losses: Mean loss of each trained trip.
    """

    transfer: float = 0.0
    training: float = 0.0
    timers: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)

    def add(self, name: str, seconds: float) -> None:
        """Count seconds towards a timer."""
        self.timers[name] = self.timers.get(name, 0.0) + seconds
