"""The result of a phase: files in memory, counts and measurements. It is never written to disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

from sealtrain.training.finite import require_finite_model, require_finite_weights
from sealtrain.training.weight_file import Convert, HeldWeights, WeightFile

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ADAPTER_CONFIG: Final = "adapter_config.json"
BASE_FIELD: Final = "base_model_name_or_path"
"""Where an adapter's settings name its base model."""
SPARSE_FILE: Final = "sparse.safetensors"
"""Entries of the base's own weights that were trained beside an adapter."""

_USUAL_SETTINGS: Final = {
    "padding_side": "right",
    "truncation_side": "right",
    "clean_up_tokenization_spaces": False,
    "model_input_names": ["input_ids", "attention_mask"],
}
"""Settings of a tokenizer beside its tokens, and what they are where a file does not say."""


class KeptFile(Protocol):
    """A file of a model that is not in memory."""

    def open(self) -> BinaryIO:
        """Its content, from the beginning."""


class MergeWhileRead(Protocol):
    """Makes the tensors of a model out of others, while these are read into its file."""

    def sources(self, published: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors that are read for those of the model, by their names."""

    def module_of(self, name: str) -> str:
        """What a tensor that is read is merged with."""

    def merge(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors of the model, out of all those of some modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished training.

    Attributes:
        files: Name → content of the model's files, as ``from_pretrained`` reads them.
        steps: Optimizer steps in total, resumed ones included.
        samples_seen: Training rows in total.
        tokens: Tokens without padding, ``None`` without tokens.
        metrics: Final metrics that the release policy allows.
        environment: Facts that a repetition needs.
        accelerators: Names of the accelerators in use.
        withheld: Names of metrics the release policy held back, with counts.
        privacy: The manifest's section on privacy (spec/run-manifest.md §2).
        tokens_sha256: Digest of the tokens trained on, in order, where the phase takes it.
        delivered: Files that are not in memory, by name.
    """

    files: dict[str, bytes]
    steps: int
    samples_seen: int
    tokens: int | None
    metrics: dict[str, float | None]
    environment: dict[str, str]
    accelerators: tuple[str, ...]
    withheld: dict[str, int]
    privacy: dict[str, Any] = field(default_factory=lambda: {"dp": "none"})
    tokens_sha256: str | None = None
    delivered: Mapping[str, KeptFile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFiles:
    """A trained model as files.

    Attributes:
        beside: Name → content of settings and tokenizer.
        weights: The file of weights, which a source of its tensors fills.
        held: The tensors, of a model whose process has them; those of an outline are empty.
    """

    beside: dict[str, bytes]
    weights: WeightFile
    held: HeldWeights

    def in_memory(self) -> dict[str, bytes]:
        """Name → content of all files, of a model whose process has its tensors."""
        return {self.weights.name: self.weights.to_bytes(self.held)} | self.beside


def model_files(model: Any, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, bytes]:
    """As ``plan_files``, built in memory."""
    return plan_files(model, tokenizer).in_memory()


def plan_files(
    model: Any, tokenizer: PreTrainedTokenizerBase | None, merge: MergeWhileRead | None = None
) -> PlannedFiles:
    """Weights as safetensors, config and tokenizer.

    A PEFT model gives its adapter (``adapter_model.safetensors``, ``adapter_config.json``).

    Args:
        model: A model, or its outline while its weights are shared out over ranks.
        tokenizer: Of the model; ``None`` without one.
        merge: Makes the model's tensors while they are read; the model is its outline.

    Raises:
        TrainingDiverged: A weight that lies here is not a finite number.
    """
    made = _adapter_files(model) if hasattr(model, "peft_config") else _whole_files(model, merge)
    if tokenizer is not None:
        made.beside.update(_tokenizer_files(tokenizer))
    return made


def weight_files(model: Any) -> dict[str, bytes]:
    """All weights of a model, and its settings as ``save_pretrained`` writes them, if any.

    Raises:
        TrainingDiverged: A weight is not finite.
    """
    return _whole_files(model).in_memory()


def _whole_files(model: Any, merge: MergeWhileRead | None = None) -> PlannedFiles:
    state = model.state_dict(keep_vars=True)
    require_finite_model(model, state)
    weights = _without_aliases(state)
    files = {}
    if hasattr(model, "config"):
        files["config.json"] = _config_as_saved(model).to_json_string(use_diff=True).encode()
    generation = getattr(model, "generation_config", None)
    if generation is not None and hasattr(model, "can_generate") and model.can_generate():
        text = generation.to_json_string(use_diff=True, keys_to_pop=["compile_config"])
        files["generation_config.json"] = text.encode()
    convert = _conversion_of(model)
    if merge is not None:
        weights = merge.sources(weights)
        convert = partial(_merge_and_convert, merge, convert)
    return PlannedFiles(
        beside=files,
        weights=WeightFile(
            "model.safetensors",
            weights,
            convert=convert,
            unit_of=None if merge is None else merge.module_of,
        ),
        held=HeldWeights(weights),
    )


def _merge_and_convert(
    merge: MergeWhileRead, convert: Convert | None, tensors: dict[str, Any]
) -> Mapping[str, Any]:
    merged = merge.merge(tensors)
    return merged if convert is None else convert(merged)


def _config_as_saved(model: Any) -> Any:
    """A model's config with its class and the type of its weights, which loaders choose by."""
    config = deepcopy(model.config)
    if hasattr(model, "can_generate"):
        config.dtype = str(model.dtype).removeprefix("torch.")
        config.architectures = [type(model).__name__.removeprefix("FSDP")]
    return config


def _adapter_files(model: Any) -> PlannedFiles:
    """The adapter of a PEFT model, and the config of its base."""
    from peft import get_peft_model_state_dict

    # The path of the base on this machine stays private; ``with_named_base`` says which it is.
    adapter = model.peft_config["default"].to_dict() | {BASE_FIELD: None}
    trained = model.state_dict(keep_vars=True)
    state = get_peft_model_state_dict(model, state_dict=trained)
    require_finite_weights(state)
    published = _without_aliases(state)
    # Under the names of training, by which a source of shared weights knows them.
    names = {id(tensor): name for name, tensor in trained.items()}
    weights = {names.get(id(tensor), name): tensor for name, tensor in published.items()}
    renamed = {names.get(id(tensor), name): name for name, tensor in published.items()}
    config = deepcopy(model.get_base_model().config)
    # The adapter belongs to the full-precision base; four bits were a way to train it.
    vars(config).pop("quantization_config", None)
    return PlannedFiles(
        beside={
            ADAPTER_CONFIG: json.dumps(adapter, default=_plain, indent=2).encode(),
            "config.json": config.to_json_string(use_diff=True).encode(),
        },
        weights=WeightFile(
            "adapter_model.safetensors",
            weights,
            convert=lambda tensors: {renamed[name]: each for name, each in tensors.items()},
        ),
        held=HeldWeights(weights),
    )


def with_named_base(files: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    """A model's files; an adapter's settings that name no base yet name this one."""
    named = dict(files)
    if ADAPTER_CONFIG in named:
        settings = json.loads(named[ADAPTER_CONFIG])
        if settings.get(BASE_FIELD) is None:
            named[ADAPTER_CONFIG] = json.dumps(settings | {BASE_FIELD: name}, indent=2).encode()
    return named


def publishes_as_held(model: Any) -> bool:
    """Whether the files of a model have its tensors as it holds them, under the same names."""
    convert = _conversion_of(model)
    held = model.state_dict(keep_vars=True)
    published = held if convert is None else convert(dict(held))
    return {name: id(each) for name, each in published.items()} == {
        name: id(each) for name, each in held.items()
    }


def _conversion_of(model: Any) -> Convert | None:
    """Weights under the names, and in the parts, that ``save_pretrained`` writes.

    A version of Transformers may hold a model under other names than its published weights have,
    or several of them as one (the experts of a layer); other programs read the published ones.
    """
    if not hasattr(model, "can_generate"):  # no model of Transformers
        return None
    from transformers.core_model_loading import revert_weight_conversion

    return partial(revert_weight_conversion, model)


def _without_aliases(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Tied weights once, under their first name."""
    seen: set[tuple[int, int]] = set()
    kept = {}
    for name, tensor in weights.items():
        # Tensors without memory are tied where they are one.
        place = (id(tensor) if tensor.is_meta else tensor.data_ptr(), tensor.numel())
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        kept[name] = tensor
    return kept


def _tokenizer_files(tokenizer: PreTrainedTokenizerBase) -> dict[str, bytes]:
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None:
        return {}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": tokenizer.model_max_length,
        **{name: str(token) for name, token in tokenizer.special_tokens_map.items()},
    }
    for name, usual in _USUAL_SETTINGS.items():
        value = getattr(tokenizer, name, usual)
        if value != usual:
            settings[name] = value
    further = [str(token) for token in getattr(tokenizer, "extra_special_tokens", None) or ()]
    if further:
        settings["extra_special_tokens"] = further
    if tokenizer.chat_template:
        settings["chat_template"] = tokenizer.chat_template
    return {
        "tokenizer.json": core.to_str().encode(),
        "tokenizer_config.json": json.dumps(settings, indent=2).encode(),
    }


def _plain(value: object) -> object:
    if isinstance(value, (set, frozenset, tuple)):
        return sorted(value, key=str)
    return str(value)
