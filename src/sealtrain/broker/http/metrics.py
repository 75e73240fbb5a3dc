"""A broker's metrics for Prometheus: counts, seconds and sizes, without names or contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import GaugeMetricFamily, Metric

from sealtrain.broker.service.service import Broker
from sealtrain.errors import UsageError

_LOOPBACK: Final = "127.0.0.1"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_GRANTS: Final = {
    ("POST", "/v1/challenges"): "challenge",
    ("POST", "/v1/releases"): "release",
    ("POST", "/v1/renewals"): "renewal",
    ("POST", "/v1/approvals"): "decision",
    ("POST", "/v1/datasets"): "dataset",
    ("POST", "/v1/manifests"): "manifest",
    ("POST", "/v1/submissions"): "submission",
    ("POST", "/v1/run-events"): "run-event",
    ("POST", "/v1/run-stops"): "run-stop",
    ("POST", "/bootAuth/app"): "boot-app",
    ("POST", "/bootAuth/kms"): "boot-kms",
}


class Metrics:
    """Counters of one broker; its sizes are read on every visit."""

    MEDIA_TYPE: ClassVar[str] = CONTENT_TYPE_LATEST
    """Of ``text``."""

    def __init__(self, broker: Broker) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        """What ``metrics_page`` serves."""
        self._seconds = Histogram(
            "sealtrain_broker_request_seconds",
            "From a request's head to the end of its answer.",
            ("method", "path", "status"),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._granted = Counter(
            "sealtrain_broker_granted",
            "What was granted or recorded: releases, renewals, challenges, decisions, …",
            ("action",),
            registry=self.registry,
        )
        self._violations = Counter(
            "policy_violations",
            "Refusals, by the code of the reason.",
            ("reason",),
            registry=self.registry,
        )
        for action in _GRANTS.values():
            self._granted.labels(action)  # shown as 0 before the first
        self.registry.register(_Sizes(broker))

    def text(self) -> bytes:
        """Every metric, in Prometheus's text format."""
        return generate_latest(self.registry)

    def count(
        self,
        *,
        method: str,
        path: str,
        status: int,
        code: str | None,
        refused: bool,
        seconds: float,
    ) -> None:
        """Count one answered request.

        Args:
            method: HTTP method.
            path: Template of the path.
            status: HTTP status.
            code: Code of the error, if the answer is one.
            refused: Whether that error is a refusal: the caller may not have what it asked for.
            seconds: From its head to the end of the answer.
        """
        self._seconds.labels(method, path, str(status)).observe(seconds)
        if refused and code is not None:
            self._violations.labels(code).inc()
        elif code is None and status == 200 and (action := _GRANTS.get((method, path))):
            self._granted.labels(action).inc()


class _Sizes:
    """Sizes of the ledger and of the database."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        """Collect metrics for the Prometheus client, without sizes that cannot be read."""
        for name, (text, value) in self._broker.condition.sizes().items():
            yield GaugeMetricFamily(f"sealtrain_broker_{name}", text, value)


@contextmanager
def metrics_page(metrics: Metrics, port: int) -> Iterator[Callable[[], int]]:
    """Serve ``metrics`` on 127.0.0.1 while the block runs; yields a function that returns the port.

    Args:
        port: TCP port, 0 for any free one.

    Raises:
        UsageError: The port is taken.
    """
    try:
        server, thread = start_http_server(port, addr=_LOOPBACK, registry=metrics.registry)
    except OSError as error:
        raise UsageError(
            f"cannot serve metrics on {_LOOPBACK}:{port}: {error.strerror or error}",
            check="metrics port",
            hint="choose another --metrics-port, or 0 for any free one",
        ) from error
    try:
        yield lambda: int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
