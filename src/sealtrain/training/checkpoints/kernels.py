"""Kernels that give the same bits each time, so that a resumed training is the one it goes on with.

On a CUDA device PyTorch is only asked to warn, for models have operations of which no such kernel
exists: sampling by probability mass, to name one. But asked so, its attention
(``scaled_dot_product_attention``) goes backwards by kernels that add in the order in which threads
come, although it has others that do not: it takes cuDNN's, and of its own those that are not strict
(``aten/src/ATen/native/transformers/cuda``: ``sdp_utils.cpp``, ``attention_backward.cu``). So
cuDNN's is switched off, and while a fused attention goes backwards, and at no other time, PyTorch
is told to refuse.

That is one setting of the process. So while one thread is inside attention others are refused, too,
and what a checkpointed region computes again for it; a process has one training, and regions are
whole layers. Attention that is compiled, of another library, or that a library took by its name
before, is not reached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

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
    training = _choice.enter(lenient)
    try:
        yield
    finally:
        _choice.leave(training)


@dataclass(frozen=True, slots=True, eq=False)
class _Training:
    """One that goes on; told from another one by being itself."""

    lenient: bool


class _Choice:
    """What kernels PyTorch may take: one choice for all trainings, and threads, of the process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a forgotten training may be collected while it is held
        self._open: list[_Training] = []
        self._strict = 0
        self._before, self._attention = ExitStack(), ExitStack()

    def enter(self, lenient: bool) -> _Training:
        with self._lock:
            if not self._open:
                self._before = _before()
            if lenient and not self._lenient:
                self._strict = 0  # a backward pass that failed has begun and not ended
                self._attention.enter_context(_strict_attention())
            self._open.append(_Training(lenient))
            self._choose()
            return self._open[-1]

    def leave(self, training: _Training) -> None:
        with self._lock:
            self._open.remove(training)
            if not self._lenient:
                self._attention.close()
            if self._open:
                self._choose()
            else:
                self._before.close()

    @property
    def _lenient(self) -> bool:
        return any(switch.lenient for switch in self._open)

    @property
    def warns(self) -> bool:
        """Whether PyTorch is asked to warn, but for attention."""
        with self._lock:
            return bool(self._open) and self._open[-1].lenient

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

    settings: Any = torch.utils.deterministic
    with ExitStack() as stack:
        stack.callback(
            torch.use_deterministic_algorithms,
            torch.are_deterministic_algorithms_enabled(),
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        stack.callback(
            setattr, settings, "fill_uninitialized_memory", settings.fill_uninitialized_memory
        )
        # Uninitialised memory is never read by these trainers; filling it costs time for nothing.
        settings.fill_uninitialized_memory = False
        return stack.pop_all()


@contextmanager
def _strict_attention() -> Iterator[None]:
    import torch

    module: Any = torch.nn.functional
    fused: Any = torch.backends.cuda
    found, cudnn = module.scaled_dot_product_attention, fused.cudnn_sdp_enabled()
    module.scaled_dot_product_attention = ours = _strict(found)
    fused.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        fused.enable_cudnn_sdp(cudnn)
        if module.scaled_dot_product_attention is ours:
            module.scaled_dot_product_attention = found


def _strict(attention: Callable[..., Any]) -> Callable[..., Any]:
    """This attention; where PyTorch is asked to warn alone, its backward pass is strict."""
    import torch

    def strict(*tensors: Any, **named: Any) -> Any:
        attended = attention(*tensors, **named)
        if torch.compiler.is_compiling() or not isinstance(attended, torch.Tensor):
            return attended
        node = attended.grad_fn if _choice.warns else None
        if node is not None and node.name().startswith(_CUT):
            node = node.next_functions[0][0]
        if node is not None and node.name().startswith(_FUSED):
            node.register_prehook(lambda _: _choice.begin_strictness())
            node.register_hook(lambda *_: _choice.end_strictness())
        return attended

    return strict
