"""A page for Prometheus on the loopback address: released metrics, and the machine if approved."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from sealtrain.base.hostport import write_host_and_port
from sealtrain.base.wsgi import bind_server

if TYPE_CHECKING:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

_LOOPBACK = "127.0.0.1"


@dataclass(slots=True, eq=False)
class ShownMetrics:
    """The content of the page; written by the monitor, read on every request.

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
        """The metric families of the page, for the Prometheus client."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        yield CounterMetricFamily("sealtrain_steps", "Optimizer steps done.", self.steps)
        yield CounterMetricFamily("sealtrain_samples", "Training records used.", self.samples)
        yield _label_metric(
            GaugeMetricFamily("sealtrain_metric", "Released metrics.", labels=["name"]),
            {
                name: math.nan if value is None else value
                for name, value in dict(self.metrics).items()
            },
        )
        yield _label_metric(
            GaugeMetricFamily("sealtrain_system", "Use of the machine.", labels=["name"]),
            dict(self.system),
        )
        yield _label_metric(
            CounterMetricFamily("sealtrain_alerts", "Alerts that fired.", labels=["alert"]),
            dict(self.alerts),
        )


class MetricsPage:
    """The page on its bound port. Made by ``page``."""

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """Bound port on 127.0.0.1."""
        return int(self._server.server_port)

    def serve(self) -> None:
        """Start to answer, in a thread of its own."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


@contextmanager
def page(shown: ShownMetrics, port: int) -> Iterator[MetricsPage]:
    """Bind a port of 127.0.0.1 for ``shown`` while the block runs.

    Args:
        shown: Content of the page.
        port: TCP port, 0 for any free one.

    Raises:
        UsageError: The port is taken.
    """
    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry = CollectorRegistry(auto_describe=False)
    registry.register(shown)  # the registry only calls ``collect``
    taken = MetricsPage(bind_server(make_wsgi_app(registry), write_host_and_port(_LOOPBACK, port)))
    try:
        yield taken
    finally:
        taken.close()


def _label_metric(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]
) -> Metric:
    for name, value in sorted(values.items()):
        family.add_metric([name], value)
    return family
