"""What a program starts beside itself does not outlive it, by ``kill -9`` too."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from polling import wait_until
from processes import below, runs

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.claim("C273")]

ACCELERATOR = """
import signal
from sealtrain_together.pads.serving import start_accelerator

with start_accelerator(exact="float64") as there:
    print(there.process, flush=True)
    signal.pause()
"""
FLOWER = """
import signal, sys
from pathlib import Path
from sealtrain_together.federated.flower import Flower

folder = Path(sys.argv[1])
with Flower(folder / "flower") as flower:
    flower.open_link()
    flower.add_node("hospital", folder / "relay.sock")
    flower.watch()
    print("started", flush=True)
    signal.pause()
"""


@contextmanager
def started(program: str, *words: str) -> Iterator[tuple[psutil.Process, list[psutil.Process]]]:
    """A program that said that it is ready; a list of others that are ended, too."""
    made = subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    process = psutil.Process(made.pid)
    beside: list[psutil.Process] = []
    try:
        assert made.stdout is not None
        assert made.stdout.readline()
        yield process, beside
    finally:
        for other in {*beside, *below(process)}:
            if runs(other):
                other.kill()
        made.kill()
        made.communicate()


def test_an_accelerator_ends_with_what_started_it() -> None:
    with started(ACCELERATOR) as (process, beside):
        beside += below(process)
        assert len(beside) == 1
        process.kill()
        wait_until(lambda: not any(runs(process) for process in beside), 20)


@pytest.mark.flower
@pytest.mark.nightly
def test_flowers_processes_and_theirs_end_with_what_started_them() -> None:
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    with (
        tempfile.TemporaryDirectory(prefix="fed-") as folder,
        started(FLOWER, folder) as (process, beside),
    ):
        assert len(process.children()) == 2
        # SuperLink and SuperNode start a process each, besides short ones as they begin.
        wait_until(lambda: len(below(process)) >= 4)
        beside += below(process)
        process.kill()
        wait_until(lambda: not any(runs(process) for process in beside), 20)
