"""A server and its event loop: told to stop by a signal, or in a thread while a block runs."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sealtrain.errors import Unreachable

if TYPE_CHECKING:
    import uvicorn

Told = TypeVar("Told")

Quitters = list[Callable[[], object]]
"""Functions that stop a server from another thread."""


def _stop_by(quit_server: Callable[[], None], quitters: Quitters | None) -> None:
    """Say how the server of the running loop is stopped.

    Args:
        quit_server: Stops it; called in the loop's thread.
        quitters: Gets a function that stops it from another thread; ``None`` to stop on SIGTERM and
            SIGINT instead.
    """
    loop = asyncio.get_running_loop()
    if quitters is None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, quit_server)
    else:
        quitters.append(partial(loop.call_soon_threadsafe, quit_server))


async def serve_on(
    listener: Any,
    config: uvicorn.Config,
    ready: Callable[[], object],
    quitters: Quitters | None,
) -> None:
    """Serve an application on a socket until told to stop; what was begun is finished first.

    Args:
        listener: A listening socket; the caller closes it.
        config: The application and its limits.
        ready: Called once it answers.
        quitters: As ``_stop_by``.
    """
    import uvicorn

    class UvicornServer(uvicorn.Server):
        """Uvicorn that leaves signals to us: its own handler ends the process before cleanup."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[Any] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

    server = UvicornServer(config)

    def quit_server() -> None:
        server.should_exit = True

    _stop_by(quit_server, quitters)
    await server.serve(sockets=[listener])


@contextmanager
def in_background(
    name: str,
    serve: Callable[[Callable[[Told], None], Quitters], Coroutine[Any, Any, None]],
) -> Iterator[Told]:
    """Run a server in a thread while the block runs; raises what it raises.

    Args:
        name: Of the thread.
        serve: Serves until told to stop. It calls its first argument once it answers, and adds to
            the second what stops it (``_stop_by``).

    Yields:
        Yields:

    Raises:
        Unreachable: ``serve`` returned before it answered.
    """
    started = threading.Event()
    answers: list[Told] = []
    quitters: Quitters = []
    failures: list[BaseException] = []

    def ready(told: Told) -> None:
        answers.append(told)
        started.set()

    def run() -> None:
        try:
            asyncio.run(serve(ready, quitters))
        except BaseException as error:  # handed to the caller below
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    started.wait()
    try:
        if answers:
            yield answers[0]
    finally:
        for quit_server in quitters:
            with suppress(RuntimeError):  # the loop has already ended
                quit_server()
        thread.join()
    if failures:
        raise failures[0]
    if not answers:
        raise Unreachable(f"the {name} ended before it answered", check="server")
