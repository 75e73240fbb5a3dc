"""Play tests in processes that are forked from one that has collected and imported: ``--forks N``.

Workers of pytest-xdist collect every file and import every library each for itself. Here pytest
collects once, imports what most tests import, and forks its workers from there. A worker plays one
file after the other, in the order of the command line, and sends its reports to pytest's own
process, which counts and prints them. If a worker dies, the test that it played has failed, and
another worker, forked from the same process, goes on after that test.

Only for Linux: systems elsewhere have libraries that no process may use after a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import random
import selectors
import signal
import sys
import threading
import types
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.terminal import TerminalReporter
from _pytest.unraisableexception import collect_unraisable
from pydantic import BaseModel

STACK = (
    "fastapi",
    "sealtrain.broker.serve",
    "sealtrain.guest.run",
    "sealtrain.training.run",
    *(
        f"sealtrain.training.phases.{phase}"
        for phase in ("classify", "cpt", "dpo", "embed", "evaluate", "reward", "rlhf", "sft")
    ),
)
"""What most files import after collection; no library here has a thread before it is used."""
_GRACE_S = 30.0


def add_option(parser: pytest.Parser) -> None:
    """Let the command line say how many workers are forked."""
    parser.addoption("--forks", type=int, default=0, help="workers forked after collection")


def fork_workers(config: pytest.Config) -> None:
    """Have forked workers play, where the command line asks for them."""
    if count := config.getoption("--forks"):
        if getattr(config.option, "numprocesses", None):
            raise pytest.UsageError("--forks and -n exclude each other")
        config.pluginmanager.register(Forks(config, count), "forks")


@dataclass(slots=True, kw_only=True)
class _Worker:
    """A worker as pytest's own process sees it.

    Attributes:
        number: Its number; temporary folders are named by it.
        pid: Its process.
        link: What it says.
        ends: A descriptor that is readable when the process has ended.
        left: The items that it was given and has not ended, first the one that it plays.
    """

    number: int
    pid: int
    link: Connection
    ends: int
    left: deque[int] = field(default_factory=deque)


class Forks:
    """A plugin of pytest.

    Args:
        config: Pytest's configuration.
        count: How many workers there are.
        stack: Modules to import before the first worker is forked.
    """

    def __init__(self, config: pytest.Config, count: int, stack: Sequence[str] = STACK) -> None:
        self._config = config
        self._count = count
        self._stack = stack
        self._made = 0
        self._workers: list[_Worker] = []
        self._files: deque[list[int]] = deque()
        self._base = Path()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Play everything that was collected; errors of collection are for pytest."""
        if session.testsfailed or session.config.option.collectonly or not session.items:
            return None
        self._files = deque(files_of(session.items))
        self._base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        gc.disable()  # what is imported stays
        with warnings.catch_warnings():
            # What a library says of itself as it is loaded is no test's.
            warnings.simplefilter("ignore")
            for name in self._stack:
                with contextlib.suppress(ImportError):  # the tests that need it say so
                    importlib.import_module(name)
        complete_models()
        gc.freeze()
        gc.enable()
        with selectors.DefaultSelector() as waiting:
            try:
                for _ in range(min(self._count, len(self._files))):
                    self._begin(session, waiting, deque())
                while self._workers:
                    for key, _events in waiting.select():
                        self._hear(session, waiting, key.data)
                    if session.shouldfail:
                        raise session.Failed(session.shouldfail)
                    if session.shouldstop:
                        raise session.Interrupted(session.shouldstop)
            finally:
                self._end()
        return True

    # --- In pytest's own process ------------------------------------------------------------------

    def _begin(
        self, session: pytest.Session, waiting: selectors.BaseSelector, left: deque[int]
    ) -> None:
        """Fork a worker that first plays ``left``."""
        ours, its = Pipe()
        self._made += 1
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python warns of threads. What has one here is a library's own, asleep.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            for other in self._workers:
                other.link.close()
                os.close(other.ends)
            waiting.close()
            ours.close()
            _play(session, its, self._base / f"forked-{self._made}")
        its.close()
        worker = _Worker(
            number=self._made, pid=pid, link=ours, ends=os.pidfd_open(pid), left=deque(left)
        )
        self._workers.append(worker)
        waiting.register(ours, selectors.EVENT_READ, worker)
        waiting.register(worker.ends, selectors.EVENT_READ, worker)
        ours.send(list(left) or self._next_file(worker))

    def _next_file(self, worker: _Worker) -> list[int]:
        items = self._files.popleft() if self._files else []
        worker.left.extend(items)
        return items

    def _hear(
        self, session: pytest.Session, waiting: selectors.BaseSelector, worker: _Worker
    ) -> None:
        """Take one message of a worker, or its end."""
        if worker not in self._workers:
            return
        kind, given = "gone", None
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
            if worker.link.poll():  # if not, its process ended, and nothing is left to read
                kind, given = worker.link.recv()
        hook = self._config.hook
        match kind:
            case "next":
                worker.link.send(self._next_file(worker))
            case "report":
                report = hook.pytest_report_from_serializable(config=self._config, data=given)
                hook.pytest_runtest_logreport(report=report)
            case "ended":
                item = session.items[worker.left.popleft()]
                hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            case "gone":
                self._bury(session, waiting, worker)
            case "warning":
                text, name, file, line, when, nodeid = given
                shown = warnings.WarningMessage(f"{name}: {text}", UserWarning, file, line)
                hook.pytest_warning_recorded.call_historic(
                    kwargs={
                        "warning_message": shown,
                        "when": when,
                        "nodeid": nodeid,
                        "location": None,
                    }
                )

    def _bury(
        self, session: pytest.Session, waiting: selectors.BaseSelector, worker: _Worker
    ) -> None:
        """Note how a worker ended; if it had work left, fork another for it."""
        waiting.unregister(worker.link)
        waiting.unregister(worker.ends)
        worker.link.close()
        os.close(worker.ends)
        self._workers.remove(worker)
        _, status = os.waitpid(worker.pid, 0)
        if not worker.left and status == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        item = session.items[worker.left.popleft()] if worker.left else None
        nodeid = item.nodeid if item else f"forked worker {worker.number}"
        location = item.location if item else (nodeid, None, nodeid)
        report = pytest.TestReport(
            nodeid=nodeid,
            location=location,
            keywords={},
            outcome="failed",
            longrepr=f"the worker ended with {code} while it played {nodeid}",
            when="call",
        )
        self._config.hook.pytest_runtest_logreport(report=report)
        if worker.left or self._files:
            self._begin(session, waiting, worker.left)

    def _end(self) -> None:
        """End the workers that still run, after an interruption.

        A worker that was only just forked can miss the signal: it ends when it asks for more.
        """
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGINT)
            worker.link.close()
        for worker in self._workers:
            with selectors.DefaultSelector() as waiting:
                waiting.register(worker.ends, selectors.EVENT_READ)
                if not waiting.select(_GRACE_S):
                    os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)
            os.close(worker.ends)
        self._workers.clear()


