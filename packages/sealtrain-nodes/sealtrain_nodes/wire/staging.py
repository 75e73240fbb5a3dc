"""Tensors of a device on their way through host memory.

The wire reads and fills host memory. A tensor of an accelerator is copied there when its operation
begins, and back before the operation is over:

1. What the device had queued when the operation was issued (``mark``) is done before it is read or
   overwritten.
2. Copies go through pinned memory, on a stream of their own.
3. An operation is over once its copies have ended: its caller may use its tensors on any
   stream, and its host memory is used by nothing else before.

On a device of type ``cpu`` there are no streams; everything else is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch

from sealtrain.errors import UsageError

STAGED: Final = frozenset({"cuda"})
"""Types of devices whose tensors are copied to host memory."""

_CPU: Final = torch.device("cpu")


class Staging:
    """How tensors of one device come to host memory and back.

    Args:
        device: Of the tensors.
        copies: Whether they are copied; if not, the wire works in their own memory.
    """

    def __init__(self, device: torch.device, *, copies: bool = True) -> None:
        self.device = device
        self._copies = copies
        cuda: Any = torch.cuda  # without types
        self._stream: Any = None if device.type == "cpu" else cuda.Stream(device)

    def mark(self) -> Any:
        """What the device has queued by now. Called where an operation is issued."""
        if self._stream is None:
            return None
        cuda: Any = torch.cuda
        event = cuda.Event()
        event.record(cuda.current_stream(self.device))
        return event

    @contextmanager
    def copying(self, after: Any = None) -> Iterator[None]:
        """Copies within the block have ended when it ends.

        Args:
            after: A ``mark``; the copies begin when it is reached.
        """
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            yield
        self._stream.synchronize()

    def in_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The elements in a row in host memory: the tensor's own memory where it is one."""
        row = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
        if not self._copies:
            return row
        pinned = self._stream is not None
        room = torch.empty(row.shape, dtype=row.dtype, pin_memory=pinned)
        return room.copy_(row, non_blocking=pinned)

    def back(self, row: torch.Tensor, tensor: torch.Tensor) -> None:
        """Write the elements of a row back into their tensor."""
        tensor.copy_(row.view(tensor.shape), non_blocking=self._stream is not None)


_DIRECT: Final = Staging(_CPU, copies=False)


@cache
def _of_device(device: torch.device) -> Staging:
    return Staging(device)


def staging_of(tensors: Sequence[torch.Tensor], staged: Collection[str] = STAGED) -> Staging:
    """How the tensors of one operation come to host memory.

    Args:
        tensors: All of one device.
        staged: Types of devices whose tensors are copied.

    Raises:
        UsageError: They are of several devices, or of one that the wire does not serve.
    """
    devices = {tensor.device for tensor in tensors} or {_CPU}
    device = next(iter(devices))
    if len(devices) == 1 and device.type in staged:
        return _of_device(device)
    if devices == {_CPU}:
        return _DIRECT
    raise UsageError(
        "the group sends tensors of one device that it can copy to host memory",
        check="tensor",
        got=", ".join(sorted(map(str, devices))),
        expected=" or ".join(sorted({"cpu", *staged})),
    )
