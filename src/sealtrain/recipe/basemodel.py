"""What a base model's own files say before anything is trained: positions, layers, module names.

Only ``config.json`` and the headers of safetensors files are read: no weights, and no library of
models. What these files do not say is ``None``, and nothing is judged by it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sealtrain.base.canonical import JsonValue, parse_foreign, parse_json
from sealtrain.base.files import open_regular, read_bounded
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.fields import resolve_inside
from sealtrain.recipe.modelfolder import MAX_CONFIG_BYTES
from sealtrain.recipe.modelspec import Model, ModelFromConfig, ModelFromFolder, ModelFromHub

_MAX_HEADER_BYTES: Final = 100 << 20
"""Longest header that the safetensors library itself reads."""
_POSITIONS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "n_ctx",
)
_LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_PAD_FIRST: Final = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "mpnet", "longformer")
"""Models that number positions from behind the padding token's: the first two are lost."""
_GATED: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_ENCODER: Final = ("query", "key", "value", "dense")
_PUBLISHED: Final = _ENCODER
_HELD: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2")
_RENAMED: Final = (
    *("beit", "deit", "dinov2", "dinov2_with_registers", "ijepa", "segformer", "swin", "vit"),
    "vit_msn",
)
"""Models whose layers Transformers holds under other names (``_HELD``) than files have."""
_MODULES: Final[dict[str, tuple[str, ...]]] = {
    "bert": _ENCODER,
    "roberta": _ENCODER,
    "electra": _ENCODER,
    "distilbert": ("q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"),
    "gemma": _GATED,
    "gemma2": _GATED,
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "gpt_neox": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "llama": _GATED,
    "mistral": _GATED,
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    "phi": ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "qwen2": _GATED,
    "qwen3": _GATED,
    **dict.fromkeys(_RENAMED, _HELD),
}
"""Layers of a model that is made from its configuration, where nothing else names them."""
MADE: Final = frozenset(
    (
        *("lm_head", "embed_tokens", "embed_out", "wte", "wpe", "score", "classifier"),
        *("pre_classifier", "qa_outputs", "pooler"),
    )
)
"""Layers that are tied to others or made when a model is loaded, so that no file names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFacts:
    """What is known of a base model.

    Attributes:
        positions: Tokens that it can read at once.
        layers: Its hidden layers.
        modules: Last part of the names of its modules.
        tokens: Rows of its embedding.
    """

    positions: int | None = None
    layers: int | None = None
    modules: frozenset[str] | None = None
    tokens: int | None = None


def base_facts(model: Model, base_dir: Path) -> BaseFacts:
    """Read what a recipe's base model says of itself; nothing of a sealed one.

    Args:
        model: Of the recipe.
        base_dir: Folder that the recipe's paths start from.

    Raises:
        ModelInvalid: The folder is missing, lies behind a link, or its files are damaged.
    """
    if isinstance(model, ModelFromConfig):
        listed = _MODULES.get(str(model.config.get("model_type")))
        return _facts(model.config, None if listed is None else frozenset((*listed, *MADE)))
    if not isinstance(model, ModelFromFolder):
        return BaseFacts()
    if isinstance(model, ModelFromHub) and not (base_dir / model.path).exists():
        return BaseFacts()  # locking brings it, and judges it then
    folder = resolve_inside(base_dir, model.path)
    config = _config(folder / "config.json")
    modules = frozenset(_modules_in(folder))
    if config.get("model_type") in _RENAMED:
        modules -= frozenset(_PUBLISHED)
    listed = _MODULES.get(str(config.get("model_type")), ())
    return _facts(config, frozenset((*modules, *listed, *MADE)) if modules else None)


def _facts(config: Mapping[str, Any], modules: frozenset[str] | None) -> BaseFacts:
    inner = config.get("text_config")
    parts = [config, *([inner] if isinstance(inner, dict) else [])]
    positions = _first(parts, _POSITIONS)
    if positions is not None:
        positions = _count_positions(config, positions)
    return BaseFacts(
        positions=positions,
        layers=_first(parts, _LAYERS),
        modules=modules,
        tokens=_first(parts, ("vocab_size",)),
    )


def _count_positions(config: Mapping[str, Any], positions: int) -> int:
    """Positions that a text can use: scaling adds some, padding takes some."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    if isinstance(factor, int | float) and factor > 1:
        return int(positions * factor)
    if config.get("model_type") in _PAD_FIRST:
        pad = config.get("pad_token_id", 1)
        return positions - (pad if isinstance(pad, int) else 1) - 1
    return positions


def _first(parts: list[Mapping[str, Any]], names: tuple[str, ...]) -> int | None:
    found = (part.get(name) for part in parts for name in names)
    return next((value for value in found if isinstance(value, int) and value > 0), None)


def _config(path: Path) -> dict[str, JsonValue]:
    try:
        config = parse_json(read_bounded(path, MAX_CONFIG_BYTES), max_bytes=MAX_CONFIG_BYTES)
    except (DataInvalid, LimitExceeded) as error:
        raise ModelInvalid(f"{path.parent.name}/config.json: {error.message}") from error
    if not isinstance(config, dict):
        raise ModelInvalid(f"{path.parent.name}/config.json is not a JSON object")
    return config


def _modules_in(folder: Path) -> Iterator[str]:
    """Last part of the name of each module that has a tensor in the folder."""
    for path in sorted(folder.glob("*.safetensors")):
        for tensor in _tensors_in(path):
            parts = tensor.split(".")
            if len(parts) > 1:
                yield parts[-2]


def _tensors_in(path: Path) -> list[str]:
    return list(header_of(path)[1])


def header_of(path: Path) -> tuple[int, dict[str, Any]]:
    """Where a safetensors file's numbers begin, and what its header says of each tensor.

    Raises:
        ModelInvalid: It is no such file.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_HEADER_BYTES:
                raise ModelInvalid(f"{path.name} is not a safetensors file", got="a huge header")
            header = parse_foreign(file.read(length))
    except (OSError, DataInvalid, ValueError, struct.error) as error:
        raise ModelInvalid(f"{path.name} is not a safetensors file") from error
    if not isinstance(header, dict):
        raise ModelInvalid(f"{path.name} is not a safetensors file")
    return 8 + length, {name: tensor for name, tensor in header.items() if name != "__metadata__"}
