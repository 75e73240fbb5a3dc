"""Text of an attacker for every field of a document, and what it must not do to a page."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

Place = tuple[Any, ...]

HOSTILE = "<img src=//evil.example/x onerror=alert(1)>'\"{{7*7}}\u202egnp.exe\u200b"
"""A name on a page."""
_MARKUP = (
    "<i></textarea></style></title></pre></script>"
    "<script>window.ran=1</script><img src=//evil.example/x onerror=window.ran=1>"
    "<a href='javascript:window.ran=1' style=position:fixed;inset:0>x</a>"
    "'\"`--><!--&lt;{{7*7}}${7*7}{%raw%}\u202egnp.exe\u200b\x07\x1b[2J\r\n# x"
)
HOSTILE_TEXTS = {
    "markup": _MARKUP,
    "visible": "<i>'\"><img src=//evil.example/x onerror=window.ran=1>{{7*7}}",
    "address": "javascript:window.ran=1",
    "long": "W" * 1000,
}
"""``visible`` has only characters that a form for visible text admits."""

LOOK = """({ ran: window.ran ?? null,
  links: [...document.querySelectorAll("[href], [src], [action]")]
    .filter((one) => /^\\s*(javascript|data|vbscript):|evil\\.example/i.test(
      one.getAttribute("href") ?? one.getAttribute("src") ?? one.getAttribute("action"))).length,
  handlers: document.querySelectorAll("[onerror], [onclick], [onload], [onmouseover]").length,
  hidden: /[\\u0007\\u001b\\u200b\\u202e]/.test(document.body.innerText) })"""
"""What a page looks like to whoever planted the text; in a browser."""
HARMLESS = {"ran": None, "links": 0, "handlers": 0, "hidden": False}


def places_of_text(document: Any, *path: Any) -> Iterator[Place]:
    """Every text of a JSON value, names of fields aside."""
    if isinstance(document, str):
        yield path
    elif isinstance(document, dict):
        for key, inner in document.items():
            yield from places_of_text(inner, *path, key)
    elif isinstance(document, list):
        for number, inner in enumerate(document):
            yield from places_of_text(inner, *path, number)


def put(document: Any, path: Place, value: Any) -> Any:
    """The document with another value at a place, copied as far as it changes."""
    if not path:
        return value
    changed = copy.copy(document)
    changed[path[0]] = put(document[path[0]], path[1:], value)
    return changed


def admitting(document: Any, admitted: Callable[[Any], bool]) -> tuple[Any, list[Place]]:
    """The document with a hostile text at every place where its form admits one, and the places."""
    found: list[Place] = []
    for path in places_of_text(document):
        for text in HOSTILE_TEXTS.values():
            changed = put(document, path, text)
            if admitted(changed):
                document = changed
                found.append(path)
                break
    return document, found
