"""Characters that a reader sees (spec/key-release.md §1): one table, and how the rest is shown.

The table says what is allowed; what it does not name is shown by number to people, and refused in
names, in recipes and in scripts. It is fixed. By the categories of Unicode, a text would be one
document to a program and none to another of a different age.

``tools/verifier_page.py`` writes the table for the second verifier and for the console's script.

1. Printable ASCII. Digits are ASCII's alone: those of other scripts look like other digits.
2. Letters of the named scripts, all written from left to right. A letter that Unicode maps to
   another character (a ligature, a full-width form) is not among them, so normalising a text
   turns nothing into ASCII.
3. The named marks, each on a letter of a script that takes them, ``MOST_MARKS`` on one letter: more
   would reach into the lines above and below. Marks that strike through a letter, or join the
   next letter, are not named.
4. The named signs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Final, TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""First and last code points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Letters of one script.

    Attributes:
        name: As Unicode has it.
        letters: Beyond ASCII's.
        marked: Whether marks stand on its letters.
        wide: Whether a letter takes two cells of a terminal.
    """

    name: str
    letters: Ranges
    marked: bool = False
    wide: bool = False


_ASCII: Final[Ranges] = ((0x20, 0x7E),)
_ASCII_LETTERS: Final[Ranges] = ((0x41, 0x5A), (0x61, 0x7A))

SCRIPTS: Final = (
    Script(
        name="Latin",
        letters=(
            (0x00C0, 0x00D6), (0x00D8, 0x00F6), (0x00F8, 0x0131), (0x0134, 0x013E),
            (0x0141, 0x0148), (0x014A, 0x017E), (0x0180, 0x01BF), (0x01CD, 0x01F0),
            (0x01F4, 0x024F), (0x1E00, 0x1E99), (0x1E9B, 0x1EFF),
        ),
        marked=True,
    ),
    Script(
        name="Greek",
        letters=(
            (0x0370, 0x0373), (0x0376, 0x0377), (0x037B, 0x037D), (0x037F, 0x037F),
            (0x0386, 0x0386), (0x0388, 0x038A), (0x038C, 0x038C), (0x038E, 0x03A1),
            (0x03A3, 0x03CF), (0x03D7, 0x03E1), (0x03F3, 0x03F3), (0x03F7, 0x03F8),
            (0x03FA, 0x03FF), (0x1F00, 0x1F15), (0x1F18, 0x1F1D), (0x1F20, 0x1F45),
            (0x1F48, 0x1F4D), (0x1F50, 0x1F57), (0x1F59, 0x1F59), (0x1F5B, 0x1F5B),
            (0x1F5D, 0x1F5D), (0x1F5F, 0x1F70), (0x1F72, 0x1F72), (0x1F74, 0x1F74),
            (0x1F76, 0x1F76), (0x1F78, 0x1F78), (0x1F7A, 0x1F7A), (0x1F7C, 0x1F7C),
            (0x1F80, 0x1F87), (0x1F90, 0x1F97), (0x1FA0, 0x1FA7), (0x1FB0, 0x1FB4),
            (0x1FB6, 0x1FBA), (0x1FC2, 0x1FC4), (0x1FC6, 0x1FC8), (0x1FCA, 0x1FCA),
            (0x1FD0, 0x1FD2), (0x1FD6, 0x1FDA), (0x1FE0, 0x1FE2), (0x1FE4, 0x1FEA),
            (0x1FEC, 0x1FEC), (0x1FF2, 0x1FF4), (0x1FF6, 0x1FF8), (0x1FFA, 0x1FFA),
        ),
        marked=True,
    ),
    Script(name="Cyrillic", letters=((0x0400, 0x0481), (0x048A, 0x052F)), marked=True),
    Script(name="Armenian", letters=((0x0531, 0x0556), (0x0560, 0x0586))),
    Script(name="Georgian", letters=((0x10D0, 0x10FA), (0x10FD, 0x10FF))),
    Script(name="Hiragana", letters=((0x3041, 0x3096),), wide=True),
    Script(name="Katakana", letters=((0x30A1, 0x30FA), (0x30FC, 0x30FC)), wide=True),
    Script(name="Han", letters=((0x3005, 0x3005), (0x3400, 0x4DBF), (0x4E00, 0x9FFF)), wide=True),
    Script(name="Hangul", letters=((0xAC00, 0xD7A3),), wide=True),
)  # fmt: skip

