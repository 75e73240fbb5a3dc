"""What the workload of a run under pads holds beside its channel, and where that leads."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from channel_world import acceptance, guest
from collecting import COLLECTING
from polling import wait_until

from sealtrain.base.hostport import write_host_and_port
from sealtrain.guest.sandbox.seccomp import refuse_calls
from sealtrain.guest.workload.channel import (
    AskingEnd,
    ChannelEnds,
    Misused,
    Reply,
    answer_all,
)
from sealtrain.guest.workload.fork import WorkloadProcess, keep_orphans
from sealtrain.guest.workload.messages import ConnectHelper, WorkloadQuestion
from sealtrain.recipe.collaborations.pads import Pads
from sealtrain_together.pads.guest.keeper import KeptPads

if not COLLECTING:
    from pads_world import accelerating, dealing, random_matrix

    from sealtrain_together.pads.guest.workload import PassedMachines

pytestmark = pytest.mark.claim("C610")
_SIZE = 1 << 16
_UNSPECIFIED = struct.pack("=H14x", socket.AF_UNSPEC)


class Found:
    """Memory in which a forked process says what it found."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _SIZE)

    def say(self, found: dict[str, Any]) -> None:
        body = json.dumps(found).encode()
        self._map[4 : 4 + len(body)] = body
        self._map[:4] = struct.pack("I", len(body))

    @property
    def length(self) -> int:
        return int(struct.unpack("I", self._map[:4])[0])

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._map[4 : 4 + self.length])
        return found


def descriptors() -> list[str]:
    places = []
    for place in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # of the listing itself
            places.append(str(place.readlink()))
    return sorted(places)


def peers() -> list[str]:
    """Where the connections of this process lead over a network."""
    found = []
    for place in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(place.readlink()).startswith("socket:"):
                copy = socket.socket(fileno=os.dup(int(place.name)))
                with copy:
                    if copy.family == socket.AF_INET:
                        found.append(write_host_and_port(*copy.getpeername()[:2]))
    return sorted(found)


def led_elsewhere(connection: int, elsewhere: tuple[str, int]) -> dict[str, int]:
    """Errors of the kernel for what would lead a passed connection to another machine."""
    libc = ctypes.CDLL(None, use_errno=True)
    address = struct.pack(
        "=H2s4s8x", socket.AF_INET, elsewhere[1].to_bytes(2, "big"), socket.inet_aton(elsewhere[0])
    )

    def error(call: str, *words: Any) -> int:
        return 0 if getattr(libc, call)(*words) != -1 else ctypes.get_errno()

    return {
        "let go": error("connect", connection, _UNSPECIFIED, len(_UNSPECIFIED)),
        "connected": error("connect", connection, address, len(address)),
        "made": error("socket", socket.AF_INET, socket.SOCK_STREAM, 0),
        "accepted": error("accept", connection, None, None),
    }


def workload(found: Found, elsewhere: tuple[str, int]) -> Callable[[Sequence[ChannelEnds]], None]:
    matrix = random_matrix()

    def live(ends: Sequence[ChannelEnds]) -> None:
        if not refuse_calls(network=False, unix=False):
            found.say({"bound": False})
            return
        control = AskingEnd(ends[0].control)
        run: Any = SimpleNamespace(control=control, memory=Path("/dev/shm"))  # noqa: S108
        machines = PassedMachines(run, seconds=10.0)
        before = descriptors()
        accelerator, dealer = machines.accelerator(), machines.dealer()
        held, ways = descriptors(), peers()
        dealer.begin()
        for machine in (accelerator, dealer):
            machine.admit(matrix)  # it tells the matrix's digest
        connections = [number for number in range(256) if is_internet(number)]
        found.say(
            {
                "bound": True,
                "before": before,
                "held": held,
                "peers": ways,
                "led": [led_elsewhere(number, elsewhere) for number in connections],
                "then": peers(),
            }
        )

    return live


