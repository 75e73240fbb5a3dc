"""Marks in messages that say which of them a model learns: refused where a run would not obey.

Records for other tools mark single messages: ``weight`` (OpenAI, Together, Mistral), ``train`` and
``train_detail`` (Axolotl), ``loss`` (ms-swift, XTuner), ``masked`` (torchtune). Here a recipe says
what is learned, and a record does not. A mark that says the same is no fault; one that says that a
learned message is not to be learned is refused, for a model would learn what its owner left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from sealtrain.sealing.errors import RecordInvalid

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.recipe import PhaseRecipe

LearnedTurns = Literal["all", "assistant", "none"]
"""Messages of a conversation that a run learns."""

_LEARN: Final = ("weight", "train", "training", "trainable", "loss")
"""1 or true: it is learned."""
_MASK: Final = ("masked", "masking", "mask", "train_detail", "training_detail")
"""0, false or an empty list: nothing of it is left out."""


def learned_turns(recipe: PhaseRecipe, field: str) -> LearnedTurns:
    """Messages that a run learns of a column.

    Args:
        recipe: Of the run.
        field: Of the recipe's columns, such as ``messages`` or ``chosen``.
    """
    if field == "prompt":
        return "none"
    alone = field != "messages" or getattr(recipe.trainer, "assistant_only_loss", False)
    return "assistant" if alone else "all"


def may_be_marked(found: pa.DataType) -> bool:
    """Whether messages of a type have a key that may be a mark."""
    return any(found.value_type.get_field_index(name) >= 0 for name in (*_LEARN, *_MASK))


def find_broken_mark(turns: Any, learned: LearnedTurns) -> str | None:
    """The first mark that the run would not obey; ``None`` where there is none.

    Args:
        turns: Messages of one record; no text has marks.
        learned: What the run learns of them.
    """
    if learned == "none" or not isinstance(turns, list):
        return None
    for turn in turns:
        if not isinstance(turn, dict):  # which is another fault
            continue
        if learned == "assistant" and turn.get("role") != "assistant":
            continue
        for name in (*_LEARN, *_MASK):
            value = turn.get(name)
            if value is not None and not (value in ([], False) if name in _MASK else value == 1):
                return name
    return None


def mark_hint(learned: LearnedTurns) -> str:
    """What to do about a mark."""
    more = "leave such records out; or leave the key out, and every message is learned"
    if learned == "assistant":
        return more
    return f"with trainer.assistant_only_loss: true no other message is learned; else {more}"


def require_obeyed_marks(recipe: PhaseRecipe, records: Sequence[dict[str, Any]]) -> None:
    """Refuse records with a mark that the run would not obey.

    Args:
        recipe: Of the run.
        records: Field of the recipe's columns → value.

    Raises:
        RecordInvalid: There is one; the error has the mark's key.
    """
    for record in records:
        for field, value in record.items():
            learned = learned_turns(recipe, field)
            name = find_broken_mark(value, learned) if field != "tools" else None
            if name is not None:
                raise RecordInvalid(
                    f"a record marks a message as not to be learned, by {name}",
                    check="columns",
                    got=name,
                    expected="messages that are learned as the recipe says",
                    hint=mark_hint(learned),
                )
