"""Characters that a reader sees (spec/key-release.md §1).

The list is fixed. By the categories of Unicode, a text would be one document to a program and none
to another of a different age: what is not yet assigned today is a letter tomorrow.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_visible"]

_HIDDEN: Final = re.compile(
    "["
    "\u0000-\u001f\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u1680\u180e"
    "\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ud800-\uf8ff\ufdd0-\ufdef\ufeff"
    "\ufff0-\ufffb\ufffe\uffff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U0010ffff"
    "]"
)
"""Controls, spaces other than U+0020, separators, characters that format, halves, private use."""


def is_visible(text: str) -> bool:
    """Whether every character of a text can be seen, or is U+0020."""
    return _HIDDEN.search(text) is None