def is_internet(number: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
        return copy.family == socket.AF_INET
    return False


class Kept:
    """As much of a run as the keeper's part asks for."""

    def __init__(self, accelerator: tuple[str, int], dealer: tuple[str, int]) -> None:
        how = Pads(kind="pads", pads="dealer", policy="policy.yaml")
        self.recipe = SimpleNamespace(collaboration=how)
        self.settings = SimpleNamespace(
            accelerator=write_host_and_port(*accelerator), dealer=write_host_and_port(*dealer)
        )
        self.run_id, self.lease = "ab" * 16, SimpleNamespace(require=lambda: None)
        accepts = acceptance()
        self.collect, self.policy = guest().collect, accepts.policy
        self.compose_hash, self.now = accepts.compose_hash, accepts.clock


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, Any]]:
    """What a forked workload found, with where its machines are and what stayed here."""
    found = Found()
    with accelerating() as accelerator, dealing() as dealer:
        keeping = KeptPads(Kept(accelerator, dealer), seconds=10.0)  # type: ignore[arg-type]
        process = WorkloadProcess(workload(found, dealer), ranks=1, kept=())
        end = process.ends[0].control
        serving = threading.Thread(target=answer_all, args=("control", end, keeping.answer))
        serving.start()
        try:
            wait_until(lambda: found.length > 0 or process.status is not None)
            kept = peers()
        finally:
            process.end()
            serving.join()
            process.close()
            keep_orphans(kept=False)
        result = found.read()
        if not result["bound"]:
            pytest.skip("this kernel has no filter of system calls")
        machines = sorted(write_host_and_port(*place) for place in (accelerator, dealer))
        yield result | {"machines": machines, "kept": kept}


def test_it_holds_its_channel_and_one_connection_to_each_machine(told: dict[str, Any]) -> None:
    assert told["peers"] == told["machines"]
    sockets = [place for place in told["before"] if place.startswith("socket:")]
    assert len(sockets) == 3
    passed = [place for place in told["held"] if place not in told["before"]]
    assert len(passed) == 2
    assert all(place.startswith("socket:") for place in passed)
    assert {place for place in told["held"] if not place.startswith("socket:")} == {os.devnull}


def test_what_it_was_passed_leads_to_no_other_machine(told: dict[str, Any]) -> None:
    assert len(told["led"]) == 2
    for errors in told["led"]:
        assert set(errors.values()) == {errno.EPERM}
    assert told["then"] == told["machines"]


@pytest.mark.claim("C611")
def test_its_keeper_keeps_no_connection_that_it_passed(told: dict[str, Any]) -> None:
    assert not set(told["machines"]) & set(told["kept"])


@pytest.mark.claim("C611")
def test_a_second_connection_is_not_passed() -> None:
    def live(ends: Sequence[ChannelEnds]) -> None:
        control = AskingEnd(ends[0].control)
        for _ in range(2):
            control.ask(ConnectHelper(name="accelerator"))

    asked: list[WorkloadQuestion] = []
    with accelerating() as accelerator:
        keeping = KeptPads(Kept(accelerator, accelerator), seconds=10.0)  # type: ignore[arg-type]

        def answer(question: WorkloadQuestion) -> Reply:
            asked.append(question)
            return keeping.answer(question)

        process = WorkloadProcess(live, ranks=1, kept=())
        try:
            with pytest.raises(Misused):
                answer_all("control", process.ends[0].control, answer)
        finally:
            process.end()
            process.close()
            keep_orphans(kept=False)
    assert len(asked) == 2


@pytest.mark.claim("C611")
def test_its_keeper_needs_no_library_that_trains() -> None:
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, sealtrain.guest.keeper, sealtrain_together.pads.guest.keeper;"
            "print({'torch', 'transformers', 'numpy'} & set(sys.modules))",
        ],
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    )
    assert said.stdout.strip() == "set()"
