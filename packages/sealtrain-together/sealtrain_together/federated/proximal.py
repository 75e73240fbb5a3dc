"""The party's part of FedProx: its loss grows with the distance from the merged adapter.

``mu/2 |w - w_t|^2`` over everything that trains (Li et al. 2020, eq. 2), with w_t the adapter that
the round began with. Its gradient ``mu (w - w_t)`` is added where that of the loss arrives, before
any clipping, so it needs nothing of the phase or its trainer; the reported loss is the task's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def keep_near(model: Any, mu: float, *, passes: int) -> Iterator[None]:
    """Add the term's gradient while it is open.

    Args:
        model: Its parameters that train, as they are now, are w_t.
        mu: Weight of the term; 0 for none.
        passes: Backward passes of one optimizer step, which add up.
    """
    handles = []
    try:
        for parameter in model.parameters() if mu else ():
            if parameter.requires_grad:
                handles.append(parameter.register_hook(_pull(parameter, mu / passes)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _pull(parameter: Tensor, weight: float) -> Any:
    start = parameter.detach().clone()
    return lambda gradient: gradient + weight * (parameter.detach() - start).to(gradient.dtype)
