"""Whether a chat template renders what a record holds: the text that an owner approved is learned.

A template is a program and may leave out what it does not know: turns of a role, tool calls, the
tools themselves. So a record is rendered once as text, and these must be in it: the text of every
message, the name and the keys of every tool call, the name of every tool, and the reasoning of the
last message. White space and punctuation do not count, for templates trim and escape. Reasoning
inside an earlier message, up to ``</think>``, may be left out: models are trained without it.

A template treats messages of one form alike. So records are looked at until every form was seen:
role, keys, the order of magnitude of the text's length, and whether the message is the last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from sealtrain.sealing.errors import RecordInvalid

_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
_NO_WORD: Final = re.compile(r"[\W_]+")
_MOST_FORMS: Final = 1000

Turn = Mapping[str, Any]


class WholeRendering:
    """Looks at conversations of every form once."""

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()

    def require(
        self, turns: Sequence[Turn], tools: Sequence[Turn] | None, render: Callable[[], str]
    ) -> None:
        """Refuse a conversation of which a part is not rendered.

        Args:
            turns: Its messages.
            tools: Schemas of functions beside them.
            render: Renders both as text.

        Raises:
            RecordInvalid: A part is left out; the error says of which kind.
        """
        last = len(turns) - 1
        forms = {_form(turn, at == last, tools=bool(tools)) for at, turn in enumerate(turns)}
        if forms <= self._seen or len(self._seen) >= _MOST_FORMS:
            return
        part = find_left_out(render(), turns, tools)
        if part is not None:
            raise RecordInvalid(
                f"the chat template of the base model leaves out {part}",
                check="tokenizer",
                got=part,
                expected="every message, tool call and tool in the rendered text",
                hint="train a chat template that renders them, or leave them out of the records",
            )
        self._seen |= forms


def find_left_out(text: str, turns: Sequence[Turn], tools: Sequence[Turn] | None) -> str | None:
    """The first kind of part that is not in a rendered text; ``None`` where all is there."""
    found = _words(text)
    for at, turn in enumerate(turns):
        last = at == len(turns) - 1
        if not _is_in(turn.get("content"), found, shortened=not last):
            return "the text of a message"
        if last and any(not _is_in(turn.get(key), found) for key in _REASONING):
            return "the reasoning of a message"
        if any(_words(name) not in found for name in _names_of_calls(turn.get("tool_calls"))):
            return "a tool call"
    if any(_words(name) not in found for name in _names_of_tools(tools)):
        return "a tool"
    return None


def _form(turn: Turn, last: bool, *, tools: bool) -> tuple[object, ...]:
    content = turn.get("content")
    length = len(content) if isinstance(content, str) else 0
    keys = tuple(sorted(key for key, value in turn.items() if value not in (None, "", [])))
    return turn.get("role"), keys, length.bit_length(), last, tools


def _is_in(value: Any, found: str, *, shortened: bool = False) -> bool:
    if not isinstance(value, str):
        return True
    texts = (value, value.rpartition("</think>")[2]) if shortened else (value,)
    return any(
        _words(way) in found
        for text in texts
        for way in (text, json.dumps(text), json.dumps(text, ensure_ascii=False))
    )


def _words(text: str) -> str:
    return _NO_WORD.sub("", text)


def _names_of_calls(calls: Any) -> Iterator[str]:
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        if isinstance(function.get("name"), str):
            yield function["name"]
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            yield from map(str, arguments)


def _names_of_tools(tools: Any) -> Iterator[str]:
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            yield function["name"]
