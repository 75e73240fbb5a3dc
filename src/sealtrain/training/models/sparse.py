"""Sparse training, of few entries of a weight: the layer, its file of entries, and loading it.

``sparse.safetensors`` has two tensors for each layer, under the layer's name in the whole model:
``<name>.index``, int64 (entries,), places in the flattened weight, and ``<name>.entries``,
float32 (entries,), their values after training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import torch
from torch import nn

from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.finite import require_finite_weights
from sealtrain.training.model_files import SPARSE_FILE

_WRAPPED: Final = ("base_model.model.", ".base_layer")

Model = TypeVar("Model", bound=nn.Module)


class SparseLinear(nn.Module):
    """A frozen ``nn.Linear`` in which some entries of the weight train.

    The entries are kept whole in float32, not as differences: a small step is not lost to the
    rounding of a weight in bfloat16.

    Args:
        layer: The layer; frozen.
        index: Places in its flattened weight, int64 (entries,), each once.
    """

    def __init__(self, layer: nn.Linear, index: torch.Tensor) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.index: torch.Tensor
        self.register_buffer("index", index)
        chosen = layer.weight.detach().flatten()[index]
        self.entries = nn.Parameter(chosen.to(torch.float32))

    @property
    def weight(self) -> torch.Tensor:
        """(outputs, inputs), with the entries as they are now."""
        frozen = self.layer.weight
        entries = self.entries.to(frozen.dtype)
        return frozen.flatten().index_copy(0, self.index, entries).view_as(frozen)

    @property
    def bias(self) -> torch.Tensor | None:
        """Bias of the layer."""
        return self.layer.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """As ``nn.Linear``."""
        return nn.functional.linear(inputs, self.weight, self.layer.bias)

    def plain(self) -> nn.Linear:
        """The ``nn.Linear`` with the entries put in."""
        with torch.no_grad():
            self.layer.weight.copy_(self.weight)
        return self.layer

    def extra_repr(self) -> str:
        """How many entries train."""
        return f"entries={self.entries.numel()} of {self.layer.weight.numel()}"


def sparse_layers(model: nn.Module) -> Iterator[tuple[str, SparseLinear]]:
    """The layers of which entries train, with their names in the whole model."""
    for name, part in model.named_modules():
        if isinstance(part, SparseLinear):
            yield plain_name(name), part


def sparse_files(model: nn.Module) -> dict[str, bytes]:
    """The trained entries as a file; no file without such entries. Raises ``TrainingDiverged``."""
    from safetensors.torch import save

    tensors = {}
    for name, part in sparse_layers(model):
        tensors[f"{name}.index"] = part.index.cpu().contiguous()
        tensors[f"{name}.entries"] = part.entries.detach().cpu().contiguous()
    require_finite_weights(tensors)
    return {SPARSE_FILE: save(tensors)} if tensors else {}


def fold(model: Model) -> Model:
    """Put trained entries into their weights, in place: ordinary layers again."""
    found = [(name, part) for name, part in model.named_modules() if isinstance(part, SparseLinear)]
    for name, part in found:
        model.set_submodule(name, part.plain())
    return model


def put_on(model: Model, tensors: Mapping[str, torch.Tensor]) -> Model:
    """Put the entries of a file into a model's weights, in place.

    Args:
        model: The base that they were trained in, plain or with an adapter on it.
        tensors: As ``sparse.safetensors`` has them.

    Raises:
        DataInvalid: An index without entries, of another length or type, or not in order.
        ModelInvalid: The model has no such layer, or a smaller one.
    """
    layers = {plain_name(name): part for name, part in model.named_modules()}
    for key in tensors:
        name, _, kind = key.rpartition(".")
        if kind not in ("index", "entries") or not {f"{name}.index", f"{name}.entries"} <= {
            *tensors
        }:
            raise DataInvalid("a file of trained entries is incomplete", got=key[:200])
        if kind == "index":
            _put(name, layers.get(name), tensors[key], tensors[f"{name}.entries"])
    return model


def _put(name: str, layer: Any, index: torch.Tensor, entries: torch.Tensor) -> None:
    layer = getattr(layer, "base_layer", layer)
    if (
        index.dtype != torch.int64
        or entries.dtype != torch.float32
        or index.dim() != 1
        or index.shape != entries.shape
        or not (index.diff() > 0).all()
        or not entries.isfinite().all()
    ):
        raise DataInvalid(
            "a file of trained entries has wrong types or lengths",
            got=name[:200],
            expected="int64 places in order, as many finite float32 entries",
        )
    fits = isinstance(layer, nn.Linear) and index.numel()
    if not fits or not 0 <= int(index[0]) <= int(index[-1]) < layer.weight.numel():
        raise ModelInvalid(
            "the trained entries belong to another base",
            check="sparse entries",
            got=name[:200],
            hint="name the base model of the recipe they were trained with",
        )
    with torch.no_grad():
        layer.weight.view(-1)[index] = entries.to(layer.weight.dtype)


def plain_name(name: str) -> str:
    """A layer's name in the whole model, without PEFT's wrapping."""
    return name.removeprefix(_WRAPPED[0]).removesuffix(_WRAPPED[1])
