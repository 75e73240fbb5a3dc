"""YAML in and out: the strict subset of spec/recipe.md §1, in which a text says one thing.

The second verifier has the same reader in JavaScript (``verify/yaml.js``), and refuses what this
one refuses. Numbered as checked:

1. At most ``max_bytes`` of UTF-8 in lines of visible characters (``base.visible``); a line ends
   with a line feed, alone or behind a carriage return.
2. One document of block and flow collections with scalars on one line each. There is no anchor,
   alias, tag, directive, merge key, block scalar, complex key or text over several lines.
3. At most ``max_depth`` levels and ``max_nodes`` keys and values.
4. Every key is text and occurs once in its mapping.
5. Plain scalars follow the YAML 1.2 JSON rules: ``null true false``, decimal numbers (``2e-5`` is a
   number), else text. ``no``, ``0x10``, ``12:30`` and dates are text. An integer beyond
   2**53 - 1, a number that no double holds and one of over 31 digits are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn

from sealtrain.base.canonical import JsonValue
from sealtrain.base.visible_text import is_visible, replace_hidden
from sealtrain.errors import SealtrainError

MAX_YAML_BYTES = 128 << 10
MAX_YAML_DEPTH = 24
MAX_YAML_NODES = 20_000

_MAX_INTEGER: Final = (1 << 53) - 1
_MAX_KEY: Final = 1000
"""Characters of a key as it is written; other readers take no longer one either."""
_WORDS: Final[dict[str, JsonValue]] = {"~": None, "null": None, "true": True, "false": False}
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_BOUNDED: Final = re.compile(r"[-+]?[0-9]{1,31}(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,3})?")

# The same expressions are in verify/yaml.js.
_QUOTED: Final = r"""(?:"(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9A-Fa-f]{4})*"|'(?:[^']|'')*')"""
_START: Final = r"""(?:[^ \-?:,\[\]{}#&*!|>'"%@`]|-(?=[0-9A-Za-z.]))"""
_IN_BLOCK: Final = rf"{_START}(?:[^ :]|:(?=[^ ])| +(?=[^ #:]))*"
_IN_FLOW: Final = rf"{_START}(?:[^ :,?\[\]{{}}]|:(?=[^ ,?\[\]{{}}])| +(?=[^ #:,?\[\]{{}}]))*"
_BLOCK_WORD: Final = re.compile(rf"{_QUOTED}|{_IN_BLOCK}")
_FLOW_WORD: Final = re.compile(rf"{_QUOTED}|{_IN_FLOW}")
_ENDING: Final = re.compile(r" +#.*|")
_COLON: Final = re.compile(r" *:(?= |$)")

_OTHER_MEANING: Final = re.compile(
    r"[-+]?[0-9.][0-9_.,:eE+-]*|0[xXoObB][0-9a-fA-F_]+|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*"
    r"|[-+]?\.(?:inf|nan)|yes|no|on|off|y|n|true|false|null|=|<<",
    re.IGNORECASE,
)
"""Text that some reader of YAML takes for something else when it is not quoted."""


