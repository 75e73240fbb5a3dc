"""A model and its tokenizer out of sealed files, in anonymous memory: no path, no cache, no copy.

The guest reads ``config.json``, the weights beside it and, for the tokenizer, ``tokenizer.json``
with its settings. The owners of the records do not trust the owner of the model: the model is data,
never code, and the rules of a measured folder (``recipe.modelfolder``) hold for it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sealtrain.base.canonical import parse_json
from sealtrain.base.limits import MAX_SETTINGS_BYTES
from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.modelspec import refuse_foreign_code

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sealtrain.training.data.sources import SealedFolder

MAX_VOCABULARY_BYTES = 256 << 20
_SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def load_sealed_model(
    recipe: Any, files: SealedFolder, kind: str, **settings: Any
) -> PreTrainedModel:
    """The model on the CPU.

    Args:
        recipe: Its ``model`` is sealed.
        files: The opened model.
        kind: Transformers' auto class.
        settings: Config values the phase needs, in place of the model's own.

    Raises:
        ModelInvalid: A file is missing or breaks the module's rules, or the architecture is
            unknown.
        SealRefused: A file does not open.
    """
    import torch
    import transformers

    if "adapter_config.json" in files.file_names:
        raise ModelInvalid(
            "the sealed model is an adapter, whose base model lies elsewhere",
            check="model",
            hint="train with peft.merge: true, or merge it (sealtrain merge) and seal that",
        )
    values = _settings(files, "config.json") | settings
    weights = _weights(files)
    try:
        dtype = getattr(torch, recipe.model.dtype)
        config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
        with torch.device("meta"):  # only to find its class
            architecture: Any = type(getattr(transformers, kind).from_config(config))
        torch.manual_seed(recipe.trainer.seed)
        built, told = architecture.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            dtype=dtype,
            attn_implementation=recipe.model.attn_implementation,
            output_loading_info=True,
        )
    except Exception as error:  # libraries have errors of their own for a bad config
        raise ModelInvalid(
            "the sealed model cannot be built",
            check="model",
            got=type(error).__name__,
            hint="ask its owner to check that from_pretrained loads the unsealed folder",
        ) from None
    if told["missing_keys"] or told["mismatched_keys"]:
        raise ModelInvalid(
            "the sealed model has other weights than its architecture",
            check="model",
            got=f"{len(told['missing_keys'])} missing, {len(told['mismatched_keys'])} of another "
            "shape",
            expected="every weight",
        )
    if "generation_config.json" in files.file_names and built.can_generate():
        told = _settings(files, "generation_config.json")
        built.generation_config = transformers.GenerationConfig.from_dict(told)
    model: PreTrainedModel = built
    return model


def load_sealed_tokenizer(files: SealedFolder) -> PreTrainedTokenizerBase:
    """The tokenizer that lies in a sealed model. Raises as ``load_sealed_model``."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    settings = _settings(files, "tokenizer_config.json")
    vocabulary = _read(files, "tokenizer.json", MAX_VOCABULARY_BYTES)
    given = {f"{name}_token": _text(settings.get(f"{name}_token")) for name in _SPECIAL}
    length = settings.get("model_max_length")
    wrapped: Any = PreTrainedTokenizerFast
    try:
        tokenizer: PreTrainedTokenizerBase = wrapped(
            tokenizer_object=Tokenizer.from_buffer(vocabulary),
            model_max_length=length if isinstance(length, int) else 1 << 30,
            **{name: token for name, token in given.items() if token is not None},
        )
    except Exception as error:  # the tokenizers library raises bare exceptions
        raise ModelInvalid(
            "the sealed model's tokenizer cannot be read",
            check="tokenizer",
            got=type(error).__name__,
            hint="save it with tokenizer.save_pretrained",
        ) from None
    return tokenizer


def _text(token: object) -> str | None:
    """A special token as text; saved ones may be objects with their text in ``content``."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _weights(files: SealedFolder) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    found: dict[str, Any] = {}
    names = [name for name in files.file_names if name.endswith(".safetensors") and "/" not in name]
    if not names:
        raise ModelInvalid(
            "the sealed model has no safetensors weights",
            check="model",
            hint="save it with save_pretrained",
        )
    for name in sorted(names):
        try:
            part = load(_read(files, name, None))
        except (SafetensorError, ValueError, KeyError):
            raise ModelInvalid(f"{name} holds no weights", check="model") from None
        if found.keys() & part.keys():
            raise ModelInvalid("two files hold weights of one name", check="model", got=name)
        found |= part
    return found


def _settings(files: SealedFolder, name: str) -> dict[str, Any]:
    try:
        settings = parse_json(_read(files, name, MAX_SETTINGS_BYTES), max_bytes=MAX_SETTINGS_BYTES)
        refuse_foreign_code(settings)
    except (DataInvalid, ValueError) as error:
        told = getattr(error, "message", str(error))
        raise ModelInvalid(f"{name} of the sealed model: {told}", check="model") from None
    if not isinstance(settings, dict):
        raise ModelInvalid(f"{name} of the sealed model is no JSON object", check="model")
    return settings


def _read(files: SealedFolder, name: str, most: int | None) -> bytes:
    if name not in files.file_names:
        raise ModelInvalid(
            f"the sealed model has no {name}",
            check="model",
            hint="seal the whole folder, as save_pretrained or training left it",
        )
    with files.open_file(name) as file:
        data = file.read(-1 if most is None else most + 1)
    if most is not None and len(data) > most:
        raise ModelInvalid(f"{name} of the sealed model is too long", expected=f"at most {most}")
    return data