MARKS: Final[Ranges] = (
    (0x0300, 0x0304), (0x0306, 0x030C), (0x030F, 0x030F), (0x0311, 0x0311), (0x0313, 0x0314),
    (0x031B, 0x031B), (0x0323, 0x0328), (0x032D, 0x032E), (0x0330, 0x0331), (0x0342, 0x0342),
    (0x0345, 0x0345),
)  # fmt: skip
"""Accents above, below and on a letter."""
MOST_MARKS: Final = 2
"""On one letter."""
SIGNS: Final = "¡£¥§«°±²³µ·»¿×÷–—‘’‚“”„…€→≠≤≥✓✗"  # noqa: RUF001  # the signs themselves
WIDE_SIGNS: Final = "、。「」"


def fault_pattern(escaped: Callable[[int], str]) -> str:
    """A regular expression of each character of a text that the table does not admit there.

    Args:
        escaped: How the expression's language writes a code point.
    """

    def ranges(some: Iterable[tuple[int, int]]) -> str:
        return "".join(
            escaped(first) if first == last else f"{escaped(first)}-{escaped(last)}"
            for first, last in some
        )

    signs = [(ord(sign), ord(sign)) for sign in SIGNS + WIDE_SIGNS]
    letters = chain.from_iterable(script.letters for script in SCRIPTS)
    marked = chain.from_iterable(script.letters for script in SCRIPTS if script.marked)
    marks = ranges(MARKS)
    return (
        f"[^{ranges([*_ASCII, *letters, *MARKS, *signs])}]"
        f"|(?<![{ranges([*_ASCII_LETTERS, *marked])}{marks}])[{marks}]"
        f"|(?<=[{marks}]{{{MOST_MARKS}}})[{marks}]"
    )


# Compiled when a text beyond printable ASCII is met: most commands meet none.
@cache
def _faults() -> re.Pattern[str]:
    return re.compile(fault_pattern(lambda code: f"\\U{code:08x}"))


@cache
def _marks() -> re.Pattern[str]:
    return re.compile(f"[{''.join(f'{chr(a)}-{chr(b)}' for a, b in MARKS)}]")


@cache
def _wide() -> re.Pattern[str]:
    letters = chain.from_iterable(script.letters for script in SCRIPTS if script.wide)
    return re.compile(f"[{''.join(f'{chr(a)}-{chr(b)}' for a, b in letters)}{WIDE_SIGNS}]")


def _is_plain(text: str) -> bool:
    """Whether a text is of the table's first part alone, where no character needs a neighbour."""
    return text.isascii() and text.isprintable()


def is_visible(text: str) -> bool:
    """Whether the table admits every character of a text, in its place."""
    return _is_plain(text) or _faults().search(text) is None


def escape_hidden(text: str, limit: int | None = None) -> str:
    r"""One line of text for people: what the table does not admit is shown by number, ``\u{202e}``.

    Args:
        text: From anywhere.
        limit: Most characters of the result; the rest is cut off.
    """
    return replace_hidden(text[:limit], lambda char: f"\\u{{{ord(char):x}}}")[:limit]


def replace_hidden(text: str, written: Callable[[str], str]) -> str:
    """A text with each character that the table does not admit written in another way."""
    return text if _is_plain(text) else _faults().sub(lambda fault: written(fault[0]), text)


def escape_hidden_lines(text: str) -> str:
    """As ``escape_hidden``, line by line; tabs are spaces."""
    return "\n".join(escape_hidden(line.expandtabs()) for line in text.split("\n"))


def cells(text: str) -> int:
    """Width of visible text on a terminal."""
    if text.isascii():
        return len(text)
    return len(text) + len(_wide().findall(text)) - len(_marks().findall(text))


def pad_cells(text: str, width: int) -> str:
    """Visible text with spaces behind it up to a number of cells."""
    return text + " " * (width - cells(text))


def fold(text: str, width: int) -> list[str]:
    """One line of text in lines of at most a width, broken at spaces, a longer word within it.

    Args:
        text: From anywhere.
        width: In cells, at least 2.

    Returns:
        At least one line, without spaces at its end.
    """
    rest, lines = escape_hidden(text), []
    while (end := _fitting(rest, width)) < len(rest):
        begin = len(rest) - len(rest.lstrip(" "))
        space = rest.rfind(" ", begin, end + 1)
        cut = end if space < 0 else space
        lines.append(rest[:cut].rstrip(" "))
        rest = rest[cut:].lstrip(" ")
    return [*lines, rest.rstrip(" ")]


def _fitting(text: str, width: int) -> int:
    """How many characters of visible text fit into so many cells."""
    used = 0
    for at, char in enumerate(text):
        used += cells(char)
        if used > width:
            return at
    return len(text)
