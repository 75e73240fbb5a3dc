"""Labels as owners write them, by the names that a recipe lists.

A recipe lists labels as text. A table has them as text, numbers or booleans, and programs write one
number in several ways: ``1``, ``1.0``, ``true``, ``True``. Where exactly one listed label means the
same, it is that one; nothing else is guessed, so ``Urgent`` is not ``urgent``.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from sealtrain.sealing.tabular.conversion import is_number

_BOOLEANS = ("true", "false")


def find_label(value: Any, labels: Sequence[str]) -> str:
    """The listed label that a value means; the value as text where none does.

    Args:
        value: Of a record: text, a number or a boolean.
        labels: As the recipe lists them.
    """
    text = value if isinstance(value, str) else _as_text(value)
    if text in labels:
        return text
    meaning = _meaning(text)
    same = [label for label in labels if meaning is not None and _meaning(label) == meaning]
    return same[0] if len(same) == 1 else text


def write_labels(recipe: Any) -> Any:
    """A recipe as its author wrote it, with labels that are numbers or booleans as text.

    Args:
        recipe: As parsed from YAML, of any form.
    """
    labels = recipe.get("labels") if isinstance(recipe, dict) else None
    if not isinstance(labels, list):
        return recipe
    return recipe | {
        "labels": [_as_text(label) if isinstance(label, bool | int) else label for label in labels]
    }


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _meaning(text: str) -> str | Decimal | None:
    """A number, exactly, or a boolean, of a text that is one."""
    if text.lower() in _BOOLEANS:
        return text.lower()
    try:
        return Decimal(text.strip()) if is_number(text) else None
    except InvalidOperation:  # an exponent of very many digits
        return None
