"""What a saved tokenizer's own files say: its end token, how many tokens it has.

Only JSON files are read, and no library of tokenizers. What they do not say for sure is not judged:
the guest asks the opened tokenizer the same questions, in the words of this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.canonical import parse_foreign
from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_SETTINGS_BYTES
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.recipe.errors import ModelInvalid

if TYPE_CHECKING:
    from sealtrain.recipe.recipe import PhaseRecipe

BYTES_TOKENS: Final = 3 + 256
"""Tokens of the built-in tokenizer: padding, begin and end, and one for each byte."""
_MAX_TOKENIZER_BYTES: Final = 64 << 20
_WITHOUT_DEFAULT: Final = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of tokenizers that have no special token but those that their files name."""
_SPECIAL: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """What is known of a tokenizer.

    Attributes:
        ends: Whether it has an end token; ``None`` where its class may have one of its own.
        pads: Whether it has a padding token, likewise.
        tokens: How many it has, added ones included.
        plain: Its class adds nothing to what its files say.
    """

    ends: bool | None = None
    pads: bool | None = None
    tokens: int | None = None
    plain: bool = False


def needs_end(recipe: PhaseRecipe) -> bool:
    """Whether the recipe's records end with the tokenizer's end token.

    A conversation ends as the chat template says; its batches are padded with the end token where
    the tokenizer has no token for that.
    """
    trainer: Any = recipe.trainer
    if getattr(trainer, "eos_token", None) is not None:
        return False
    if recipe.phase == "cpt":
        return bool(getattr(recipe, "appends_eos", False))
    if recipe.phase == "sft":
        return recipe.columns.kind != "messages"
    return recipe.phase in ("dpo", "reward", "rlhf", "vlm")


def without_end() -> ModelInvalid:
    """The refusal of a tokenizer without an end token, at the desk and in the guest."""
    return ModelInvalid(
        "the tokenizer has no end token, so no answer would end",
        check="tokenizer",
        expected="a tokenizer with an end token",
        hint="set tokenizer.eos_token and save it",
    )


def without_template() -> ModelInvalid:
    """The refusal of a tokenizer that cannot write conversations."""
    return ModelInvalid(
        "the tokenizer has no chat template, and the records are conversations",
        check="tokenizer",
        expected="a tokenizer with a chat template",
        hint="set tokenizer.chat_template and save it, or read records of plain text",
    )


def tokens_beyond(rows: int, tokens: int) -> ModelInvalid:
    """The refusal of a tokenizer with more tokens than the model has embeddings.

    Args:
        rows: Of the embedding.
        tokens: Of the tokenizer, added ones included.
    """
    return ModelInvalid(
        "the model has fewer tokens than its tokenizer",
        check="model",
        got=f"vocab_size {rows}",
        expected=f"at least {tokens}",
        hint="resize the model's embeddings and save it, or set vocab_size in model.config; or "
        "leave the added tokens out of the tokenizer",
    )


def tokenizer_facts(folder: Path) -> TokenizerFacts:
    """Read what a folder with a tokenizer says; nothing of one that is not here.

    Raises:
        OSError: A file cannot be read.
    """
    settings = _read(folder / "tokenizer_config.json", MAX_SETTINGS_BYTES)
    whole = _read(folder / "tokenizer.json", _MAX_TOKENIZER_BYTES)
    named = _read(folder / "special_tokens_map.json", MAX_SETTINGS_BYTES) or {}
    if settings is None or whole is None:
        return TokenizerFacts()
    named = {**named, **settings}
    sure = settings.get("tokenizer_class") in _WITHOUT_DEFAULT
    ends, pads = (
        True if named.get(name) else (False if sure else None)
        for name in ("eos_token", "pad_token")
    )
    known = _vocabulary(whole)
    if known is None:
        return TokenizerFacts(ends=ends, pads=pads, plain=sure)
    known |= set(_list_added(whole, named))
    return TokenizerFacts(ends=ends, pads=pads, tokens=len(known), plain=sure)


def _read(path: Path, most: int) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = parse_foreign(read_bounded(path, most))
    except (DataInvalid, LimitExceeded):
        return None  # the library that loads it says what is wrong
    return found if isinstance(found, dict) else None


def _vocabulary(whole: Mapping[str, Any]) -> set[str] | None:
    model = whole.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        return set(vocabulary)
    if isinstance(vocabulary, list) and all(
        isinstance(entry, list) and entry for entry in vocabulary
    ):
        return {str(entry[0]) for entry in vocabulary}
    return None


def _list_added(whole: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    """Tokens that are added to the vocabulary as the tokenizer is loaded."""
    listed = whole.get("added_tokens")
    decoder = settings.get("added_tokens_decoder")
    tokens = [*(listed if isinstance(listed, list) else ())]
    tokens += decoder.values() if isinstance(decoder, dict) else ()
    tokens += (settings.get(name) for name in _SPECIAL)
    more = settings.get("additional_special_tokens")
    tokens += more if isinstance(more, list) else ()
    for token in tokens:
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text:
            yield text
