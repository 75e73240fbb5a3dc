"""What a long command does before its progress shows: a line for each stage, and while it lasts.

A stage is a context. It says its name when it begins, and again every few seconds until it ends, so
that a waiting person sees what the command does. The thread that repeats it ends with the stage:
no thread is left where a process closes a sandbox around itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

EVERY_SECONDS: Final = 5.0

Stage = Callable[[str], AbstractContextManager[None]]
"""Takes what is done now, as "waiting for the brokers"; its context is left when that is done."""


@contextmanager
def unsaid(_what: str) -> Iterator[None]:
    """A stage that is reported nowhere."""
    yield


def say_stages(say: Callable[[str], None], *, every: float = EVERY_SECONDS) -> Stage:
    """Stages that are said.

    Args:
        say: Takes a line; called from another thread too.
        every: Seconds after which a stage that lasts is said again.
    """

    @contextmanager
    def stage(what: str) -> Iterator[None]:
        over = threading.Event()

        def remind() -> None:
            seconds = 0.0
            while not over.wait(every):
                seconds += every
                say(f"still {what} ({seconds:.0f} s)")

        say(what)
        reminding = threading.Thread(target=remind, name="stage", daemon=True)
        reminding.start()
        try:
            yield
        finally:
            over.set()
            reminding.join()

    return stage
