"""What each record leaves to learn, found before a batch is made and without a model.

A record falls into one of four parts:

1. ``whole``: it trains with all its tokens;
2. ``truncated``: it trains, cut at the recipe's length;
3. ``filtered``: the phase leaves it out for its length;
4. ``empty``: no token of it would be learned, so it is left out; nor would a pair of answers whose
   tokens are equal within the recipe's length, where the loss is of their difference alone.

Which part follows from the recipe, the tokenizer and the record alone: neither from the batch size
nor from the number of ranks, nor from the step at which a run is resumed. Phases leave out exactly
the records of parts 3 and 4, so that every batch has something to learn; a batch without would have
the loss 0 / 0. Phase ``cpt`` has no batches of records: an empty one adds nothing to its blocks but
the end token, where the recipe asks for that.

``recipe check`` counts with these functions at the owner's desk, the guest in its run log
(spec/run-log.md), and the filters of the phases call ``learns``, ``blank``
and ``rendered_record.differs``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal

from sealtrain.errors import SealtrainError
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.data.conversations import check_template, find_marked_template
from sealtrain.training.data.rendered_record import compares_only, differs
from sealtrain.training.data.template_check import WholeRendering

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.schema import PhaseRecipe

Part = Literal["whole", "truncated", "filtered", "empty"]
Record = Mapping[str, Any]
Row = dict[str, list[int]]
"""``input_ids``, and ``labels`` with -100 where nothing is learned."""
Judge = Callable[[Sequence[Record]], list[Part]]
"""The part of each record; records have the names of the recipe's fields."""

_IGNORED: Final = -100


@dataclass(slots=True)
class RecordTally:
    """How many records of one dataset fall into each part."""

    whole: int = 0
    truncated: int = 0
    filtered: int = 0
    empty: int = 0

    def add(self, parts: Iterable[Part]) -> None:
        """Count records."""
        for part in parts:
            setattr(self, part, getattr(self, part) + 1)

    @property
    def records(self) -> int:
        """All of them."""
        return self.whole + self.truncated + self.filtered + self.empty

    @property
    def trained(self) -> int:
        """Those that leave something to learn."""
        return self.whole + self.truncated

    @property
    def few_learn(self) -> bool:
        """Whether half of the records, or more, leave nothing to learn."""
        return self.records > 0 and 2 * self.trained <= self.records

    def to_dict(self) -> dict[str, int]:
        """JSON-ready form, with ``records``."""
        return {"records": self.records, **asdict(self)}


def counts_records(recipe: PhaseRecipe) -> bool:
    """Whether a recipe's records are counted: scripts read them as they like."""
    return recipe.phase != "evaluate" and not recipe.scripts


def needs_texts(recipe: PhaseRecipe) -> bool:
    """Whether records must be read to be counted; the others train whole."""
    return recipe.phase != "rlhf" and recipe.columns.kind not in ("image", "tabular")


def blank(text: object) -> bool:
    """Whether a text holds nothing but white space."""
    return isinstance(text, str) and not text.strip()


def has_texts(record: Record, names: Sequence[str]) -> bool:
    """Whether each of a record's texts says something."""
    return not any(blank(record[name]) for name in names)


def learns(labels: Sequence[int], lengths: Sequence[int] | None = None) -> bool:
    """Whether a causal model learns a token of a row.

    Args:
        labels: -100 where nothing is learned. The first token of a text has none before it that
            would predict it.
        lengths: Of the texts in the row; one text when ``None``.
    """
    starts = {0} if lengths is None else {0, *accumulate(lengths)}
    return any(label != _IGNORED and at not in starts for at, label in enumerate(labels))


