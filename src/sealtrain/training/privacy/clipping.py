"""Gradients of single records, averaged by unit, cut to a norm and summed.

Opacus' hooks give a gradient for each record; sums are float64. The contribution of one record, or
of all records of one person, to a sum is bounded, so noise of a known size hides it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.finite import require_finite_weights

if TYPE_CHECKING:
    from torch import Tensor


class ClippedSums:
    """Sums of clipped gradients, with hooks on the trainable parameters of a model.

    Args:
        model: Its forward pass keeps records apart, and draws no random numbers (``determinism``).
        bound: L2 norm that each record's, or each unit's, gradient is cut to, > 0.

    Raises:
        ModelInvalid: A layer mixes records (batch normalisation), or Opacus cannot take it.
        TrainingDiverged: A weight is not a finite number, frozen or not. Here alone it can be seen:
            later every gradient that is not finite is left out, and no private loss is told.
    """

    def __init__(self, model: Any, bound: float) -> None:
        from opacus.grad_sample import GradSampleHooks
        from opacus.validators import ModuleValidator

        require_finite_weights(dict(model.named_parameters()))
        model.train()  # loaded weights come in evaluation mode, which it refuses
        problems = ModuleValidator.validate(model, strict=False)
        if problems:
            raise ModelInvalid(
                "this model has layers that mix records or keep their gradients together",
                check="privacy",
                got=f"{len(problems)} such layers",
                hint="train adapters of a model without batch normalisation",
            )
        self._model, self._bound = model, bound
        self._hooks = GradSampleHooks(model, loss_reduction="sum", strict=False)
        self._sums: dict[str, Tensor] = {}

    def detach(self) -> None:
        """Take the hooks off the model."""
        self._hooks.remove_hooks()

    def take(self, records: int, units: Tensor | None = None) -> None:
        """Cut and add the gradients of the last ``backward``.

        Args:
            records: Number of records in that pass.
            units: int64 (records,), the unit that each record belongs to, from 0 on without a gap;
                a unit's gradient is the mean of its records'. Every record is its own unit when
                ``None``. All records of a unit are taken at once.

        Raises:
            ModelInvalid: A parameter does not have a gradient for each record.
        """
        import torch

        found = {}
        for name, parameter in list_trained_parameters(self._model):
            each = getattr(parameter, "grad_sample", None)
            if each is None and parameter.grad is None:
                continue
            if not isinstance(each, torch.Tensor) or each.shape != (records, *parameter.shape):
                raise ModelInvalid(
                    "a parameter has no gradient for each record",
                    check="privacy",
                    got=name[:100],
                    hint="freeze it, or train adapters under peft instead",
                )
            found[name] = _average(each.detach().double(), units)
            parameter.grad_sample = parameter.grad = None
        if not found:
            return
        squares = [each.flatten(1).square().sum(1) for each in found.values()]
        norms = torch.stack(squares).sum(0).sqrt()
        factors = (self._bound / (norms + 1e-9)).clamp(max=1.0)
        # A gradient that is not finite has no bound that clipping could give it: it is left out.
        factors = torch.where(norms.isfinite(), factors, torch.zeros_like(factors))
        for name, each in found.items():
            clipped = torch.tensordot(factors, each.nan_to_num(0.0, 0.0, 0.0), dims=1)
            self._sums[name] = clipped + self._sums[name] if name in self._sums else clipped

    def pop(self) -> dict[str, Tensor]:
        """The sums so far, float64 by parameter; those without a gradient are left out.

        The next sums begin at zero.
        """
        sums, self._sums = self._sums, {}
        return sums


def list_trained_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Parameters that train, by name."""
    return (
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    )


def _average(each: Tensor, units: Tensor | None) -> Tensor:
    """Mean over the records of each unit, (units, …)."""
    import torch

    if units is None:
        return each
    counts = torch.bincount(units)
    summed = each.new_zeros((len(counts), *each.shape[1:])).index_add_(0, units, each)
    return summed / counts.to(each).view(-1, *[1] * (each.dim() - 1))
