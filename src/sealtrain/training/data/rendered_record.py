"""A record as the model learns it: its tokens, and the ones that carry a loss.

For the desk, where an owner looks at a record of the owner's own file (spec/recipe.md §2.2). Each
phase's trainer turns records into tokens by itself; what stands here says the same for one record,
and a test holds it against the batches of the trainers. A guest never renders a record to show it.

A trainer may put several records into one row, add augmentation, noise or padding. None of this is
shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal

from sealtrain.base.canonical import parse_foreign
from sealtrain.errors import SealtrainError
from sealtrain.recipe.conversations import TOOLS
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.data.conversations import check_template, check_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.recipe import PhaseRecipe

Use = Literal["learned", "masked", "scored", "prompt", "read", "left-out"]
"""What a token is for: it carries a loss; it is context of one that does; it is part of a text
whose score is learned; the model answers it; the model reads it; the trainer leaves it out."""

Record = Mapping[str, Any]
_PROMPT: Final[Use] = "prompt"
_READ: Final[Use] = "read"
_LEFT_OUT: Final[Use] = "left-out"
_NO_LOSS: Final = -100
_ENDED: Final = ("sft", "dpo", "reward", "rlhf")
"""Phases that put the end token behind a text, or wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One sequence of tokens that a record becomes.

    Attributes:
        name: Field of the recipe's columns that it stands for.
        ids: Token ids, as the model gets them.
        uses: What each token is for.
        cut: Tokens that the recipe's length cuts off.
    """

    name: str
    ids: tuple[int, ...]
    uses: tuple[Use, ...]
    cut: int = 0

    @property
    def learned(self) -> int:
        """How many tokens carry a loss."""
        return self.uses.count("learned")

    def spans(self, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[Use, str]]:
        """Runs of tokens of one use, each with its text, special tokens included."""
        for use, run in groupby(zip(self.uses, self.ids, strict=True), key=lambda pair: pair[0]):
            ids = [token for _, token in run]
            yield use, str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))


def explain_unrendered(recipe: PhaseRecipe) -> str | None:
    """Why records of a recipe are not shown as tokens; ``None`` where they are."""
    if recipe.phase not in _RENDERERS:
        return f"phase {recipe.phase} shows no records as tokens"
    if recipe.scripts:
        return "a script of the engineer's reads the records"
    if recipe.columns.kind in ("image", "tabular"):
        return "the model reads numbers or images"
    if recipe.columns.kind == "tokens":
        return "the records are tokens already"
    if recipe.backend.name == "axolotl":
        return "backend axolotl turns records into tokens by itself"
    return None


def render_record(
    recipe: PhaseRecipe, tokenizer: PreTrainedTokenizerBase, record: Record
) -> list[Rendered]:
    """What a record becomes.

    Args:
        recipe: One of which ``explain_unrendered`` is ``None``.
        tokenizer: Its tokenizer; ``trainer.eos_token`` is set in it, as training does.
        record: Field of the recipe's columns → value, as ``read_rows`` gives it.

    Raises:
        ModelInvalid: The tokenizer has no chat template, or no end token, where one is needed.
        RecordInvalid: The chat template, or the tokenizer, refuses the record.
    """
    end = getattr(recipe.trainer, "eos_token", None)
    if end is not None:
        tokenizer.eos_token = end
    spoken = any(name != TOOLS and isinstance(value, list) for name, value in record.items())
    if recipe.phase == "sft" and spoken:
        check_template(tokenizer)  # which ends what is said
    elif recipe.phase in _ENDED or getattr(recipe, "appends_eos", False):
        check_tokenizer(tokenizer, conversations=spoken)
    try:
        return _RENDERERS[recipe.phase](recipe, tokenizer, record)
    except SealtrainError:
        raise
    except Exception as error:  # a template raises what it likes, and may quote the record
        raise RecordInvalid(
            "the tokenizer's chat template refuses the record"
            if spoken
            else "the tokenizer refuses the record",
            check="columns",
            got=type(error).__name__,
            hint="see which roles and order of turns the template allows",
        ) from None


def compares_only(recipe: PhaseRecipe) -> bool:
    """Whether a phase learns from the difference of two answers, and from nothing else."""
    return bool(getattr(recipe.trainer, "compares_only", False))


def differs(first: Sequence[int], second: Sequence[int], most: int | None = None) -> bool:
    """Whether two answers to one prompt have different tokens: else their difference is zero.

    Args:
        first: Tokens of the prompt and an answer. Texts that differ may have equal ones, as
            conversations of which the chat template does not write a key, such as an id.
        second: The same of the other answer.
        most: Tokens of each that are read; all when ``None``.
    """
    return list(first[:most]) != list(second[:most])


def _sft(recipe: Any, tokenizer: Any, record: Record) -> list[Rendered]:
    """As ``trl.SFTTrainer._prepare_dataset``."""
    trainer = recipe.trainer
    if "prompt" in record:
        completion = _add_end(record["completion"], tokenizer)
        asked = _tokens(tokenizer, record["prompt"])
        ids = _tokens(tokenizer, record["prompt"] + completion)
        only = trainer.completion_only_loss is not False
        masked = _common(asked, ids) if only else 0
        uses = _uses(ids, masked)
        name = "completion"
    elif "messages" in record:
        name = "messages"
        ids, uses = _conversation(trainer, tokenizer, record)
    else:
        name = "text"
        ids = _tokens(tokenizer, _add_end(record["text"], tokenizer))
        uses = _uses(ids, 0)
    length = None if trainer.packing else trainer.max_length
    return [_cut(name, ids, uses, length, keep_end=trainer.truncation_mode == "keep_end")]


def _conversation(trainer: Any, tokenizer: Any, record: Record) -> tuple[list[int], list[Use]]:
    settings: dict[str, Any] = {"tools": _tools(record)}
    if trainer.assistant_only_loss:
        from trl.chat_template_utils import get_training_chat_template, has_generation_markers

        if not has_generation_markers(tokenizer.chat_template):
            settings["chat_template"] = get_training_chat_template(tokenizer)
        settings["return_assistant_tokens_mask"] = True
    done = tokenizer.apply_chat_template(
        record["messages"], tokenize=True, return_dict=True, **settings
    )
    ids = list(done["input_ids"])
    marks = done["assistant_masks"] if trainer.assistant_only_loss else [1] * len(ids)
    return ids, ["learned" if mark else "masked" for mark in marks]


def _cpt(recipe: Any, tokenizer: Any, record: Record) -> list[Rendered]:
    """As ``training.data.packing.text_encoder``."""
    ids = list(tokenizer(record["text"], add_special_tokens=False)["input_ids"])
    if recipe.appends_eos:
        ids.append(tokenizer.eos_token_id)
    return [_cut("text", ids, _uses(ids, 0), None)]


def _dpo(recipe: Any, tokenizer: Any, record: Record) -> list[Rendered]:
    """As ``_prepare_dataset`` and collator of ``trl.DPOTrainer`` and ``trl.KTOTrainer``."""
    if recipe.trainer.kind == "orpo":
        return _orpo(recipe, tokenizer, record)
    given = _with_prompt(record)
    names = ("completion",) if recipe.trainer.kind == "kto" else ("chosen", "rejected")
    tools = _tools(record)
    asked = _tokens(tokenizer, given["prompt"], tools=tools, add_generation_prompt=True)
    whole = {
        name: _tokens(tokenizer, given["prompt"] + _add_end(given[name], tokenizer), tools=tools)
        for name in names
    }
    masked = min(_common(asked, ids) for ids in whole.values())
    length = recipe.trainer.max_length
    if compares_only(recipe) and not differs(whole["chosen"], whole["rejected"], length):
        return [_cut(name, ids, [_LEFT_OUT] * len(ids), length) for name, ids in whole.items()]
    return [_cut(name, ids, _uses(ids, masked), length) for name, ids in whole.items()]


def _orpo(recipe: Any, tokenizer: Any, record: Record) -> list[Rendered]:
    """By ``trl.ORPOTrainer`` itself, whose rules of where an answer begins are its own."""
    from functools import partial

    from trl.data_utils import maybe_apply_chat_template, maybe_extract_prompt
    from trl.experimental.orpo import ORPOTrainer

    trainer: Any = SimpleNamespace(
        processing_class=tokenizer,
        max_length=recipe.trainer.max_length,
        is_encoder_decoder=False,
    )
    trainer.build_tokenized_answer = partial(ORPOTrainer.build_tokenized_answer, trainer)
    texts = maybe_apply_chat_template(maybe_extract_prompt(dict(record)), tokenizer)
    row = ORPOTrainer.tokenize_row(trainer, texts)
    found = []
    for name in ("chosen", "rejected"):
        ids, labels = row[f"{name}_input_ids"], row[f"{name}_labels"]
        uses: list[Use] = ["masked" if label == _NO_LOSS else "learned" for label in labels]
        found.append(_cut(name, ids, uses, None))
    return found


def _reward(recipe: Any, tokenizer: Any, record: Record) -> list[Rendered]:
    """As ``trl.RewardTrainer._prepare_dataset``, which leaves out pairs that are too long."""
    prompt, tools = record.get("prompt"), _tools(record)
    whole = {}
    for name in ("chosen", "rejected"):
        answer = _add_end(record[name], tokenizer)
        text = answer if prompt is None else prompt + answer
        whole[name] = _tokens(tokenizer, text, tools=tools)
    length = recipe.trainer.max_length
    fits = length is None or all(len(ids) <= length for ids in whole.values())
    equal = compares_only(recipe) and not differs(whole["chosen"], whole["rejected"])
    use: Use = _LEFT_OUT if equal or not fits else "scored"
    return [
        Rendered(name=name, ids=tuple(ids), uses=(use,) * len(ids)) for name, ids in whole.items()
    ]


def _rlhf(recipe: Any, tokenizer: Any, record: Record) -> list[Rendered]:
    """As ``training.inputs.prompts.prompt_tokens``: the model answers, and learns its answers."""
    ids = _tokens(tokenizer, record["prompt"], add_generation_prompt=True)
    return [Rendered(name="prompt", ids=tuple(ids), uses=(_PROMPT,) * len(ids))]


def _read(recipe: Any, tokenizer: Any, record: Record) -> list[Rendered]:
    """Texts of ``classify`` and ``embed``, as their encoders cut them."""
    length = getattr(recipe.trainer, "max_length", None)
    limit = {} if length is None else {"truncation": True, "max_length": length}
    found = []
    for name, text in record.items():
        if name != "label" and isinstance(text, str):
            whole, ids = _tokens(tokenizer, text), list(tokenizer(text, **limit)["input_ids"])
            found.append(
                Rendered(
                    name=name, ids=tuple(ids), uses=(_READ,) * len(ids), cut=len(whole) - len(ids)
                )
            )
    return found


_RENDERERS: Final[dict[str, Callable[[Any, Any, Record], list[Rendered]]]] = {
    "sft": _sft,
    "cpt": _cpt,
    "dpo": _dpo,
    "reward": _reward,
    "rlhf": _rlhf,
    "classify": _read,
    "embed": _read,
}


def _tools(record: Record) -> Any:
    tools = record.get(TOOLS)
    return parse_foreign(tools.encode()) if isinstance(tools, str) else tools


def _add_end(text: Any, tokenizer: Any) -> Any:
    """Text with the end token; a conversation, which its template ends, as it is."""
    if not isinstance(text, str) or text.endswith(tokenizer.eos_token):
        return text
    return text + tokenizer.eos_token


def _tokens(tokenizer: Any, value: Any, **settings: Any) -> list[int]:
    if isinstance(value, str):
        return list(tokenizer(value)["input_ids"])
    done = tokenizer.apply_chat_template(value, tokenize=True, return_dict=True, **settings)
    return list(done["input_ids"])


def _with_prompt(record: Record) -> Record:
    if "prompt" in record:
        return record
    from trl.data_utils import extract_prompt

    return dict(record) | extract_prompt(dict(record))


def _common(ids: list[int], others: list[int]) -> int:
    pairs = enumerate(zip(ids, others, strict=False))
    shorter = min(len(ids), len(others))
    return next((at for at, (token, other) in pairs if token != other), shorter)


def _uses(ids: list[int], masked: int) -> list[Use]:
    return ["masked" if at < masked else "learned" for at in range(len(ids))]


def _cut(
    name: str, ids: list[int], uses: list[Use], length: int | None, *, keep_end: bool = False
) -> Rendered:
    kept = slice(None) if length is None else slice(-length, None) if keep_end else slice(length)
    cut = 0 if length is None else max(0, len(ids) - length)
    return Rendered(name=name, ids=tuple(ids[kept]), uses=tuple(uses[kept]), cut=cut)