def complete_models() -> None:
    """Build the models of our documents, which every worker would otherwise build for itself."""
    left = BaseModel.__subclasses__()
    while left:
        model = left.pop()
        left.extend(model.__subclasses__())
        if model.__module__.startswith("sealtrain"):
            model.model_rebuild(raise_errors=False)


def files_of(items: Sequence[pytest.Item]) -> Iterator[list[int]]:
    """Numbers of the items of each file, in their order."""
    files: dict[Path, list[int]] = {}
    for number, item in enumerate(items):
        files.setdefault(item.path, []).append(number)
    yield from files.values()


# --- In a worker ----------------------------------------------------------------------------------


class _Silent(TerminalReporter):
    """Prints nothing of a test's course; other plugins print their traces by it."""

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None: ...

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None: ...

    def pytest_runtest_logfinish(self, nodeid: str) -> None: ...


class _Teller:
    """A plugin of pytest in a worker: says what happens. Argument: where pytest's process hears."""

    def __init__(self, config: pytest.Config, link: Connection) -> None:
        self._config = config
        self._link = link
        self._process = os.getpid()
        self.begun = False  # before, pytest repeats the warnings of collection
        self._lock = threading.Lock()

    def say(self, kind: str, given: Any = None) -> None:
        """Send one message; children that a test forks say nothing."""
        if self.begun and os.getpid() == self._process:
            with self._lock:
                self._link.send((kind, given))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report."""
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self.say("report", data)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str
    ) -> None:
        """Send a warning that was no error."""
        shown = warning_message
        text, name = str(shown.message), shown.category.__name__
        self.say("warning", (text, name, shown.filename, shown.lineno, when, nodeid))


def _play(session: pytest.Session, link: Connection, folder: Path) -> NoReturn:
    """Play files until pytest's process has no more, and end this process."""
    code = 1
    try:
        _become_worker(session, link, folder)
        teller = _Teller(session.config, link)
        session.config.pluginmanager.register(teller, "forked-worker")
        teller.begun = True
        items: deque[int] = deque(link.recv())
        while items:
            item = session.items[items.popleft()]
            if not items:  # what comes next decides which fixtures end with this item
                teller.say("next")
                items.extend(link.recv())
            follower = session.items[items[0]] if items else None
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=follower)
            teller.say("ended")
            if follower is None or follower.path != item.path:
                _forget_what_stays()
        gc.collect()
        collect_unraisable(session.config)  # raises, where warnings are errors
        code = 0
    except BaseException:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.excepthook(*sys.exc_info())
        session._setupstate.teardown_exact(None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _forget_what_stays() -> None:
    """Take what a file left behind out of the garbage collector's view.

    Trainers collect garbage at each start: seconds, where a worker has played hundreds of files.
    """
    gc.collect()
    gc.freeze()


def _become_worker(session: pytest.Session, link: Connection, folder: Path) -> None:
    """Give up what is pytest's own process's: its printing, its streams, its temporary folder."""
    config, plugins = session.config, session.config.pluginmanager
    # A shell has what it starts in the background ignore it: ``_end`` would wait in vain.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("forks", "terminalreporter"):
        plugins.unregister(name=name)
    for plugin in list(plugins.get_plugins()):
        if type(plugin).__name__ in ("LogXML", "LFPlugin", "NFPlugin"):
            plugins.unregister(plugin)
    capture = plugins.get_plugin("capturemanager")
    if capture is not None and capture.is_globally_capturing():  # into a file that all would share
        capture.stop_global_capturing()
        with Path(os.devnull).open("wb") as nowhere:  # what tests print past the capture
            os.dup2(nowhere.fileno(), 1)
        capture.start_global_capturing()
        capture.suspend_global_capture()
    plugins.register(_Silent(config, sys.stderr), "terminalreporter")
    config.option.basetemp = str(folder)
    factory = type(config._tmp_path_factory)  # type: ignore[attr-defined]
    config._tmp_path_factory = factory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]
    # A process that a test starts by ``spawn`` would import pytest, as this process's program.
    sys.modules["__main__"] = types.ModuleType("__main__")
    random.seed()