def judge_for(recipe: PhaseRecipe, tokenizer: PreTrainedTokenizerBase | None) -> Judge:
    """The judge of a recipe's training records.

    Args:
        recipe: One that ``counts_records`` and ``needs_texts``. The judge of phase ``vlm`` is in
            ``training.inputs.images``: it needs to know how the model takes images; that of
            backend axolotl in ``training.backends.axolotl``.
        tokenizer: The recipe's; phase ``cpt`` needs none.

    Raises:
        ModelInvalid: There is no tokenizer.
        RecordInvalid: The judge, where the chat template refuses a record.
    """
    if recipe.phase == "cpt":
        return _of_tokens
    if tokenizer is None:
        raise ModelInvalid("the recipe names no tokenizer", check="tokenizer")
    encode = _TextEncoder(tokenizer)
    trainer: Any = recipe.trainer
    if recipe.phase == "sft":
        return _Supervised(recipe, encode)
    if recipe.phase in ("embed", "classify"):
        return _Texts(recipe, encode)
    if recipe.phase == "reward":
        end = trainer.eos_token
        encode = encode if end is None else _TextEncoder(tokenizer, end)
        return _Scored(encode, trainer.max_length, compares=compares_only(recipe))
    return _Answers(recipe, encode)


def make_supervised_rows(
    recipe: PhaseRecipe, tokenizer: PreTrainedTokenizerBase
) -> Callable[[Sequence[Record]], list[Row]]:
    """What makes rows of phase ``sft`` of records, by the tokens that ``judge_for`` judges.

    Args:
        recipe: Of phase ``sft``, without packing.
        tokenizer: The recipe's.
    """
    return _Supervised(recipe, _TextEncoder(tokenizer)).rows


