"""The model state of a program as one safetensors file, whose metadata says whose it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from sealtrain.base.canonical import JsonValue, canonical_json, parse_json
from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import ModelInvalid

if TYPE_CHECKING:
    import torch

STATE_ENTRY: Final = "sealtrain"
"""Entry of a state's safetensors metadata: canonical JSON {settings, step}."""
MAX_STATE_BYTES: Final = 1 << 40


def write_state(
    tensors: Iterable[tuple[str, torch.Tensor]], settings: Mapping[str, JsonValue], step: int
) -> bytes:
    """A state as safetensors; equal states are equal bytes.

    Args:
        tensors: By name.
        settings: Of the program; a state may go on where another device computes.
        step: Optimizer steps so far.
    """
    from safetensors.torch import save

    # One entry: the library writes several in any order.
    kept = canonical_json({"settings": _kept_settings(settings), "step": step})
    return save(
        {name: tensor.cpu().contiguous() for name, tensor in tensors}, {STATE_ENTRY: kept.decode()}
    )


def read_state(
    state: bytes, settings: Mapping[str, JsonValue]
) -> tuple[dict[str, torch.Tensor], int]:
    """The tensors of a state, and its step. Arguments as ``write_state``.

    Raises:
        ModelInvalid: It is no state, or belongs to another program.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(state)
    except SafetensorError as error:
        raise ModelInvalid("the model state is not a safetensors file") from error
    # Loaded above, so the header is whole and JSON; the library shows no metadata of bytes.
    header = json.loads(state[8 : 8 + int.from_bytes(state[:8], "little")])
    try:
        kept = parse_json(header.get("__metadata__", {}).get(STATE_ENTRY, "null").encode())
    except DataInvalid:
        kept = None
    if not isinstance(kept, dict) or kept.get("settings") != _kept_settings(settings):
        raise ModelInvalid("the model state belongs to another program")
    return tensors, int(kept["step"])


def _kept_settings(settings: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: value for name, value in settings.items() if name != "device"}