def parse_yaml(
    data: bytes,
    *,
    error: type[SealtrainError],
    what: str,
    max_bytes: int = MAX_YAML_BYTES,
    max_depth: int = MAX_YAML_DEPTH,
    max_nodes: int = MAX_YAML_NODES,
) -> JsonValue:
    """Parse one YAML document to a JSON value.

    Args:
        data: The file's bytes.
        error: Class to raise.
        what: Name of the document for messages (``"recipe"``).
        max_bytes: Longest accepted document.
        max_depth: Deepest accepted nesting.
        max_nodes: Most values, keys included.

    Raises:
        SealtrainError: An instance of ``error`` whose ``got`` names the line.
    """
    if len(data) > max_bytes:
        raise error(
            f"{what} is too long", check=what, got=f"{len(data)} bytes", expected=f"≤ {max_bytes}"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise error(f"{what} is not UTF-8 text", check=what) from problem
    try:
        return _Reader(text, max_depth, max_nodes).document()
    except _Refusal as refusal:
        raise error(
            f"{what} {refusal.problem} (line {refusal.line})",
            check=what,
            got=f"line {refusal.line}",
            hint="spec/recipe.md §1 has the YAML that is read; a text in quotes is always text",
        ) from None


class _Refusal(Exception):
    """What is wrong with a line."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.problem, self.line = problem, line


class _Reader:
    """Reads a document from its first line to its last. Recursion ends at ``max_depth``."""

    def __init__(self, text: str, max_depth: int, max_nodes: int) -> None:
        self._max_depth = max_depth
        self._left = self._max_nodes = max_nodes
        self._row = self._column = 0
        self._lines: list[tuple[int, str, int]] = []
        """Of each line that says something: its indentation, its text, its number."""
        for number, line in enumerate(re.split(r"\r?\n", text), 1):
            # 1.
            if not is_visible(line):
                raise _Refusal("holds a character that is not in the table of visible ones", number)
            said = line.strip(" ")
            if said and not said.startswith("#") and (self._lines or line.rstrip(" ") != "---"):
                self._lines.append((len(line) - len(line.lstrip(" ")), said, number))
        self._last = text.count("\n") + 1

    def document(self) -> JsonValue:
        """The document's value; ``None`` for an empty one."""
        if not self._lines:
            return None
        value = self._node(-1, 0)
        if self._row < len(self._lines):
            self._refuse("goes on where nothing can follow")
        return value

    def _node(self, floor: int, depth: int) -> JsonValue:
        """What begins with the present line; what belongs to it is indented more than ``floor``."""
        indent, text, _ = self._lines[self._row]
        if _is_item(text):
            return self._sequence(indent, depth)
        if _entry(text) is not None:
            return self._mapping(indent, depth)
        return self._inline(0, floor, depth)

    def _sequence(self, indent: int, depth: int) -> JsonValue:
        items: list[JsonValue] = []
        self._open(depth)
        while self._row < len(self._lines):
            here, text, number = self._lines[self._row]
            if here != indent or not _is_item(text):
                break
            rest = text[1:].lstrip(" ")
            if not rest or rest.startswith("#"):
                self._row += 1
                items.append(self._below(indent, depth + 1))
            else:
                self._lines[self._row] = (indent + len(text) - len(rest), rest, number)
                items.append(self._node(indent, depth + 1))
        return items

    def _mapping(self, indent: int, depth: int) -> JsonValue:
        found: dict[str, JsonValue] = {}
        self._open(depth)
        while self._row < len(self._lines) and self._lines[self._row][0] == indent:
            text = self._lines[self._row][1]
            entry = _entry(text)
            if entry is None:
                self._refuse("has a line that is no key with its value")
            word, end = entry
            key = self._key(word, found)
            rest = text[end:].lstrip(" ")
            if not rest or rest.startswith("#"):
                self._row += 1
                found[key] = self._below(indent, depth + 1, items_beside=True)
            else:
                found[key] = self._inline(len(text) - len(rest), indent, depth + 1)
        return found

    def _below(self, indent: int, depth: int, *, items_beside: bool = False) -> JsonValue:
        """The value of a key or an item that has nothing on its own line."""
        if self._row < len(self._lines):
            here, text, _ = self._lines[self._row]
            if here > indent:
                return self._node(indent, depth)
            if items_beside and here == indent and _is_item(text):
                return self._sequence(indent, depth)
        self._count()
        return None

    def _inline(self, column: int, floor: int, depth: int) -> JsonValue:
        """A scalar on the present line, or a flow collection that begins there."""
        self._column = column
        if self._char() in ("[", "{"):
            value = self._flow(floor, depth)
        else:
            value = self._scalar(self._word(_BLOCK_WORD))
        text = self._lines[self._row][1]
        if not _ENDING.fullmatch(text, self._column):
            self._refuse("has something behind a value")
        self._row += 1
        return value

    def _flow(self, floor: int, depth: int) -> JsonValue:
        first = self._char()
        if first not in ("[", "{"):
            return self._scalar(self._word(_FLOW_WORD))
        self._open(depth)
        self._column += 1
        items: list[JsonValue] = []
        found: dict[str, JsonValue] = {}
        close = "]" if first == "[" else "}"
        self._skip(floor)
        while self._char() != close:
            if first == "[":
                items.append(self._flow(floor, depth + 1))
            else:
                key = self._flow_key(found)
                self._skip(floor)
                found[key] = self._flow(floor, depth + 1)
            self._skip(floor)
            if self._char() == ",":
                self._column += 1
                self._skip(floor)
            elif self._char() != close:
                self._refuse("has a value that neither a comma nor a bracket ends")
        self._column += 1
        return items if first == "[" else found

    def _flow_key(self, found: dict[str, JsonValue]) -> str:
        word = self._word(_FLOW_WORD)
        text = self._lines[self._row][1]
        while self._char() == " ":
            self._column += 1
        if self._char() != ":":
            self._refuse("has a key without a value")
        self._column += 1
        if word[0] not in "\"'" and self._column < len(text) and self._char() != " ":
            self._refuse("has no space behind a colon")
        return self._key(word, found)

    def _skip(self, floor: int) -> None:
        """Go to the next character of a flow collection, over spaces, comments and line ends."""
        while True:
            text = self._lines[self._row][1]
            while self._char() == " ":
                self._column += 1
            if self._column < len(text) and not (
                text[self._column] == "#" and text[self._column - 1] == " "
            ):
                return
            self._row, self._column = self._row + 1, 0
            if self._row == len(self._lines) or self._lines[self._row][0] <= floor:
                self._row -= 1
                self._refuse("has a collection that does not end")

    def _char(self) -> str:
        """The present character; empty at the end of the line."""
        return self._lines[self._row][1][self._column : self._column + 1]

    def _word(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._lines[self._row][1], self._column)
        if found is None:
            self._refuse("has what is no value of the subset: quote it, if it is text")
        self._column = found.end()
        return found[0]

    def _key(self, word: str, found: dict[str, JsonValue]) -> str:
        # 4.
        self._count()
        key = self._resolve(word)
        if not isinstance(key, str) or key == "<<":
            self._refuse("has a key that is not text")
        if len(word) > _MAX_KEY:
            self._refuse(f"has a key of more than {_MAX_KEY} characters")
        if key in found:
            self._refuse(f"names the key {key!r} twice")
        return key

    def _scalar(self, word: str) -> JsonValue:
        self._count()
        return self._resolve(word)

    def _resolve(self, word: str) -> JsonValue:
        if word[0] == "'":
            return word[1:-1].replace("''", "'")
        if word[0] == '"':
            text: str = json.loads(word)
            if any("\ud800" <= char <= "\udfff" for char in text):
                self._refuse("holds half of a surrogate pair")
            return text
        # 5.
        if word in _WORDS:
            return _WORDS[word]
        if word.startswith("..."):
            self._refuse("has the end of a document")
        if _INTEGER.fullmatch(word):
            if len(word) > 17 or abs(int(word)) > _MAX_INTEGER:
                self._refuse("holds an integer beyond 2**53 - 1: quote it, if it is text")
            return int(word)
        if _NUMBER.fullmatch(word):
            number = float(word)
            if not _BOUNDED.fullmatch(word) or number in (float("inf"), float("-inf")):
                self._refuse("holds a number out of range")
            return number
        return word

    def _open(self, depth: int) -> None:
        # 3.
        if depth >= self._max_depth:
            self._refuse(f"must not nest deeper than {self._max_depth} levels")
        self._count()

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            self._refuse(f"must not hold more than {self._max_nodes} values")

    def _refuse(self, problem: str) -> NoReturn:
        at = self._row
        raise _Refusal(problem, self._lines[at][2] if at < len(self._lines) else self._last)


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _entry(text: str) -> tuple[str, int] | None:
    """Key of a line of a block mapping, and where its colon ends; ``None`` for another line."""
    word = _FLOW_WORD.match(text)
    colon = None if word is None else _COLON.match(text, word.end())
    return None if word is None or colon is None else (word[0], colon.end())


def yaml_text(value: JsonValue, *, flow: bool | None = False) -> str:
    """The YAML of a JSON value, keys in their order; ``parse_yaml`` reads the same value back.

    Args:
        value: What to write. Text that any reader would take for a number, a date or a word of
            YAML is quoted: a hash such as ``7e5`` is text.
        flow: Lists and mappings on one line, as JSON has them; ``None`` for those that hold no
            other.
    """
    return "".join(f"{line}\n" for line in _block(value, flow))


def _block(value: JsonValue, flow: bool | None) -> Iterator[str]:
    if _is_flow(value, flow):
        yield _inline(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            if _is_flow(item, flow):
                yield f"{_inline(key)}: {_inline(item)}"
            else:
                yield f"{_inline(key)}:"
                margin = "  " if isinstance(item, dict) else ""
                yield from (margin + line for line in _block(item, flow))
    else:
        for item in value:
            first, *rest = _block(item, flow)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)


def _is_flow(value: JsonValue, flow: bool | None) -> bool:
    inside = value.values() if isinstance(value, dict) else value
    if not value or not isinstance(value, (dict, list)):
        return True
    if flow is None:
        return not any(isinstance(item, (dict, list)) for item in inside)
    return flow


def _inline(value: JsonValue) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_inline(key)}: {_inline(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if not isinstance(value, str):
        return json.dumps(value, allow_nan=False)
    if not is_visible(value):
        written = json.dumps(value, ensure_ascii=False)
        return replace_hidden(written, lambda char: json.dumps(char)[1:-1])
    plain = re.fullmatch(_IN_FLOW, value) and not value.startswith("...")
    if plain and value not in _WORDS and not _OTHER_MEANING.fullmatch(value):
        return value
    return "'" + value.replace("'", "''") + "'"
