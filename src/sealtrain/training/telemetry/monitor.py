"""The monitor of a training: throughput, the machine, alerts, and the page for Prometheus.

The monitor releases no measurement: the release policy does (``telemetry.released``), and the
gauges of the machine leave only if the recipe says ``monitoring.system_metrics``.

A full disk or an unreadable machine ends neither training nor the watch: the monitor retries a
failed alert at the next tick, and skips a tick that cannot read the machine. A fault of the monitor
itself ends the training at its next step.

Name, step and threshold of an alert leave, its value never does.

Where it has the run's folder, it appends what the release policy released to ``metrics.jsonl``
(spec/console.md §2), which a console draws while the run goes on.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from sealtrain.recipe.monitoring import Alert, AlertName, Monitoring
from sealtrain.training.telemetry.endpoint import MetricsPage, ShownMetrics, page
from sealtrain.training.telemetry.gauges import SystemGauges

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
            for rule in self._alerts:
                if rule.when != when:
                    continue
                if not holds(0.0 if rule.threshold is None else rule.threshold):
                    self._holding.discard(rule)
                elif rule not in self._holding:
                    self._holding.add(rule)
                    fired.append(Fired(rule.when, step, rule.threshold))
        for alert in fired:
            self._tell(alert)


def to_file(path: Path) -> Callable[[Fired], None]:
    """One JSON object a line, appended."""

    def tell(fired: Fired) -> None:
        _append(path, asdict(fired))

    return tell


def _append(path: Path, line: Mapping[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


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


ALERTS_FILE = "alerts.jsonl"
METRICS_FILE = "metrics.jsonl"
_TICK_SECONDS = 1.0
TOKEN_COUNTS = ("num_input_tokens_seen", "num_tokens")


class Monitor:
    """See the module. A context manager around training.

    Attributes:
        shown: Content of the page for Prometheus.
    """

    def __init__(
        self,
        monitoring: Monitoring | None = None,
        *,
        folder: Path | None = None,
        rows_per_step: int = 1,
        port: int | None = None,
        lease_left: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        every: float = _TICK_SECONDS,
    ) -> None:
        """Start nothing yet.

        Args:
            monitoring: The recipe's section.
            folder: The run's folder, for released metrics, and for alerts that go to a file;
                without it metrics go to no file, and alerts to the working folder.
            rows_per_step: Training records used by one optimizer step.
            port: Loopback port of the page for Prometheus, 0 for any free port; no page when
                ``None``.
            lease_left: Seconds until the keys must not be used any longer.
            clock: Seconds, never going back.
            every: Seconds between two looks of the watch.
        """
        self._wanted = Monitoring() if monitoring is None else monitoring
        self._rows_per_step = rows_per_step
        self._port = port
        self._lease_left = lease_left
        self._clock = clock
        self._every = every
        self._folder = folder
        self._stack = ExitStack()
        self._over = threading.Event()
        self._last_step = clock()
        self._interval: tuple[float, int, float | None] | None = None
        self._gauges: SystemGauges | None = None
        self._reading = threading.Lock()
        self._untold: deque[Fired] = deque()
        self._telling = threading.Lock()
        self._fault: Exception | None = None
        self.shown = ShownMetrics()
        self.alerts = Alerts(self._wanted.alerts, self._on_fired)
        self.bound_port: int | None = None
        self._page: MetricsPage | None = None

    def __enter__(self) -> Self:
        """Bind the page's port. The monitor serves and watches nothing before ``watch``."""
        if self._wanted.system_metrics or "memory-percent" in self.alerts.watched:
            self._gauges = SystemGauges()
        if self._port is not None:
            self._page = self._stack.enter_context(page(self.shown, self._port))
            self.bound_port = self._page.port
        return self

    def watch(self) -> None:
        """Serve the page and begin to watch, in threads of their own.

        Called once the sandbox has closed: its rules bind the threads that start afterwards.
        """
        self._last_step = self._clock()
        if self._page is not None:
            self._page.serve()
        if self._wanted.alerts or self._gauges is not None:
            watcher = threading.Thread(target=self._watch, name="monitor", daemon=True)
            watcher.start()
            self._stack.callback(self._tell_all)
            self._stack.callback(watcher.join)
            self._stack.callback(self._over.set)

    def __exit__(self, *_: object) -> None:
        """Stop watching and close the page."""
        self._stack.close()

    def step(self, step: int, _values: Mapping[str, Any]) -> None:
        """Take the end of an optimizer step; counts stay monotone after a resume, as steps do.

        Raises:
            Exception: The fault of the monitor itself that ended the watch.
        """
        if self._fault is not None:
            raise self._fault
        self._last_step = self._clock()
        self.shown.steps = step
        self.shown.samples = step * self._rows_per_step

    def measure(self, step: int, values: Mapping[str, float]) -> dict[str, float]:
        """Check the logged values before the release policy, and return further measurements.

        Returns:
            ``steps_per_second``, ``samples_per_second`` and ``tokens_per_second`` since the last
            log of this training, and the gauges of the machine.
        """
        if "loss" not in values:
            return {}
        self.alerts.loss(step, values["loss"])
        tokens = next((values[name] for name in TOKEN_COUNTS if name in values), None)
        before, self._interval = self._interval, (self._clock(), step, tokens)
        found = self._read() if self._wanted.system_metrics else {}
        if before is None or before[1] >= step:
            return found
        seconds = max(self._interval[0] - before[0], 1e-9)
        found["steps_per_second"] = (step - before[1]) / seconds
        found["samples_per_second"] = found["steps_per_second"] * self._rows_per_step
        if tokens is not None and before[2] is not None:
            found["tokens_per_second"] = (tokens - before[2]) / seconds
        return found

    def take_metrics(self, step: int, values: Mapping[str, float | None]) -> None:
        """Take the metrics that the release policy released."""
        self.shown.metrics = {**self.shown.metrics, **values}
        if self._folder is not None:
            with suppress(OSError):  # a full disk ends no training
                _append(self._folder / METRICS_FILE, {"step": step, "values": dict(values)})

    def look(self) -> None:
        """Read the machine and check the conditions between steps. Called every second.

        Raises:
            OSError: The machine cannot be read now.
        """
        step = self.shown.steps
        self._tell_all()
        self.alerts.no_step_for(step, self._clock() - self._last_step)
        if self._lease_left is not None:
            self.alerts.lease(step, self._lease_left())
        read = self._read()
        if "memory_percent" in read:
            self.alerts.memory(step, read["memory_percent"])
        if self._wanted.system_metrics:
            self.shown.system = read

    def _read(self) -> dict[str, float]:
        if self._gauges is None:
            return {}
        with self._reading:
            return self._gauges.read()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            try:
                self.look()
            except OSError:  # the next tick reads again
                continue
            except Exception as fault:  # training raises it: it must not continue unwatched
                self._fault = fault
                return

    def _on_fired(self, fired: Fired) -> None:
        self.shown.alerts[fired.alert] += 1
        self._untold.append(fired)
        self._tell_all()

    def _tell_all(self) -> None:
        """Send the fired alerts, oldest first; keep those that fail for the next tick."""
        webhook = self._wanted.webhook
        file = (self._folder or Path()) / ALERTS_FILE
        tell = to_file(file) if webhook is None else to_webhook(webhook)
        with self._telling:
            try:
                while self._untold:
                    tell(self._untold[0])
                    self._untold.popleft()
            except OSError:  # the disk is full: the next tick tries again
                return
