"""Numbers that are not finite end a training; weights that are not finite are never sealed.

A loss of NaN says that the weights are lost, and every later step with them. So:

1. No trainer filters its numbers: Transformers would put the average so far in place of a NaN.
2. A logged loss, evaluation loss or gradient norm that is not finite leaves as the release policy
   says, as null, and then ends the training. The checkpoint before it stays.
3. What a model answers to test records and audits is finite, or nothing of it is measured: a NaN is
   no label and no rank, yet arithmetic makes it the first of each.
4. Weights are read once before a checkpoint and before a model is sealed. A parameter with a NaN
   or an infinity, and a buffer with a NaN, refuse it. A buffer may hold infinities: masks do.

Under ``fp16`` a gradient norm may be infinite: the scaler leaves out that step and scales less.
Where it leaves out one after the other, nothing is learned, and the training ends too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sealtrain.training.errors import TrainingDiverged

if TYPE_CHECKING:
    from torch import Tensor

GRADIENT_NORM: Final = "grad_norm"
_FIRST_SCALE: Final = 2.0**16
"""Of a scaler of PyTorch, which halves it where it leaves out a step."""
_LEAST_SCALE: Final = 2.0**-14
"""Thirty steps left out in a row, from the first: no gradient of ``fp16`` needs less."""


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


def refuse_left_out_steps(scaler: Any, step: int, *, ended: bool) -> None:
    """Raise ``TrainingDiverged`` where a scaler leaves out one step after the other.

    Args:
        scaler: Of the loss; ``None`` where nothing scales it.
        step: Optimizer steps so far, those that were left out too.
        ended: The training is over: at least one step must have been taken.
    """
    if scaler is None or not step:
        return
    scale = float(scaler.get_scale())
    if scale < _LEAST_SCALE or (ended and scale <= _FIRST_SCALE * 0.5**step):
        raise TrainingDiverged(
            "training diverged: no gradient is a finite number, so no step is taken",
            check=GRADIENT_NORM,
            got=f"loss scale {scale:g} at step {step}",
            expected="steps with finite gradients",
            hint="train with bf16 or in float32, or lower learning_rate",
        )


def require_finite_answers(values: Any, of: str) -> None:
    """Refuse to measure a model by answers that are no numbers.

    Args:
        values: A tensor.
        of: Kind of the answers: ``embeddings``, ``logits`` or ``losses``.

    Raises:
        TrainingDiverged: One is not finite.
    """
    if not _is_finite(values, infinities=False):
        raise answers_not_finite(of)


def answers_not_finite(of: str) -> TrainingDiverged:
    """The refusal of answers of a kind."""
    return TrainingDiverged(
        "the model answers records with numbers that are not finite",
        check="answers",
        got=of,
        expected="finite numbers",
        hint="look for NaN or very large weights in the base model, or compute in float32",
    )


def require_finite_weights(tensors: Mapping[str, Any], buffers: Iterable[str] = ()) -> None:
    """Read weights once, without a copy.

    Args:
        tensors: By name, on any device; what holds no floating-point numbers is not read.
        buffers: Names of those that are no parameters.

    Raises:
        TrainingDiverged: A tensor holds a number that is not finite; the error names it.
    """
    name = _first(tensors, buffers)
    if name is not None:
        raise weight_not_finite(name)


def _first(tensors: Mapping[str, Any], buffers: Iterable[str]) -> str | None:
    masks = frozenset(buffers)
    for name, tensor in tensors.items():
        if not _is_finite(tensor, infinities=name in masks):
            return name
    return None


def weight_not_finite(name: str) -> TrainingDiverged:
    """The refusal of a weight."""
    return TrainingDiverged(
        "training diverged: a weight of the model is not a finite number",
        check="weights",
        got=name[:200],
        expected="finite numbers",
        hint="look for NaN in the base model, or lower learning_rate; the last checkpoint stays",
    )


def first_weight_not_finite(model: Any, tensors: Mapping[str, Any]) -> str | None:
    """As ``require_finite_model``, for ranks that agree before they raise."""
    return _first(tensors, (name for name, _ in model.named_buffers(remove_duplicate=False)))


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
