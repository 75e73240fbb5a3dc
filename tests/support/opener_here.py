"""An opener in the test's own process, for keepers whose workload a test plays."""

from __future__ import annotations

import os

from sealtrain.guest.sandbox.landlock import KernelBorder
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.guest.workload.opening import SlotFiller
from sealtrain.training.data.sources import Source
from sealtrain.training.errors import DecryptionLost


class OpenerHere:
    """Lays batches as the opener does, in this process."""

    status: int | None = None

    def __init__(self, sources: list[Source], columns: list[str]) -> None:
        self._filler = SlotFiller(sources, columns)
        self._memory: dict[int, SharedMemory] = {}

    def weaker(self, held: KernelBorder) -> KernelBorder:
        return held

    def take_slots(self, rank: int, descriptor: int, slot_bytes: int) -> None:
        self._memory[rank] = SharedMemory.receive(os.dup(descriptor))

    def loss_error(self) -> DecryptionLost:
        return DecryptionLost("gone", check="opener")

    def lay(self, rank: int, *, slot_bytes: int, **wanted: int) -> int:
        return self._filler.lay(self._memory[rank], slot_bytes, **wanted)

    def end(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        self._memory.clear()
