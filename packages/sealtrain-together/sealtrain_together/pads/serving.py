"""An accelerator, here or as a process of its own.

    with start_accelerator(device="cuda") as there:
        accelerator = RemoteAccelerator(there.host, there.port)

It holds matrices that anybody may know, each as long as the connection that brought it.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from sealtrain.base.byte_budget import ByteBudget
from sealtrain.base.processes import end_with_starter
from sealtrain.errors import AcceleratorUnreachable, DataInvalid, SealtrainError
from sealtrain.training.errors import ChannelCut, PeerUnreachable
from sealtrain_together.channel.ports import Caller, listening
from sealtrain_together.pads import wire
from sealtrain_together.pads.multiplying import Device, Limits, Matrices
from sealtrain_together.pads.tensors import elements, expect_rows, octets

LOOPBACK: Final = "127.0.0.1"
START_SECONDS: Final = 120.0
END_SECONDS: Final = 10.0
MAX_LINE: Final = 1 << 14


class Multiplier:
    """The accelerator's side of each connection.

    Args:
        device: Multiplies.
        limits: What it takes.
    """

    def __init__(self, device: Device, limits: Limits) -> None:
        self._device = device
        self._limits = limits
        self._room = ByteBudget(limits.matrix_bytes)

    def serve(self, sock: socket.socket) -> None:
        """Answer a guest until it ends the connection. The first refusal ends it, too.

        Raises:
            SealtrainError: What was refused, or the guest is gone in the middle.
        """
        frames = wire.Frames(sock, seconds=self._limits.frame_seconds)
        with Matrices(self._room, self._device.name) as matrices, torch.no_grad():
            caller = sock if isinstance(sock, Caller) else None
            hold = (lambda _size: None) if caller is None else caller.hold
            # Whoever only connects has as long as for a frame; whoever was answered may pause.
            idle = self._limits.frame_seconds
            try:
                while (asked := frames.receive(idle_seconds=idle, hold=hold)) is not None:
                    kind, body = asked
                    answer = self._answer(kind, body, matrices)
                    if caller is not None:
                        # Before the guest can know, and another caller ask for its place.
                        caller.mark_served()
                    frames.send(kind | wire.ANSWER, answer)
                    hold(0)
                    idle = self._limits.idle_seconds
            except (PeerUnreachable, ChannelCut):
                raise
            except SealtrainError as error:
                _refuse(frames, error.message)
                raise
            except Exception as error:
                _refuse(frames, f"it failed: {type(error).__name__}")
                raise

    def multiply(self, asked: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """A product."""
        return self._device.product(asked, factor)

    def _answer(self, kind: int, body: memoryview, matrices: Matrices) -> bytes | memoryview:
        if kind == wire.MATRIX:
            values = wire.read_matrix(body)
            matrices.reserve(values.numel())
            return matrices.keep(values)
        if kind == wire.PRODUCT:
            return self._product(body, matrices)
        raise DataInvalid("an accelerator does not answer this", got=f"frame {kind:#04x}")

    def _product(self, body: memoryview, matrices: Matrices) -> memoryview:
        digest, direction, rows, offset = wire.read_product(body)
        widths = matrices.find(digest).widths(direction)
        expect_rows(rows, max(widths))
        asked = elements(body, rows, widths[0], offset=offset)
        return octets(self.multiply(asked, matrices.factor(digest, direction)))


def _refuse(frames: wire.Frames, why: str) -> None:
    with suppress(PeerUnreachable):
        frames.send(wire.REFUSED, why.encode()[: wire.MAX_REFUSAL])


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Where an accelerator listens.

    Attributes:
        host: Address.
        port: Port.
        backend: How it multiplies.
        process: Its process id.
    """

    host: str
    port: int
    backend: str
    process: int


@contextmanager
def start_accelerator(
    *,
    device: str = "cpu",
    exact: str = "fastest",
    limits: Limits | None = None,
    threads: int = 1,
) -> Iterator[Served]:
    """Start an accelerator as a process of its own, and end it with the block.

    The kernel ends it with the thread that started it, too.

    Args:
        device: Where it multiplies: ``cpu``, ``cuda``.
        exact: Back-end, ``exact.backend``.
        limits: What it takes.
        threads: It multiplies with, on the CPU.

    Raises:
        AcceleratorUnreachable: It did not start.
    """
    settings = {"device": device, "exact": exact, "threads": threads}
    limit = asdict(limits or Limits())
    # A fresh interpreter: a forked one would share the guest's memory, secrets included.
    work = subprocess.Popen(  # noqa: S603  # this interpreter, our own module
        [sys.executable, "-m", "sealtrain_together.pads", json.dumps(settings | {"limits": limit})],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=end_with_starter(),
    )
    try:
        told = _read_address(work)
        yield Served(host=LOOPBACK, port=told["port"], backend=told["backend"], process=work.pid)
    finally:
        work.terminate()
        with suppress(subprocess.TimeoutExpired):
            work.wait(END_SECONDS)
        work.kill()
        work.wait()
        if work.stdout is not None:
            work.stdout.close()


def _read_address(work: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The address that a started accelerator prints within its time to start."""
    output = work.stdout
    if output is None or not select.select([output], [], [], START_SECONDS)[0]:
        raise AcceleratorUnreachable("the accelerator did not start in time")
    line = output.readline(MAX_LINE)
    told = json.loads(line) if line.endswith(b"\n") else {"refused": "it ended while it started"}
    if "refused" in told:
        raise AcceleratorUnreachable(f"the accelerator did not start: {told['refused']}")
    return dict(told)


def run(settings: dict[str, Any], *, say: Callable[[bytes], object]) -> None:
    """Be an accelerator until a signal ends this process.

    Args:
        settings: As ``start_accelerator`` gives them.
        say: Takes one line: where it listens.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started it
    torch.set_num_threads(settings["threads"])
    try:
        device = Device(settings["device"], settings["exact"])
    except (SealtrainError, RuntimeError, AssertionError) as error:  # torch asserts, too
        say(json.dumps({"refused": f"{type(error).__name__} on {settings['device']}"}).encode())
        return
    limits = Limits(**settings["limits"])
    work = Multiplier(device, limits)
    with listening(
        (LOOPBACK, 0), work.serve, what="accelerator", connections=limits.connections
    ) as (_, port):
        say(json.dumps({"port": port, "backend": device.backend}).encode())
        threading.Event().wait()
