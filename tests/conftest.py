"""Fixtures every test may use."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import collecting
import forked
import hanging
import keeping
import logs
import programs
import pytest
import warm_places

if TYPE_CHECKING:
    from postgres_server import Server
    from release_world import ReleaseWorld

    from sealtrain.ledger.postgres import Postgres

# One thread for each worker and for all that it starts: threads of OpenMP spin where they wait for
# each other, and two workers on two cores spend half of their time so. Read when torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Whether there is a GPU is asked of NVML: a process that asked CUDA itself forks no ranks that can.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
# Arrow's allocator would start a thread, in a process from which workers are forked.
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")

_MANY_MODULES = 300
_frozen = 0

_RECURSION_LIMIT = sys.getrecursionlimit()

REPOSITORY = Path(__file__).resolve().parent.parent

collecting.COLLECTING = True


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take ``--forks`` and ``hang_seconds``."""
    forked.add_option(parser)
    hanging.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Skip what needs a missing program, keep what a failing test printed and logged, end what
    hangs, share warm processes, and watch collection.

    A plugin may have loaded some of the training stack before.
    """
    config.pluginmanager.register(programs)
    keeping.keep_output(config)
    logs.hold_logs(config)
    hanging.end_what_hangs(config)
    warm_places.hold_places(config)
    forked.fork_workers(config)
    config.stash[collecting.LOADED] = dict.fromkeys(collecting.stack_loaded(), "before collection")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Note which file loaded a package that collection should not load."""
    report = yield
    for package in collecting.stack_loaded():
        collector.config.stash[collecting.LOADED].setdefault(package, collector.nodeid)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected: there is none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Have what is imported from now on run whole."""
    collecting.COLLECTING = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Load what the test's file deferred, and give the test the interpreter's recursion limit.

    py-evm's libraries raise the limit to 100,000 where they are imported. Nested JSON overflows the
    stack there before the limit is reached, and the worker dies instead of seeing
    ``RecursionError``. A process of sealtrain has the interpreter's.
    """
    if isinstance(item, pytest.Function):
        collecting.load_deferred(item.module)
    sys.setrecursionlimit(_RECURSION_LIMIT)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Take what the training libraries hold out of the garbage collector's view.

    Trainers collect garbage at each start: a third of a second, where a million objects are seen.
    """
    global _frozen
    if len(sys.modules) > _frozen + _MANY_MODULES:
        gc.collect()
        gc.freeze()
        _frozen = len(sys.modules)


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """Third-party vectors and evidence, kept outside this repository."""
    folder = Path(os.environ.get("SEALTRAIN_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "vectors").is_dir():
        pytest.skip(f"no third-party vectors at {folder}: set SEALTRAIN_SHARED to their folder")
    return folder


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ReleaseWorld]:
    """A broker whose owners sealed, registered and approved; some files have another world."""
    from release_world import release_world

    with release_world(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server of this test process; every test makes its own database in it."""
    from postgres_server import postgres_server

    with postgres_server() as server:
        yield server


@pytest.fixture
def cuda() -> None:
    """Skip the test where no CUDA device is."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute in one thread: models that are too small to share out."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path | Postgres:
    """An empty place for a ledger or a broker's memory: a file, then a real server's database."""
    if request.param == "sqlite":
        return tmp_path / "database.sqlite"
    server: Server = request.getfixturevalue("postgres")
    return server.database()
