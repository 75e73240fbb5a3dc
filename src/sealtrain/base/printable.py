"""Text from outside, safe for a terminal and a log."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, limit: int | None = None) -> str:
    """``text`` with a question mark for each control character, cut at ``limit`` characters."""
    if (cut := text[:limit]).isprintable():
        return cut
    return "".join(letter if letter.isprintable() else "?" for letter in cut)
