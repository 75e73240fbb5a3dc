"""Memory that a training state is copied to; reused, because fresh memory costs more than the copy.

Training loses the time of the copy. What seals reads the copy while training changes the original.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sealtrain.training.checkpoints.statefile import bytes_of

if TYPE_CHECKING:
    import torch


class StagingMemory:
    """The staging memory of one rank, for one kind of blob."""

    def __init__(self, memory: Callable[[int], memoryview | None]) -> None:
        """Hold nothing yet.

        Args:
            memory: Gives memory of at least that size which the store seals from; ``None`` where
                any will do.
        """
        self._given = memory
        self._memory: torch.Tensor | None = None

    def room(self, size: int, growth: int = 0) -> torch.Tensor:
        """The first ``size`` bytes, uint8.

        Args:
            size: Bytes.
            growth: Bytes more that new memory has room for.
        """
        if self._memory is None or self._memory.numel() < size:
            self._memory = None
            self._memory = _memory_of(self._given, size + growth)
        return self._memory[:size]

    def copy(
        self,
        tensors: Sequence[tuple[int, torch.Tensor]],
        size: int,
        *,
        header: bytes = b"",
        growth: int = 0,
    ) -> memoryview:
        """Copy the header, and every tensor to its offset behind it; returns the bytes of all.

        Args:
            tensors: Offsets after the header, and tensors.
            size: Bytes of all tensors.
            header: The first bytes.
            growth: As ``room``.
        """
        import torch

        head = len(header)
        memory = self.room(head + size, growth)
        bytes_there = bytes_of(memory)
        bytes_there[:head] = header
        for offset, tensor in tensors:
            start = head + offset
            end = start + tensor.numel() * tensor.element_size()
            if tensor.device.type == "cpu" and tensor.is_contiguous():
                # torch would split this among threads that compete with training.
                bytes_there[start:end] = bytes_of(tensor)
                continue
            place = memory[start:end].view(tensor.dtype).view(tensor.shape)
            place.copy_(tensor.detach(), non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return bytes_there

    def free(self) -> None:
        """Let the memory go."""
        self._memory = None


def _memory_of(given: Callable[[int], memoryview | None], size: int) -> torch.Tensor:
    """Memory that the store seals from, or else any; page-locked where a GPU copies into it."""
    import torch

    memory, locked = given(size), torch.cuda.is_available()
    if memory is None:
        return torch.empty(size, dtype=torch.uint8, pin_memory=locked)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    if locked:
        runtime: Any = torch.cuda
        runtime.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel(), 0)
    return tensor
