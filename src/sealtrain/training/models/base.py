"""Base models and tokenizers: from a local folder of safetensors, or from a config and a seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.errors import UsageError
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.tokenizerfacts import BYTES_TOKENS, tokenizer_facts, tokens_beyond
from sealtrain.training.devices import compute_device
from sealtrain.training.models.adapters import prepare_base, quantization_config
from sealtrain.training.models.sealed import load_sealed_model, load_sealed_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sealtrain.recipe.phases.rlhf import RewardModel
    from sealtrain.recipe.schema import PhaseRecipe
    from sealtrain.training.data.sources import SealedFolder

_SPECIAL = ("<pad>", "<bos>", "<eos>")
BYTE_VOCABULARY = BYTES_TOKENS
"""Tokens of the byte tokenizer: padding, begin, end, then one for each byte."""


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """A token for each byte of UTF-8, in byte order after the three special tokens.

    Built in memory; it does not depend on data.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*_SPECIAL, *alphabet))}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    wrapped: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerBase = wrapped(
        tokenizer_object=core,
        pad_token="<pad>",  # noqa: S106  # names of tokens, not secrets
        bos_token="<bos>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
        model_max_length=1 << 30,
    )
    return tokenizer


def build_tokenizer(
    recipe: PhaseRecipe | RewardModel, base_dir: Path, sealed: SealedFolder | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer of a recipe, or of the reward model that it names.

    Args:
        recipe: Its model names a tokenizer.
        base_dir: Folder that the recipe's paths start from.
        sealed: The opened model, where the tokenizer lies in a sealed one.

    Raises:
        ModelInvalid: The folder holds no tokenizer, or the recipe names none.
        UsageError: The tokenizer lies in a sealed model, which is not opened here.
    """
    named = recipe.model.tokenizer
    if named is None:
        raise ModelInvalid("the recipe names no tokenizer", check="tokenizer")
    path = getattr(named, "path", None)
    if getattr(named, "kind", None) == "sealed":
        if sealed is None:
            raise UsageError(
                "the tokenizer lies in the sealed model, which only the guest can open",
                hint="train in a guest",
            )
        tokenizer = load_sealed_tokenizer(sealed)
    elif path is None:
        tokenizer = byte_tokenizer()
    else:
        tokenizer = _open_tokenizer(base_dir, path)
    return _as_the_recipe_says(tokenizer, recipe)


def desk_tokenizer(recipe: PhaseRecipe, base_dir: Path) -> PreTrainedTokenizerBase:
    """As ``build_tokenizer``, without loading torch where the tokenizer's class is plain.

    Raises:
        ModelInvalid, UsageError: As ``build_tokenizer``.
    """
    path = getattr(recipe.model.tokenizer, "path", None)
    if path is None or not tokenizer_facts(base_dir / path).plain:
        return build_tokenizer(recipe, base_dir)
    from transformers import PreTrainedTokenizerFast

    # AutoTokenizer would choose the same class, after seconds.
    return _as_the_recipe_says(_open_from(PreTrainedTokenizerFast, base_dir, path), recipe)


def _as_the_recipe_says(
    tokenizer: PreTrainedTokenizerBase, recipe: PhaseRecipe | RewardModel
) -> PreTrainedTokenizerBase:
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if recipe.model.template is not None:
        tokenizer.chat_template = recipe.model.template
    return tokenizer


def _open_tokenizer(base_dir: Path, path: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    return _open_from(AutoTokenizer, base_dir, path)


def _open_from(kind: Any, base_dir: Path, path: str) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = kind.from_pretrained(
            base_dir / path, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the library of tokenizers raises an error without a class
        raise ModelInvalid(
            f"the tokenizer in {path} cannot be loaded",
            check="tokenizer",
            got=type(error).__name__,
            hint="save it with tokenizer.save_pretrained",
        ) from None
    return tokenizer


def build_model(
    recipe: PhaseRecipe,
    base_dir: Path,
    kind: str,
    sealed: SealedFolder | None = None,
    **settings: Any,
) -> PreTrainedModel:
    """The recipe's base model on the CPU, in four bits if the recipe's adapter wants that.

    Args:
        recipe: Names a folder, a sealed model, or a config and a seed.
        base_dir: Folder that the recipe's paths start from.
        kind: Transformers' auto class: ``AutoModelForCausalLM``,
            ``AutoModelForSequenceClassification``.
        sealed: The opened model, where the recipe names a sealed one or the run begins with the
            model of the run before.
        settings: Config values the phase needs (``num_labels``, ``pad_token_id``).

    Raises:
        ModelInvalid: Unknown architecture, or weights that do not fit.
        UsageError: The model is sealed, and not opened here.
    """
    import torch
    import transformers

    auto = getattr(transformers, kind)
    model = recipe.model
    if sealed is not None:
        return load_sealed_model(recipe, sealed, kind, **settings)
    if model.kind == "sealed":
        raise UsageError(
            "the model is sealed, and only the guest can open it", hint="train in a guest"
        )
    dtype = getattr(torch, model.dtype)
    wanted = None if recipe.peft is None else recipe.peft.quantization
    if wanted is not None:
        settings["quantization_config"] = quantization_config(
            wanted,
            classifies=kind == "AutoModelForSequenceClassification",
            shared_out=recipe.backend.name in ("fsdp", "deepspeed"),
        )
        settings["device_map"] = {"": compute_device()}
    try:
        if model.kind == "folder":
            torch.manual_seed(recipe.trainer.seed)  # a head that the folder does not have is random
            built: PreTrainedModel = auto.from_pretrained(
                base_dir / model.path,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=dtype,
                attn_implementation=model.attn_implementation,
                **settings,
            )
        else:
            values = {**model.config, **settings}
            config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
            torch.manual_seed(model.init_seed)
            built = auto.from_config(
                config, dtype=dtype, attn_implementation=model.attn_implementation
            )
    except Exception as error:  # libraries have errors of their own for a bad config
        raise ModelInvalid(
            "the base model cannot be built",
            check="model",
            got=type(error).__name__,
            hint="check model.path or model.config in the recipe",
        ) from error
    return built if wanted is None else prepare_base(built)


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the model has a row for every token, before a record is read.

    Raises:
        ModelInvalid: It has fewer.
    """
    embeddings: Any = model.get_input_embeddings()
    rows = int(embeddings.weight.shape[0])
    if rows < len(tokenizer):
        raise tokens_beyond(rows, len(tokenizer))


def build_causal_model(
    recipe: PhaseRecipe,
    base_dir: Path,
    tokenizer: PreTrainedTokenizerBase,
    sealed: SealedFolder | None = None,
) -> PreTrainedModel:
    """The recipe's causal language model, fit for its tokenizer. As ``build_model``."""
    model = build_model(recipe, base_dir, "AutoModelForCausalLM", sealed)
    check_vocabulary(model, tokenizer)
    adopt_tokens(model, tokenizer)
    return model


def adopt_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give a model the special tokens that its tokenizer defines.

    The others stay as the base has them. Of several end tokens none is lost: generation stops at
    each of them (``transformers.trainer_utils.align_special_tokens`` does the same).
    """
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        value = getattr(tokenizer, name)
        if value is None:
            continue
        for settings in (model.config, model.generation_config):
            if settings is None:
                continue
            known = getattr(settings, name, None)
            if not isinstance(known, list):
                setattr(settings, name, value)
            elif value not in known:
                setattr(settings, name, [value, *known])
