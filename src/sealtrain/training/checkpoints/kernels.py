"""Kernels that give the same bits each time, so that a resumed training is the one it goes on with.

On a CUDA device PyTorch is only asked to warn, for models have operations of which no such kernel
exists: sampling by probability mass, to name one. But asked so, its fused attention goes backwards
by kernels that add in the order in which threads come, although it has others that do not: it
takes cuDNN's, and of its own those that are not strict (``aten/src/ATen/native/transformers/cuda``,
``sdp_utils.cpp`` and ``attention_backward.cu``). So while attention is computed, and at no other
time, PyTorch is told to refuse.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["deterministic", "strict_attention"]

_WORKSPACE: Final = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""PyTorch refuses cuBLAS without a fixed workspace, and some attention is made of products."""
_changing: Final = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Settings:
    """PyTorch's, of all threads of the process."""

    chosen: bool
    warn_only: bool
    filling: bool

    @classmethod
    def now(cls) -> _Settings:
        import torch

        settings: Any = torch.utils.deterministic
        return cls(
            chosen=torch.are_deterministic_algorithms_enabled(),
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            filling=settings.fill_uninitialized_memory,
        )

    def set(self) -> None:
        import torch

        settings: Any = torch.utils.deterministic
        torch.use_deterministic_algorithms(self.chosen, warn_only=self.warn_only)
        settings.fill_uninitialized_memory = self.filling


_found: Final[list[list[_Settings]]] = []
"""What each training that goes on found set, and leaves behind: one value each."""


@contextmanager
def deterministic(*, lenient: bool | None = None) -> Iterator[None]:
    """Only kernels that give the same bits each time.

    Args:
        lenient: Let operations run that have none; ``None`` where there is a CUDA device.
    """
    import torch

    lenient = torch.cuda.is_available() if lenient is None else lenient
    if lenient:
        os.environ.setdefault(*_WORKSPACE)
        _make_attention_strict()
    with _changing:
        mine = [_Settings.now()]
        _found.append(mine)
        # Uninitialised memory is never read by these trainers; filling it costs time for nothing.
        _Settings(chosen=True, warn_only=lenient, filling=False).set()
    try:
        yield
    finally:
        with _changing:
            place = next(number for number, one in enumerate(_found) if one is mine)
            del _found[place]
            if place == len(_found):
                mine[0].set()
            else:  # a thread that began later goes on, and leaves things as this one found them
                _found[place][:] = mine


@functools.cache
def _make_attention_strict() -> None:
    import torch

    module: Any = torch.nn.functional
    module.scaled_dot_product_attention = strict_attention(module.scaled_dot_product_attention)


def strict_attention(attention: Callable[..., Any]) -> Callable[..., Any]:
    """This attention, strict in both passes wherever PyTorch is asked to warn alone.

    It stands between two identities. Backwards the one behind it runs first and begins the
    strictness, the one before it runs last and ends it: of what is ready, autograd takes what was
    made last.

    Args:
        attention: As ``torch.nn.functional.scaled_dot_product_attention``.
    """
    import torch

    class Identity(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(warn_only: bool, *tensors: Any) -> Any:
            return tuple(one.view_as(one) for one in tensors)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.warn_only = inputs[0]

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            torch.use_deterministic_algorithms(True, warn_only=ctx.warn_only)
            return None, *gradients

    between: Any = Identity.apply

    @functools.wraps(attention)
    def strict(query: Any, key: Any, value: Any, *further: Any, **named: Any) -> Any:
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        if not warns or torch.compiler.is_compiling():
            return attention(query, key, value, *further, **named)
        query, key, value = between(True, query, key, value)
        torch.use_deterministic_algorithms(True)
        try:
            attended = attention(query, key, value, *further, **named)
        finally:
            torch.use_deterministic_algorithms(True, warn_only=True)
        return between(False, attended)[0]

    return strict
