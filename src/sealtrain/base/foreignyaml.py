"""YAML of other programs (a model's card, a configuration to import): what JSON can say of it.

Our own documents are in a strict subset (``base.yamltext``). This reader takes more of YAML,
without recursion, and nothing that it reads decides whom to trust. Numbered as checked:

1. At most ``max_bytes`` of UTF-8, one document.
2. No anchor, alias, tag or merge key: nothing expands, nothing constructs.
3. At most ``max_depth`` levels and ``max_nodes`` values.
4. Every key is text and occurs once in its mapping.
5. Plain scalars follow the YAML 1.2 JSON rules: ``null true false``, decimal numbers (``2e-5`` is a
   number), else text. ``no``, ``0x10``, ``12:30`` and dates are text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sealtrain.base.canonical import JsonValue
from sealtrain.base.yamltext import MAX_YAML_BYTES, MAX_YAML_DEPTH, MAX_YAML_NODES
from sealtrain.errors import SealtrainError

if TYPE_CHECKING:
    from yaml.events import Event, ScalarEvent

_WORDS: dict[str, JsonValue] = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?")


def parse_foreign_yaml(
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
        SealtrainError: An instance of ``error`` that names the line.
    """
    import yaml

    if len(data) > max_bytes:
        raise error(
            f"{what} is too long", check=what, got=f"{len(data)} bytes", expected=f"≤ {max_bytes}"
        )
    try:
        text = data.decode("utf-8")
        builder = _Builder(error, what, max_depth, max_nodes)
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except UnicodeDecodeError as problem:
        raise error(f"{what} is not UTF-8 text", check=what, hint="save it as UTF-8") from problem
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        where = f" at line {mark.line + 1}" if mark else ""
        tab = "'\\t'" in str(problem.problem)
        hint = "indent with spaces" if tab else "quote a text that holds a colon or a brace"
        raise error(
            f"{what} is not YAML{where}: {problem.problem}", check=what, hint=hint
        ) from None
    except yaml.YAMLError:
        raise error(f"{what} holds a character that YAML does not allow", check=what) from None
    return builder.result()


class _Builder:
    """Turns parser events into a value with an explicit stack, so depth costs no recursion."""

    def __init__(
        self, error: type[SealtrainError], what: str, max_depth: int, max_nodes: int
    ) -> None:
        self._error = error
        self._what = what
        self._max_depth = max_depth
        self._max_nodes = max_nodes
        self._nodes = 0
        self._documents = 0
        self._stack: list[dict[str, JsonValue] | list[JsonValue]] = []
        self._keys: list[str | None] = []
        self._root: JsonValue = None

    def take(self, event: Event) -> None:
        """Consume one event."""
        import yaml

        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1 or event.tags or event.version:
                raise self._refusal(
                    "must be one document without directives",
                    event,
                    "keep one document, without --- in between",
                )
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise self._refusal(
                "must not use anchors or aliases", event, "write the value out where *name stands"
            )
        if isinstance(event, yaml.NodeEvent) and getattr(event, "tag", None) is not None:
            raise self._refusal("must not use tags", event, "write the value alone, without !")
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.MappingStartEvent):
            self._open({}, event)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._open([], event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._stack.pop()
            self._keys.pop()

    def result(self) -> JsonValue:
        """The document's value; ``None`` for an empty one."""
        return self._root

    def _open(self, value: dict[str, JsonValue] | list[JsonValue], event: Event) -> None:
        if len(self._stack) >= self._max_depth:
            raise self._refusal(f"must not nest deeper than {self._max_depth} levels", event)
        self._place(value, event)
        self._stack.append(value)
        self._keys.append(None)

    def _scalar(self, event: ScalarEvent) -> None:
        inside = self._stack[-1] if self._stack else None
        if isinstance(inside, dict) and self._keys[-1] is None:
            if event.value == "<<":
                raise self._refusal(
                    "must not use merge keys", event, "write the keys out where << stands"
                )
            if event.value in inside:
                raise self._refusal(
                    f"names the key {event.value!r} twice", event, "keep the one that counts"
                )
            self._count(event)
            self._keys[-1] = event.value
            return
        plain = event.implicit[0]
        self._place(self._resolve(event) if plain else event.value, event)

    def _resolve(self, event: ScalarEvent) -> JsonValue:
        text = event.value
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if number in (float("inf"), float("-inf")):
                raise self._refusal("holds a number out of range", event)
            return number
        return text

    def _place(self, value: JsonValue, event: Event) -> None:
        self._count(event)
        if not self._stack:
            self._root = value
            return
        inside = self._stack[-1]
        if isinstance(inside, list):
            inside.append(value)
            return
        key = self._keys[-1]
        if key is None:
            raise self._refusal(
                "has a key that is not text", event, 'quote a text with braces: "{{name}}"'
            )
        inside[key] = value
        self._keys[-1] = None

    def _count(self, event: Event) -> None:
        self._nodes += 1
        if self._nodes > self._max_nodes:
            raise self._refusal(f"must not hold more than {self._max_nodes} values", event)

    def _refusal(self, problem: str, event: Event, hint: str | None = None) -> SealtrainError:
        where = f" (line {event.start_mark.line + 1})" if event.start_mark else ""
        return self._error(f"{self._what} {problem}{where}", check=self._what, hint=hint)
