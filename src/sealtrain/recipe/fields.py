"""Field types that recipe documents share: printable text, relative paths, images, JSON values.

Text is visible without exception (``base.visible``), so what an owner reads in a diff is what the
guest runs, and a deployment document means the same to every YAML reader.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from sealtrain.base.canonical import JsonValue
from sealtrain.base.models import printable
from sealtrain.recipe.errors import ModelInvalid

__all__ = [
    "ColumnName",
    "ImageName",
    "RecipePath",
    "Text",
    "Visible",
    "by_key",
    "check_plain_json",
    "describe_keyword",
    "later",
    "printable",
    "resolve_inside",
]

MAX_INTEGER = (1 << 53) - 1
MAX_JSON_LEVELS = 6
_PATH = r"(\.\./)?[A-Za-z0-9_][A-Za-z0-9._+@=-]*(/[A-Za-z0-9_][A-Za-z0-9._+@=-]*)*"


def _relative(text: str) -> str:
    # Beyond one leading "../" no component begins with a dot: neither ".." nor a hidden file.
    if not re.fullmatch(_PATH, text):
        raise ValueError(
            "a path is relative to the recipe's folder, as in 'models/base' or '../models/base': "
            "letters, digits and ._+@=- between slashes, at most one leading '../', none inside"
        )
    return text


def describe_keyword(keyword: str, value: str | bool) -> Any:
    """A keyword of the published schema that says what a validator of ours checks."""
    return Field(json_schema_extra={keyword: value})


def later(default: Any, **constraints: Any) -> Any:
    """A setting that recipes had not from their beginning: a lock leaves it out at its default.

    So the locks and approvals of before stay what they are (spec/recipe.md §2.3).

    Args:
        default: What training did before there was the setting.
        constraints: As ``pydantic.Field`` takes them.
    """
    return Field(default=default, exclude_if=lambda value: value == default, **constraints)


Visible = Annotated[str, AfterValidator(printable), describe_keyword("format", "visible")]
"""Text of visible characters (spec/key-release.md §1)."""
Text = Annotated[Visible, StringConstraints(max_length=1024)]
"""Text a person reads."""
ColumnName = Annotated[Visible, StringConstraints(min_length=1, max_length=128)]
"""Name of a column of the owners' records."""
RecipePath = Annotated[
    str,
    StringConstraints(max_length=255),
    AfterValidator(_relative),
    describe_keyword("pattern", f"^{_PATH}$"),
]
"""POSIX path relative to the recipe's folder; leaves it by at most one explicit ``../``."""
ImageName = Annotated[
    str,
    StringConstraints(
        max_length=400,
        pattern=r"^[a-z0-9]+([._:/-]+[a-z0-9]+)*(:[A-Za-z0-9_.-]{1,128})?@sha256:[0-9a-f]{64}$",
    ),
]
"""Container image by digest, ``name@sha256:…``; a tag alone names nothing that was measured."""


def resolve_inside(base_dir: Path, path: str) -> Path:
    """Absolute path of a ``RecipePath``, reached without a symbolic link.

    Raises:
        ModelInvalid: A link on the way, or nothing there.
    """
    base = base_dir.resolve()
    wanted = Path(os.path.normpath(base / path))
    if not wanted.exists():
        raise ModelInvalid(
            f"the recipe's path does not exist: {path}",
            got=str(wanted),
            hint="put it there; the path starts at the recipe's folder",
        )
    if wanted.resolve() != wanted:
        raise ModelInvalid(
            f"the recipe's path passes a symbolic link: {path}",
            hint="copy the folder to where the recipe names it",
        )
    return wanted


def check_plain_json(value: JsonValue, level: int = 0) -> None:
    """Refuse what cannot be written canonically or read by an owner.

    Raises:
        ValueError: Too deep, an integer beyond 2**53, or text that cannot be seen.
    """
    if level > MAX_JSON_LEVELS:
        raise ValueError(f"nested deeper than {MAX_JSON_LEVELS} levels")
    if isinstance(value, str):
        printable(value)
    elif isinstance(value, int) and not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise ValueError("an integer beyond 2**53 - 1; write it as text")
    elif isinstance(value, list):
        for item in value:
            check_plain_json(item, level + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            printable(key)
            check_plain_json(item, level + 1)


def by_key(default: str, **tags: str) -> Callable[[Any], str]:
    """Discriminator of a union by which key is present: ``by_key("text", prompt="pair")``.

    Args:
        default: Tag when none of the keys is present.
        tags: Key → tag, tried in order.
    """

    def has(value: Any, key: str) -> bool:
        # Pydantic discriminates documents on the way in and models on the way out.
        return key in value if isinstance(value, dict) else hasattr(value, key)

    def choose(value: Any) -> str:
        return next((tag for key, tag in tags.items() if has(value, key)), default)

    return choose
