"""What a model's card says of its licence: the header of the folder's README, in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sealtrain.base.canonical import JsonValue
from sealtrain.base.foreignyaml import parse_foreign_yaml
from sealtrain.base.visible_text import is_visible
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.lockfile import MAX_LICENCE_CHARS

_MAX_HEADER_BYTES: Final = 64 << 10
_FENCE: Final = b"---"


def licence_in(folder: Path) -> str | None:
    """The licence that a model's card names, as a lock holds it (spec/recipe.md §3).

    Args:
        folder: Of the model.

    Returns:
        The licence's name; ``None`` where the card names none that can be read.
    """
    try:
        with (folder / "README.md").open("rb") as card:
            lines = card.read(_MAX_HEADER_BYTES).split(b"\n")
    except FileNotFoundError:
        return None
    ends = [number for number, line in enumerate(lines) if line.rstrip() == _FENCE]
    if len(ends) < 2 or ends[0] != 0:
        return None
    try:
        header = parse_foreign_yaml(
            b"\n".join(lines[1 : ends[1]]), error=RecipeInvalid, what="the model's card"
        )
    except RecipeInvalid:
        return None
    return _read_name(header) if isinstance(header, dict) else None


def _read_name(header: dict[str, JsonValue]) -> str | None:
    value = header.get("license")
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name for name in names):
        return None
    text = ", ".join(map(str, names))
    own = header.get("license_name")
    if text == "other" and isinstance(own, str) and own:
        text = f"other ({own})"
    return text if is_visible(text) and len(text) <= MAX_LICENCE_CHARS else None
