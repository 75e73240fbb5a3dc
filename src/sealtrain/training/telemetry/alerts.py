"""Conditions of alerts. Name, step and threshold of an alert leave, its value never does."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from sealtrain.recipe.monitoring import Alert, AlertName

__all__ = ["Alerts", "Fired", "to_file", "to_webhook"]

_WEBHOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Fired:
    """An alert that fired."""

    alert: AlertName
    step: int
    threshold: float | None


class Alerts:
    """Each alert fires when its condition begins to hold, and again only after it ceased to."""

    def __init__(self, alerts: Sequence[Alert], tell: Callable[[Fired], None]) -> None:
        self._alerts = tuple(alerts)
        self._tell = tell
        self._holding: set[Alert] = set()
        self._lock = threading.Lock()
        self._best = math.inf

    @property
    def watched(self) -> frozenset[str]:
        """Names of the conditions that have an alert."""
        return frozenset(alert.when for alert in self._alerts)

    def loss(self, step: int, loss: float) -> None:
        """Check a logged loss."""
        finite = math.isfinite(loss)
        self._decide("loss-not-finite", step, lambda _: not finite)
        if finite:
            best = self._best
            self._decide("loss-diverges", step, lambda factor: 0 < best < loss / factor)
            self._best = min(best, loss)

    def no_step_for(self, step: int, seconds: float) -> None:
        """Check the seconds since the last step."""
        self._decide("no-step", step, lambda most: seconds > most)

    def memory(self, step: int, percent: float) -> None:
        """Check the memory in use."""
        self._decide("memory-percent", step, lambda most: percent > most)

    def lease(self, step: int, seconds_left: float) -> None:
        """Check the seconds left of the lease."""
        self._decide("lease-seconds-left", step, lambda least: seconds_left < least)

    def _decide(self, when: AlertName, step: int, holds: Callable[[float], bool]) -> None:
        fired = []
        with self._lock:
            for one in self._alerts:
                if one.when != when:
                    continue
                if not holds(0.0 if one.threshold is None else one.threshold):
                    self._holding.discard(one)
                elif one not in self._holding:
                    self._holding.add(one)
                    fired.append(Fired(one.when, step, one.threshold))
        for alert in fired:
            self._tell(alert)


def to_file(path: Path) -> Callable[[Fired], None]:
    """One JSON object a line, appended."""

    def tell(fired: Fired) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(fired)) + "\n")

    return tell


def to_webhook(url: str) -> Callable[[Fired], None]:
    """One POST an alert, from a thread of its own: training never waits for it."""

    def post(fired: Fired) -> None:
        from sealtrain.base.http import Bounds, HttpClient, NoAnswer

        bounds = Bounds(
            connect=_WEBHOOK_SECONDS, read=_WEBHOOK_SECONDS, total=_WEBHOOK_SECONDS, tries=1
        )
        client = HttpClient(bounds, tls=url.startswith("https:"))
        # No retry, and never a reason to stop training.
        with client, suppress(NoAnswer):
            client.ask(
                "POST",
                url,
                cap=lambda _status, _headers: None,
                content=json.dumps(asdict(fired)).encode(),
                headers={"content-type": "application/json"},
            )

    def tell(fired: Fired) -> None:
        threading.Thread(target=post, args=(fired,), name="webhook", daemon=True).start()

    return tell
