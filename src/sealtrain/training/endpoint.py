"""A page for Prometheus on the loopback address: released metrics, and the machine if approved."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

__all__ = ["Shown", "served"]

_LOOPBACK = "127.0.0.1"


@dataclass(slots=True, eq=False)
class Shown:
    """What the page shows; written by the monitor, read on every visit.

    Attributes:
        steps: Optimizer steps done, those before a resume included.
        samples: Training records used for them.
        metrics: Released metrics, the latest of each.
        system: Gauges of the machine.
        alerts: How often each alert fired.
    """

    steps: int = 0
    samples: int = 0
    metrics: dict[str, float | None] = field(default_factory=dict)
    system: dict[str, float] = field(default_factory=dict)
    alerts: Counter[str] = field(default_factory=Counter)

    def collect(self) -> Iterator[Metric]:
        """The page, as the Prometheus client asks for it."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        yield CounterMetricFamily("sealtrain_steps", "Optimizer steps done.", self.steps)
        yield CounterMetricFamily("sealtrain_samples", "Training records used.", self.samples)
        yield _labelled(
            GaugeMetricFamily("sealtrain_metric", "Released metrics.", labels=["name"]),
            {
                name: math.nan if value is None else value
                for name, value in dict(self.metrics).items()
            },
        )
        yield _labelled(
            GaugeMetricFamily("sealtrain_system", "Use of the machine.", labels=["name"]),
            dict(self.system),
        )
        yield _labelled(
            CounterMetricFamily("sealtrain_alerts", "Alerts that fired.", labels=["alert"]),
            dict(self.alerts),
        )


@contextmanager
def served(shown: Shown, port: int) -> Iterator[Callable[[], int]]:
    """Serve ``shown`` on 127.0.0.1 while the block runs; yields what tells the port in use.

    Args:
        shown: What to show.
        port: TCP port, 0 for any free one.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(shown)  # it collects, which is all that is asked
    server, thread = start_http_server(port, addr=_LOOPBACK, registry=registry)
    try:
        yield lambda: int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _labelled(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]
) -> Metric:
    for name, value in sorted(values.items()):
        family.add_metric([name], value)
    return family