class _TextEncoder:
    """Texts and conversations as TRL turns them into tokens."""

    def __init__(self, tokenizer: Any, end: str | None = None) -> None:
        self.tokenizer = tokenizer
        self._end = tokenizer.eos_token if end is None else end
        self._whole = WholeRendering()
        self._ids_alone: Callable[[list[str]], Any] | None = None
        self._tried = False

    def end(self, text: str) -> str:
        """A text with the end token at its end."""
        if self._end is None or text.endswith(self._end):
            return text
        return text + str(self._end)

    def ids(self, value: Any, **settings: Any) -> list[int]:
        return list(self.encode(value, **settings)["input_ids"])

    def encode(self, value: Any, **settings: Any) -> Mapping[str, Any]:
        if isinstance(value, str):
            found: Mapping[str, Any] = self.tokenizer(text=value)
            return found
        check_template(self.tokenizer)
        try:
            rendered: Mapping[str, Any] = self.tokenizer.apply_chat_template(
                value, tokenize=True, return_dict=True, **settings
            )
            if isinstance(value, list):
                self._require_whole(value, settings)
        except SealtrainError:
            raise
        except Exception as error:  # a template raises what it likes, with the record in its text
            if type(error).__name__ == "TemplateSyntaxError":
                raise ModelInvalid(
                    "the chat template of the base model is no valid Jinja",
                    check="tokenizer",
                    got=f"line {getattr(error, 'lineno', '?')}",
                    hint="mend tokenizer.chat_template and save the tokenizer",
                ) from None
            raise RecordInvalid(
                "the chat template of the base model refuses a record",
                check="tokenizer",
                got=type(error).__name__,
                hint="see which roles and orders of messages the template takes, and leave other "
                "records out; or train another chat template",
            ) from None
        return rendered

    def _require_whole(self, turns: list[Any], settings: Mapping[str, Any]) -> None:
        asked = ("tools", "chat_template", "add_generation_prompt")
        chosen = {name: settings[name] for name in asked if name in settings}

        def render() -> str:
            return str(self.tokenizer.apply_chat_template(turns, tokenize=False, **chosen))

        self._whole.require(turns, settings.get("tools"), render)

    def many(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        given = list(texts)
        core: Any = getattr(self.tokenizer, "backend_tokenizer", None)
        if self._ids_alone is not None and core.truncation is None and core.padding is None:
            return [row.ids for row in self._ids_alone(given)]
        rows = list(self.tokenizer(given)["input_ids"])
        if not self._tried:
            # Without the place of each token in its text: half the time, where ids are the same.
            self._tried = True
            quick = getattr(core, "encode_batch_fast", None)
            if quick is not None and [row.ids for row in quick(given)] == rows:
                self._ids_alone = quick
        return rows


class _Supervised:
    """Phase ``sft``."""

    def __init__(self, recipe: Any, encode: _TextEncoder) -> None:
        trainer = recipe.trainer
        end = trainer.eos_token
        self._encode = encode if end is None else _TextEncoder(encode.tokenizer, end)
        self._kind = recipe.columns.kind
        self._most, self._from_end = trainer.max_length, trainer.truncation_mode == "keep_end"
        splits = trainer.packing and trainer.packing_strategy != "bfd"
        self._cuts = self._most is not None and not splits
        if trainer.packing:
            self._from_end = False
        self._assistant = trainer.assistant_only_loss
        self._completion = trainer.completion_only_loss is not False
        self._template = find_marked_template(encode.tokenizer) if self._assistant else None

    def __call__(self, records: Sequence[Record]) -> list[Part]:
        if self._assistant:
            return [self._of_labels(labels) for _, labels in self._mark(records)]
        return [self._part(ids, start) for ids, start in self._begin(records)]

    def rows(self, records: Sequence[Record]) -> list[Row]:
        """Records as they train, cut at the recipe's length; one of part ``empty`` as well."""
        pairs = (
            self._mark(records)
            if self._assistant
            else [
                (ids, [*([_IGNORED] * start), *ids[start:]]) for ids, start in self._begin(records)
            ]
        )
        kept = slice(None)
        if self._cuts:
            kept = slice(-self._most, None) if self._from_end else slice(self._most)
        return [{"input_ids": ids[kept], "labels": labels[kept]} for ids, labels in pairs]

    def _begin(self, records: Sequence[Record]) -> list[tuple[list[int], int]]:
        """The tokens of each record, and the first of them that is learned."""
        if self._kind == "text":
            rows = self._encode.many([self._encode.end(record["text"]) for record in records])
            return [(ids, 0) for ids in rows]
        if self._kind == "prompt-completion":
            asked = self._encode.many([record["prompt"] for record in records])
            whole = self._encode.many(
                [record["prompt"] + self._encode.end(record["completion"]) for record in records]
            )
            return [
                (ids, _count_shared(prompt, ids) if self._completion else 0)
                for prompt, ids in zip(asked, whole, strict=True)
            ]
        return [
            (self._encode.ids(record["messages"], **self._settings(record)), 0)
            for record in records
        ]

    def _mark(self, records: Sequence[Record]) -> list[tuple[list[int], list[int]]]:
        """The tokens of each conversation, and its labels: what the assistant says is learned."""
        found = []
        for record in records:
            encoded = self._encode.encode(
                record["messages"], return_assistant_tokens_mask=True, **self._settings(record)
            )
            ids, marks = list(encoded["input_ids"]), encoded.get("assistant_masks") or ()
            labels = [token if mark else _IGNORED for token, mark in zip(ids, marks, strict=False)]
            found.append((ids, labels))
        return found

    def _settings(self, record: Record) -> dict[str, Any]:
        return {"tools": _tools(record.get("tools")), "chat_template": self._template}

    def _part(self, ids: Sequence[int], start: int) -> Part:
        """Of a record whose tokens from ``start`` on are learned."""
        length = len(ids)
        cut = self._cuts and length > self._most
        if cut:
            start -= length - self._most if self._from_end else 0
            length = self._most
        if length <= max(1, start):  # the first token has none before it that would predict it
            return "empty"
        return "truncated" if cut else "whole"

    def _of_labels(self, labels: list[int]) -> Part:
        cut = self._cuts and len(labels) > self._most
        kept = labels
        if cut:
            kept = labels[-self._most :] if self._from_end else labels[: self._most]
        if not learns(kept):
            return "empty"
        return "truncated" if cut else "whole"


class _Texts:
    """Phases ``embed`` and ``classify``: texts that are read, and no token is predicted."""

    def __init__(self, recipe: Any, encode: _TextEncoder) -> None:
        self._encode, self._most = encode, recipe.trainer.max_length
        self._names = text_fields(recipe)

    def __call__(self, records: Sequence[Record]) -> list[Part]:
        longest = [0] * len(records)
        for name in self._names:
            rows = self._encode.many([record[name] for record in records])
            longest = [max(most, len(row)) for most, row in zip(longest, rows, strict=True)]
        return [
            "empty"
            if not has_texts(record, self._names)
            else ("truncated" if most > self._most else "whole")
            for record, most in zip(records, longest, strict=True)
        ]


class _Answers:
    """Phase ``dpo``: answers behind a prompt, which alone may fill the length."""

    def __init__(self, recipe: Any, encode: _TextEncoder) -> None:
        self._encode, self._most = encode, recipe.trainer.max_length
        self._odds = recipe.trainer.kind == "orpo"
        self._compares = compares_only(recipe)

    def __call__(self, records: Sequence[Record]) -> list[Part]:
        return [self._judge(record) for record in records]

    def _judge(self, record: Record) -> Part:
        if self._compares and record["chosen"] == record["rejected"]:
            return "empty"
        if "completion" in record:
            prompt, answers = record["prompt"], [record["completion"]]
        else:
            prompt, *answers = _split(record)
        written = isinstance(prompt, str)
        if self._most is None and written and not self._compares:
            return "whole"
        tools = {} if written else {"tools": _tools(record.get("tools"))}
        rows = [
            self._encode.ids(
                prompt + (self._encode.end(answer) if isinstance(answer, str) else answer),
                **tools,
            )
            for answer in answers
        ]
        if self._compares and not differs(rows[0], rows[1], self._most):
            return "empty"
        if self._most is None:
            return "whole"
        settings = {} if written else tools | {"add_generation_prompt": True}
        asked = self._encode.ids(prompt, **settings)
        begin = 1 if self._odds and self._encode.tokenizer.bos_token_id is not None else 0
        common = begin + min(_count_shared(asked, row) for row in rows)
        if common >= self._most:
            return "empty"
        return "truncated" if begin + max(map(len, rows)) > self._most else "whole"


class _Scored:
    """Phase ``reward``, which leaves longer pairs out."""

    def __init__(self, encode: _TextEncoder, most: int | None, *, compares: bool) -> None:
        self._encode, self._most, self._compares = encode, most, compares

    def __call__(self, records: Sequence[Record]) -> list[Part]:
        return [self._judge(record) for record in records]

    def _judge(self, record: Record) -> Part:
        if self._compares and record["chosen"] == record["rejected"]:
            return "empty"
        if self._most is None and isinstance(record["chosen"], str) and not self._compares:
            return "whole"
        rows = []
        for name in ("chosen", "rejected"):
            answer, settings = record[name], {}
            if isinstance(answer, str):
                answer = self._encode.end(answer)
            else:
                settings = {"tools": _tools(record.get("tools"))}
            text = record["prompt"] + answer if "prompt" in record else answer
            rows.append(self._encode.ids(text, **settings))
        if self._most is not None and max(map(len, rows)) > self._most:
            return "filtered"
        return "whole" if not self._compares or differs(rows[0], rows[1]) else "empty"


def text_fields(recipe: PhaseRecipe) -> tuple[str, ...]:
    """The recipe's fields of texts that an encoder reads whole."""
    columns: Any = recipe.columns
    fields = type(columns).model_fields
    return tuple(name for name in fields if name != "label" and getattr(columns, name) is not None)


def _of_tokens(records: Sequence[Record]) -> list[Part]:
    """Phase ``cpt``: a record continues in the next block, so none is cut."""
    values = [record["text"] if "text" in record else record["tokens"] for record in records]
    return ["empty" if blank(value) or not len(value) else "whole" for value in values]


def _tools(value: Any) -> Any:
    """The tools of a record, which may be JSON as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise RecordInvalid("a record's tools are no JSON", check="columns") from None


def _count_shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens at the beginning that two texts have in common."""
    length = 0
    for token, other in zip(first, second, strict=False):
        if token != other:
            break
        length += 1
    return length


def _split(record: Record) -> tuple[Any, Any, Any]:
    """Prompt and two answers; without a prompt column the answers begin with it."""
    chosen, rejected = record["chosen"], record["rejected"]
    if "prompt" in record:
        return record["prompt"], chosen, rejected
    at = 0
    for at in range(min(len(chosen), len(rejected))):
        if chosen[at] != rejected[at]:
            at -= chosen[at - 1] == " "
            break
    return chosen[:at], chosen[at:], rejected[at:]
