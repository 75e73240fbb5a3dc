"""Sparsified parameter fine-tuning: few entries of the back's frozen weights train beside LoRA.

Which ones is decided once, before training, and never again. ``gradient``: in each layer the
entries whose gradient over some batches is largest. ``rows``: whole rows with the largest L1 norm,
which looks at no data; an outside sketch of the published method does it so (papers differ in what
they say, and its text is not public, so neither is claimed to be its rule).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from sealtrain.errors import UsageError
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.models.sparse import SparseLinear
from sealtrain_together.cut.cut import Back, layer_list

Rule = Literal["gradient", "rows"]


def back_linears(model: Any, back: Back) -> list[str]:
    """Names of the linear layers behind the cut, without those of adapters and of the head.

    Args:
        model: ``back.model``, or a PEFT model around it.
    """
    base = back.model.base_model
    prefix = next(name for name, part in model.named_modules() if part is base)
    listed = f"{prefix}.{layer_list(base)[0]}.".lstrip(".")
    behind = tuple(f"{listed}{number}." for number in back.numbers)
    return [
        name
        for name, part in model.named_modules()
        if name.startswith(behind) and isinstance(part, nn.Linear) and (".lora_" not in name)
    ]


def sparsify(
    model: Any,
    layers: Sequence[str],
    share: float,
    *,
    by: Rule = "gradient",
    batches: Iterable[Mapping[str, torch.Tensor]] = (),
) -> int:
    """Let a share of the entries of linear layers train, in place.

    Args:
        model: Called with each batch; gives ``loss``.
        layers: Names of ``nn.Linear`` modules. They are frozen but for the chosen entries.
        share: Of each layer's entries, above 0, at most 1.
        by: Which ones.
        batches: Inputs with labels for ``gradient``, on the model's device; ``rows`` reads none.
            A resumed run needs none either: a checkpoint holds which ones they are.

    Returns:
        How many entries train.

    Raises:
        ModelInvalid: A layer is no ``nn.Linear``, such as one in four bits.
        UsageError: The share is not between 0 and 1.
    """
    if not 0 < share <= 1:
        raise UsageError("no share of a layer's entries", got=share, expected="above 0, at most 1")
    found = {name: model.get_submodule(name) for name in layers}
    for name, layer in found.items():
        if type(layer) is not nn.Linear:
            raise ModelInvalid("entries of this layer cannot train", check="spf", got=name)
    scores = (
        {name: _row_norms(layer) for name, layer in found.items()}
        if by == "rows"
        else _gradients(model, found, batches)
    )
    for name, layer in found.items():
        index = _largest(scores[name], share, layer)
        model.set_submodule(name, SparseLinear(layer, index))
    return sum(model.get_submodule(name).entries.numel() for name in layers)


def _largest(scores: torch.Tensor, share: float, layer: nn.Linear) -> torch.Tensor:
    """Places of the entries, or of all in the rows, with the largest scores; int64, in order."""
    count = max(1, round(share * scores.numel()))
    # Equal scores must not be decided by chance: the sort is stable, the first one wins.
    places = torch.sort(scores.flatten(), descending=True, stable=True).indices[:count]
    if scores.dim() == 1:
        inside = torch.arange(layer.in_features, device=places.device)
        places = (places[:, None] * layer.in_features + inside).flatten()
    return places.sort().values


def _row_norms(layer: nn.Linear) -> torch.Tensor:
    return layer.weight.detach().to(torch.float32).abs().sum(1)


def _gradients(
    model: Any, found: Mapping[str, nn.Linear], batches: Iterable[Mapping[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Magnitude of the gradient of the batches' summed loss, float32 (outputs, inputs)."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for trainable in trained:
        trainable.requires_grad_(False)
    weights = {name: layer.weight.requires_grad_(True) for name, layer in found.items()}
    was = model.training
    model.eval()
    try:
        for batch in batches:
            model(**batch).loss.backward()
        return {
            name: torch.zeros_like(weight) if weight.grad is None else weight.grad.float().abs()
            for name, weight in weights.items()
        }
    finally:
        model.train(was)
        for weight in weights.values():
            weight.grad = None
            weight.requires_grad_(False)
        for trainable in trained:
            trainable.requires_grad_(True)
