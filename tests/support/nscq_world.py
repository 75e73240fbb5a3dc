"""NVIDIA's library for NVSwitches, played by a shared object with its shapes (``nscq.c``)."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from programs import need

from sealtrain_rehearsal.simulator.gpu import SimulatedGpus

OPENING, COUNT, ARCH, REPORT, CHAIN, NAME = range(6)
LS10 = 2
_ANSWER = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_uint8),
    ctypes.POINTER(ctypes.c_uint8),
    ctypes.c_uint32,
)


class FakeNscq:
    """The library over simulated switches. ``answers`` replaces the answer to a kind of question.

    An answer is octets, or a number: a count, a family, a code.
    """

    def __init__(self, folder: Path, gpus: SimulatedGpus) -> None:
        compiler = need("compiler")["cc"]
        self.path = folder / "libnvidia-nscq.so.2"
        source = Path(__file__).with_name("nscq.c")
        subprocess.run(
            [compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", self.path, source], check=True
        )
        self.gpus = gpus
        self.answers: dict[int, Callable[[int, bytes], Any]] = {}
        self._library = ctypes.CDLL(str(self.path))
        self._answer = _ANSWER(self._tell)
        self._library.fake_answer(self._answer)

    @property
    def open_sessions(self) -> int:
        """Sessions that nobody has ended."""
        return int(self._library.fake_open_sessions())

    def _tell(self, what: int, device: int, nonce: Any, place: Any, room: int) -> int:
        asked = bytes(nonce[:32])
        found = self.answers.get(what, self._honest(what))(device, asked)
        if isinstance(found, bytes):
            ctypes.memmove(place, found, min(len(found), room))
            return len(found)
        return int(found)

    def _honest(self, what: int) -> Callable[[int, bytes], Any]:
        def switch(device: int, nonce: bytes) -> Any:
            shown = self.gpus.evidence(nonce).devices
            return [text for text in shown if text.kind == "switch"][device]

        return {
            COUNT: lambda device, nonce: self.gpus.switches,
            ARCH: lambda device, nonce: LS10,
            REPORT: lambda device, nonce: switch(device, nonce).report_bytes,
            CHAIN: lambda device, nonce: switch(device, nonce).certificate_chain.encode(),
        }.get(what, lambda device, nonce: 0)
