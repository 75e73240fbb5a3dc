"""Show the log of a test that fails, and give ``caplog`` to the few tests that ask for it.

Pytest's own plugin attaches two handlers to every logger that passes nothing on, before and after
each of a test's three phases. It visits all loggers for that, and the training libraries have
thousands. Here one handler stays at the root, and ``caplog`` attaches pytest's where it is used.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator

import pytest
from _pytest.logging import (
    LogCaptureFixture,
    LogCaptureHandler,
    caplog_handler_key,
    caplog_records_key,
    catching_logs,
)

_MOST = 200


class Logs(logging.Handler):
    """A plugin of pytest, and the handler at the root."""

    def __init__(self) -> None:
        super().__init__()
        self._records: deque[logging.LogRecord] = deque(maxlen=_MOST)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the record for the rest of the test."""
        self._records.append(record)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Forget the test before."""
        self._records.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        """Show what was logged until the failure."""
        report: pytest.TestReport = yield  # type: ignore[misc,assignment]
        if report.failed and self._records:
            text = "\n".join(map(self.format, self._records))
            report.sections.append((f"Captured log {report.when}", text))
        return report  # type: ignore[return-value]

    @pytest.fixture
    def caplog(self, request: pytest.FixtureRequest) -> Iterator[pytest.LogCaptureFixture]:
        """As pytest's own."""
        with catching_logs(LogCaptureHandler()) as handler:
            request.node.stash[caplog_records_key] = {}
            request.node.stash[caplog_handler_key] = handler
            log = LogCaptureFixture(request.node, _ispytest=True)
            yield log
            log._finalize()


def hold_logs(config: pytest.Config) -> None:
    """Have the plugin registered; a warning that nothing handles is not printed."""
    plugin = Logs()
    logging.getLogger().addHandler(plugin)
    logging.lastResort = logging.NullHandler()
    config.pluginmanager.register(plugin, "logs")
