"""A model's outline: kept while its weights are sharded, and filled once they are gathered."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def outline_of(model: Any) -> Any:
    """A copy of a model whose parameters take no memory."""
    import torch

    known: dict[int, Any] = {}
    for parameter in model.parameters():
        nothing = torch.empty_like(parameter, device="meta")
        known[id(parameter)] = torch.nn.Parameter(nothing, parameter.requires_grad)
    for module in model.modules():  # settings stay the same, also when they are changed
        known |= {id(kept): kept for kept in [getattr(module, "config", None)] if kept is not None}
    outline = copy.deepcopy(model, known)
    for module in outline.modules():
        vars(module).pop("forward", None)  # a trainer's wrapper computes with the original
    return outline


def fill_outline(outline: Any, weights: Mapping[str, Any], device: Any) -> Any:
    """The outline with these weights, which it takes as they are."""
    outline.load_state_dict(weights, assign=True)
    # The outermost that can: an encoder holds its model inside.
    next(module for module in outline.modules() if hasattr(module, "tie_weights")).tie_weights()
    return outline.to(device)
