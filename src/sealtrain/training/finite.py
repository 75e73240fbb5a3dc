"""Numbers that are not finite end a training; weights that are not finite are never sealed.

A loss of NaN says that the weights are lost, and every later step with them. So:

1. No trainer filters its numbers: Transformers would put the average so far in place of a NaN.
2. A logged loss, evaluation loss or gradient norm that is not finite leaves as the release policy
   says, as null, and then ends the training. The checkpoint before it stays.
3. Weights are read once before a checkpoint and before a model is sealed. A parameter with a NaN
   or an infinity, and a buffer with a NaN, refuse it. A buffer may hold infinities: masks do.

Under ``fp16`` a gradient norm may be infinite: the scaler leaves out that step and scales less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sealtrain.training.errors import TrainingDiverged

if TYPE_CHECKING:
    from torch import Tensor

GRADIENT_NORM: Final = "grad_norm"


def first_not_finite(values: Mapping[str, float], *, scaled: bool = False) -> str | None:
    """The first loss or gradient norm among logged values that is not finite.

    Args:
        values: Measurements by name. Others than losses and gradient norms may be undefined: a
            ranking of one class has no area under its curve.
        scaled: A scaler of the loss may leave out steps, so a gradient norm says nothing.
    """
    for name, value in values.items():
        is_loss = name == "loss" or name.endswith("_loss")
        if (is_loss or (name == GRADIENT_NORM and not scaled)) and not math.isfinite(value):
            return name
    return None


def refuse_not_finite(step: int, values: Mapping[str, float], *, scaled: bool = False) -> None:
    """Raise ``TrainingDiverged`` at a loss or gradient norm that is not finite.

    Args:
        step: Optimizer step at which they were logged.
        values: As ``first_not_finite``.
        scaled: As ``first_not_finite``.
    """
    name = first_not_finite(values, scaled=scaled)
    if name is not None:
        raise TrainingDiverged(
            "training diverged: a loss or a gradient norm is not a finite number",
            check=name,
            got=f"{values[name]} at step {step}",
            expected="a finite number",
            hint="look for NaN in the base model, raise max_length where a batch ends before "
            "anything to learn, or lower learning_rate; checkpoints from before that step stay",
        )


def require_finite_weights(tensors: Mapping[str, Any], buffers: Iterable[str] = ()) -> None:
    """Read weights once, without a copy.

    Args:
        tensors: By name, on any device; what holds no floating-point numbers is not read.
        buffers: Names of those that are no parameters.

    Raises:
        TrainingDiverged: A tensor holds a number that is not finite; the error names it.
    """
    masks = frozenset(buffers)
    for name, tensor in tensors.items():
        if not _is_finite(tensor, infinities=name in masks):
            raise TrainingDiverged(
                "training diverged: a weight of the model is not a finite number",
                check="weights",
                got=name[:200],
                expected="finite numbers",
                hint="look for NaN in the base model, or lower learning_rate; "
                "the last checkpoint stays",
            )


def require_finite_model(model: Any, tensors: Mapping[str, Any]) -> None:
    """As ``require_finite_weights``, for a part of a model's state under the model's own names."""
    require_finite_weights(
        tensors, (name for name, _ in model.named_buffers(remove_duplicate=False))
    )


def _is_finite(tensor: Any, *, infinities: bool) -> bool:
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
        return True
    local = getattr(tensor, "to_local", None)  # of a rank, where each holds a part
    whole: Tensor = (tensor if local is None else local()).detach()
    if whole.is_complex():
        whole = torch.view_as_real(whole)
    if not whole.is_floating_point() or not whole.numel():
        return True
    if whole.element_size() == 1:  # no kernel compares numbers of eight bits
        whole = whole.to(torch.float32)
    # A NaN is both the least and the greatest number.
    ends = torch.stack(torch.aminmax(whole))
    bad = torch.isnan(ends) if infinities else ~torch.isfinite(ends)
    return not bool(bad.any())
