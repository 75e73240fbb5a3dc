"""Frozen linear layers whose products an ``Engine`` makes, forward and backward.

The layer's arithmetic (spec/one-time-pads.md §2, §3) is the same whichever engine multiplies. What
is not a product with frozen weights (bias, LoRA, attention, norms, loss) stays where it was.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from sealtrain_together.pads.engine import Engine
from sealtrain_together.pads.matrix import BITS, PublicMatrix, round_rows, stochastically_rounded


@dataclass(eq=False)
class _Held:
    """Outputs of a stack that some of its layers have not asked for yet."""

    inputs: weakref.ref[torch.Tensor]
    version: int
    grad: bool
    outputs: torch.Tensor
    waiting: set[int]


class Stack:
    """The matrix of one frozen layer, or of several with the same input: one product serves all.

    Args:
        weights: Of the layers, each (outputs, inputs).
        engine: Multiplies.
        bits: Of activations and gradients.

    Raises:
        ModelInvalid: The weights make no public matrix.
    """

    def __init__(
        self, weights: Sequence[torch.Tensor], engine: Engine, *, bits: int = BITS
    ) -> None:
        self.matrix, self.scale = PublicMatrix.stack(weights, bits=bits)
        self.engine = engine
        self._ends = torch.tensor([0, *(len(weight) for weight in weights)]).cumsum(0).tolist()
        self._held: _Held | None = None
        engine.admit(self.matrix)

    def weight(self, member: int) -> torch.Tensor:
        """What one layer multiplies with, as numbers: scale times int8."""
        part = slice(self._ends[member], self._ends[member + 1])
        return self.matrix.values[part].to(torch.float32) * self.scale[part, None]

    def outputs(self, inputs: torch.Tensor, member: int) -> torch.Tensor:
        """What one of the layers gives, without bias.

        Layers of a stack are called one after another with the same tensor; the first call
        multiplies for all of them, and the last one lets go.
        """
        if len(self._ends) == 2:
            return self._multiply(inputs)
        held = self._held
        if (
            held is None
            or held.inputs() is not inputs
            or held.version != inputs._version
            or held.grad != torch.is_grad_enabled()
            or member not in held.waiting
        ):
            held = _Held(
                inputs=weakref.ref(inputs),
                version=inputs._version,
                grad=torch.is_grad_enabled(),
                outputs=self._multiply(inputs),
                waiting=set(range(len(self._ends) - 1)),
            )
        held.waiting.discard(member)
        self._held = held if held.waiting else None
        return held.outputs[..., self._ends[member] : self._ends[member + 1]]

    def _multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Product.apply(inputs, self)  # type: ignore[no-untyped-call]
        return result

    def __deepcopy__(self, memo: object) -> Self:
        """Frozen and public: copies of a model share it."""
        return self


class _Product(torch.autograd.Function):
    """Y = X W8^T s, and dX = (dY s) W8. Keeps nothing of X: frozen weights have no gradient."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, stack: Stack) -> torch.Tensor:
        ctx.stack, ctx.shape, ctx.dtype = stack, inputs.shape, inputs.dtype
        ctx.set_materialize_grads(False)
        matrix = stack.matrix
        entries, scale = round_rows(_rows(inputs), matrix.largest("forward"))
        product = stack.engine.product(matrix, "forward", entries)
        outputs = product.to(torch.float32).mul_(scale).mul_(stack.scale)
        return outputs.view(*inputs.shape[:-1], outputs.shape[1]).to(inputs.device, inputs.dtype)

    @staticmethod
    @once_differentiable  # a gradient of this gradient would be silently wrong
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        stack, (gradient,) = ctx.stack, gradients
        if gradient is None or not ctx.needs_input_grad[0]:
            return None, None
        matrix = stack.matrix
        rows = _rows(gradient) * stack.scale
        entries, scale = stochastically_rounded(rows, matrix.largest("backward"), None)
        product = stack.engine.product(matrix, "backward", entries)
        result = product.to(torch.float32).mul_(scale).view(ctx.shape)
        return result.to(gradient.device, ctx.dtype), None


def _rows(values: torch.Tensor) -> torch.Tensor:
    """As float32 with two sides, where pads are."""
    flat = values.flatten(0, -2) if values.dim() > 1 else values[None]
    return flat.to("cpu", torch.float32)


class PadsLinear(nn.Module):
    """Stands where a frozen ``nn.Linear`` stood.

    It has no ``weight``: nothing may take it for a layer whose weights can be changed or merged.
    Its bias stays the parameter it was, in the guest.

    Args:
        stack: Has the weights.
        member: Which of its layers this is.
        layer: The layer it stands for.
    """

    _place: torch.Tensor

    def __init__(self, stack: Stack, member: int, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self.stack, self._member, self._dtype = stack, member, layer.weight.dtype
        # It goes where the model goes: to where the weights have to come back.
        self.register_buffer("_place", layer.weight.new_empty(0), persistent=False)
        self.train(layer.training)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """As ``nn.Linear`` with weights of int8 and inputs of 12 bits."""
        outputs = self.stack.outputs(inputs, self._member)
        return outputs if self.bias is None else outputs + self.bias.to(outputs.dtype)

    def plain(self) -> nn.Linear:
        """A frozen ``nn.Linear`` with the same int8 weights as numbers, for use in the guest."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False)
        weight = self.stack.weight(self._member).to(self._place.device, self._dtype)
        layer.weight = nn.Parameter(weight, False)
        layer.bias = self.bias
        return layer.train(self.training)

    def extra_repr(self) -> str:
        """Its sides."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
