"""Kernels that give the same bits each time, so that a resumed training is the one it goes on with.

On a CUDA device PyTorch is only asked to warn, for models have operations of which no such kernel
exists: sampling by probability mass, to name one. But asked so, its attention
(``scaled_dot_product_attention``) goes backwards by kernels that add in the order in which threads
come, although it has others that do not: it takes cuDNN's, and of its own those that are not strict
(``aten/src/ATen/native/transformers/cuda``: ``sdp_utils.cpp``, ``attention_backward.cu``). So
cuDNN's is switched off, and while a fused attention goes backwards, and at no other time, PyTorch
is told to refuse. Attention that is compiled, or of another library, is not reached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

__all__ = ["deterministic"]

_ATTENTION: Final = "scaled_dot_product_attention"
_FUSED: Final = "ScaledDotProduct"
_CUT: Final = "SliceBackward"
"""What stands behind fused attention whose heads were padded."""


@contextmanager
def deterministic(*, lenient: bool | None = None) -> Iterator[None]:
    """Only kernels that give the same bits each time.

    Args:
        lenient: Let operations run that have none; ``None`` where there is a CUDA device.
    """
    import torch

    lenient = torch.cuda.is_available() if lenient is None else lenient
    _choice.enter(lenient)
    try:
        yield
    finally:
        _choice.leave(lenient)


class _Choice:
    """What kernels PyTorch may take: one choice for all trainings, and threads, of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[bool] = []
        self._strict = 0
        self._before = ExitStack()

    def enter(self, lenient: bool) -> None:
        with self._lock:
            if not self._open:
                self._before = _before()
            self._open.append(lenient)
            self._choose()

    def leave(self, lenient: bool) -> None:
        with self._lock:
            self._open.remove(lenient)
            if self._open:
                self._choose()
            else:
                self._strict = 0  # a backward pass that failed has begun and not ended
                self._before.close()

    @property
    def warns(self) -> bool:
        return bool(self._open) and self._open[-1]

    def begin_strictness(self) -> None:
        with self._lock:
            self._strict += 1
            self._choose()

    def end_strictness(self) -> None:
        with self._lock:
            self._strict = max(0, self._strict - 1)
            self._choose()

    def _choose(self) -> None:
        import torch

        if self._open:
            warns = self.warns and not self._strict
            torch.use_deterministic_algorithms(True, warn_only=warns)


_choice: Final = _Choice()


def _before() -> ExitStack:
    """Change what stays changed while any training goes on; closed, all is as it was."""
    import torch

    stack = ExitStack()
    functional: Any = torch.nn.functional
    settings: Any = torch.utils.deterministic
    fused: Any = torch.backends.cuda
    stack.callback(
        torch.use_deterministic_algorithms,
        torch.are_deterministic_algorithms_enabled(),
        warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    for place, name, value in (
        # Uninitialised memory is never read by these trainers; filling it costs time for nothing.
        (settings, "fill_uninitialized_memory", False),
        (functional, _ATTENTION, _strict(getattr(functional, _ATTENTION))),
    ):
        stack.callback(setattr, place, name, getattr(place, name))
        setattr(place, name, value)
    stack.callback(fused.enable_cudnn_sdp, fused.cudnn_sdp_enabled())
    fused.enable_cudnn_sdp(False)
    return stack


def _strict(attention: Callable[..., Any]) -> Callable[..., Any]:
    """This attention; where PyTorch is asked to warn alone, its backward pass is strict."""
    import torch

    def strict(*tensors: Any, **named: Any) -> Any:
        attended = attention(*tensors, **named)
        if torch.compiler.is_compiling() or not _choice.warns:
            return attended
        node = attended.grad_fn
        if node is not None and node.name().startswith(_CUT):
            node = node.next_functions[0][0]
        if node is not None and node.name().startswith(_FUSED):
            node.register_prehook(lambda _: _choice.begin_strictness())
            node.register_hook(lambda *_: _choice.end_strictness())
        return attended

    return strict
