"""Buffers of a wire, for pieces that are reduced once all of them are there."""

from __future__ import annotations

from typing import Any

import numpy as np

from sealtrain_nodes.wire.frames import FRAME_BYTES


class FrameBuffers:
    """Buffers of one frame each for what is received and then reduced, used again and again."""

    def __init__(self) -> None:
        self._free: list[np.ndarray[Any, np.dtype[np.uint8]]] = []

    def take(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A buffer."""
        return self._free.pop() if self._free else np.empty(FRAME_BYTES, np.uint8)

    def give(self, buffer: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Give it back."""
        self._free.append(buffer)
