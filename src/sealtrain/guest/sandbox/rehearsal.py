"""A rehearsal shows what a run keeps to itself: output of libraries and scripts, and tracebacks.

Its data is the engineer's own. Only a run on the simulator, which protects nothing, heeds the
variable, and only where ``sealtrain rehearse`` set it: on hardware no setting of the host changes
what is silenced.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

INSECURE_SHOW: Final = {"SEALTRAIN_INSECURE_SHOW": "may-show-data"}
"""The variable and its value."""


def shows_insecurely(platform: str) -> bool:
    """Whether a run may show everything: on the simulator, in a rehearsal.

    Args:
        platform: Of the run.
    """
    set_so = all(os.environ.get(name) == value for name, value in INSECURE_SHOW.items())
    return platform == "simulator" and set_so


@contextmanager
def insecure_loud() -> Iterator[TextIO]:
    """Let the process print, to stderr only: stdout stays data.

    Yields:
        The terminal, for sealtrain's own progress bar. Closed after the block.
    """
    sys.stdout.flush()
    kept, stdout = os.dup(1), sys.stdout
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    terminal = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="replace")
    levels = {name: logger.level for name, logger in _loggers()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            for name in levels:
                if levels[name] >= logging.CRITICAL:
                    logging.getLogger(name).setLevel(logging.INFO)
            yield terminal
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        terminal.close()
        sys.stdout = stdout
        os.dup2(kept, 1)
        os.close(kept)


def _loggers() -> list[tuple[str, logging.Logger]]:
    """Of libraries that were told to be quiet."""
    every = list(logging.root.manager.loggerDict.items())
    return [(name, found) for name, found in every if isinstance(found, logging.Logger)]
