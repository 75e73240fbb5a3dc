"""HTML from trees: text is escaped unless it is already ``Html``, so no value becomes markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from sealtrain.base.visible_text import escape_hidden_lines

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9]*")
_EMPTY = frozenset({"meta", "br", "hr", "line", "circle", "path", "rect"})


class Html(str):
    """Markup made by ``tag``; any other text is escaped when it enters a tree."""

    __slots__ = ()

    def __html__(self) -> str:
        """The same, for templates that escape whatever is not markup already."""
        return self


Part = Html | str | int | float | None
"""Content of an element; ``None`` adds nothing."""


def tag(name: str, /, *children: Part, **attributes: Part) -> Html:
    """One element. ``class_`` is ``class``, other underscores in names are hyphens.

    Args:
        name: Element name, from this package's own source only.
        children: Text or elements in order.
        attributes: Values are escaped; ``None`` leaves the attribute out.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"not an element name: {name!r}")
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[Part]) -> Html:
    """Parts one after the other."""
    return Html("".join(_escape(part) for part in parts))


def _escape(part: Part) -> str:
    if part is None:
        return ""
    # A character that no reader sees could make a page read differently from the signed text.
    return (
        part if isinstance(part, Html) else html.escape(escape_hidden_lines(str(part)), quote=True)
    )
