"""Conversations in records: what a chat template gets, and which conversations are refused.

``recipe check``, ``seal`` and the guest judge by the functions of this module, so a record that an
owner could seal for a recipe is one that the guest renders (spec/recipe.md §2.2).

Columns of Arrow give each record of a column every key that any record has, with nulls. A turn that
called a tool with ``{"ward": 1}`` would so be rendered with the arguments of every other tool. The
keys that hold null are therefore taken out again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from sealtrain.base.canonical import parse_foreign
from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_SETTINGS_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

TOOLS: Final = "tools"
"""Name of the column of function schemas in rows, as TRL looks for it."""

FUNCTIONS: Final = "functions"
"""The same in the older form, which no template gets."""


def kind_of(found: pa.DataType) -> Literal["text", "messages"] | None:
    """What a column of this type holds; ``None`` for neither.

    The content of a message is text: content in parts is not rendered; that no message has a text
    is said of the records. What else a message holds is
    of types that a record in JSON can have, or times, decimals and bytes.
    """
    if _is_text(found):
        return "text"
    if is_list_of_structs(found):
        types = {field.name: field.type for field in found.value_type}
        if all(name in types and _may_be_text(types[name]) for name in ("role", "content")):
            return "messages"
    return None


def holds_tools(found: pa.DataType) -> bool:
    """Whether a column can hold the function schemas of records; empty lists are some, too."""
    import pyarrow as pa

    listed = pa.types.is_list(found) or pa.types.is_large_list(found)
    empty = listed and pa.types.is_null(found.value_type)
    return bool(empty or _is_text(found) or is_list_of_structs(found))


def is_list_of_structs(found: pa.DataType) -> bool:
    """Whether a column holds lists of objects that a chat template can get."""
    import pyarrow as pa

    listed = pa.types.is_list(found) or pa.types.is_large_list(found)
    return bool(listed and pa.types.is_struct(found.value_type) and not strange_part(found))


def strange_part(found: pa.DataType) -> str | None:
    """The first type inside a type that Hugging Face's datasets, and so no trainer, can read."""
    import pyarrow as pa

    is_a = pa.types
    if is_a.is_list(found) or is_a.is_large_list(found) or is_a.is_fixed_size_list(found):
        return strange_part(found.value_type)
    if is_a.is_struct(found):
        parts = (strange_part(found.field(at).type) for at in range(found.num_fields))
        return next((part for part in parts if part is not None), None)
    if is_a.is_nested(found) or found == pa.month_day_nano_interval():
        return "map" if is_a.is_map(found) else str(found).partition("<")[0]
    return None


def has_parts(found: pa.DataType) -> bool:
    """Whether a column holds messages whose content is in parts."""
    if not is_list_of_structs(found):
        return False
    content = {field.name: field.type for field in found.value_type}.get("content")
    return content is not None and is_list_of_structs(content)


def has_template(folder: Path) -> bool:
    """Whether the tokenizer in a folder has a chat template, or the folder is not here yet."""
    if not folder.is_dir() or (folder / "chat_template.jinja").is_file():
        return True
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return False
    settings = parse_foreign(read_bounded(path, MAX_SETTINGS_BYTES))
    return isinstance(settings, dict) and bool(settings.get("chat_template"))


def conversation_fault(turns: Any) -> str | None:
    """Why a list of messages cannot be rendered; ``None`` where it can.

    Args:
        turns: The messages of one record.
    """
    if not isinstance(turns, list) or not turns:
        return "has an empty conversation"
    for turn in turns:
        role = turn.get("role") if isinstance(turn, dict) else None
        if not isinstance(role, str) or not role.strip():
            return "has a message without a role"
        content = turn.get("content")
        if turn.get("function_call") is not None:
            return "has a function_call, which templates do not get"
        if content is None and not turn.get("tool_calls"):
            return "has a message with neither text nor a tool call"
        if content is not None and not isinstance(content, str):
            return "has a message whose content is not text"
        if not all(map(_has_name, turn.get("tool_calls") or ())):
            return "has a tool call without the name of a function"
    return None


def _has_name(call: Any) -> bool:
    """Whether a tool call names a function, as ``function.name`` or as its own ``name``."""
    if not isinstance(call, dict):
        return False
    function = call.get("function") or call
    name = function.get("name") if isinstance(function, dict) else None
    return isinstance(name, str) and bool(name.strip())


def all_speak(values: pa.Array) -> bool:
    """Whether no conversation of a column has a fault, judged by the column as a whole.

    Args:
        values: Of a type whose ``kind_of`` is ``messages``; none is null.

    Returns:
        ``False`` also where only a look at each conversation can tell.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    turns = values.flatten()
    if turns.null_count or not pc.all(pc.greater(pc.list_value_length(values), 0)).as_py():
        return False
    if turns.field("role").null_count or turns.type.get_field_index("function_call") >= 0:
        return False
    if pc.any(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(turns.field("role"))), 0)).as_py():
        return False
    if not _names_all_calls(turns):
        return False
    silent = turns.field("content").is_null()
    if not pc.any(silent).as_py():
        return True
    if turns.type.get_field_index("tool_calls") < 0:
        return False
    calls = turns.field("tool_calls").filter(silent)
    if not pa.types.is_list(calls.type) or calls.null_count:
        return False
    return bool(pc.all(pc.greater(pc.list_value_length(calls), 0)).as_py())


def _names_all_calls(turns: pa.StructArray) -> bool:
    """Whether each tool call of some messages names a function, by the column as a whole."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if turns.type.get_field_index("tool_calls") < 0:
        return True
    calls = turns.field("tool_calls")
    if pa.types.is_null(calls.type):
        return True
    if not pa.types.is_list(calls.type):
        return False
    called = calls.flatten()
    if not len(called):
        return True
    if not pa.types.is_struct(called.type):
        return False
    if called.null_count or called.type.get_field_index("function") < 0:
        return False
    function = called.field("function")
    if not pa.types.is_struct(function.type) or function.null_count:
        return False
    if function.type.get_field_index("name") < 0:
        return False
    names = function.field("name")
    if not _is_text(names.type) or names.null_count:
        return False
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(names)), 0)
    return not pc.any(blank).as_py()


def tools_fault(tools: Any) -> str | None:
    """Why a template cannot get the tools of a record; ``None`` where it can.

    Args:
        tools: Function schemas as a list of objects, or that list as JSON text.
    """
    if isinstance(tools, str):
        try:
            tools = parse_foreign(tools.encode())
        except ValueError:
            return "has tools that are no JSON"
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return "has tools that are no list of function schemas"
    return None


def read_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows of a batch as dictionaries, whose messages and tools have the keys of their owner.

    A key whose value is null is left out, at any depth of a message; but each message has
    ``content``, which is null beside a tool call.
    """
    rows: list[dict[str, Any]] = batch.to_pylist()
    names = [field.name for field in batch.schema if kind_of(field.type) == "messages"]
    tools = [field.name for field in batch.schema if field.name == TOOLS]
    for row in rows if names and tools else ():
        row[TOOLS] = _own_keys(row[TOOLS])
    for row in rows if names else ():
        for name in names:
            row[name] = [_own_turn(turn) for turn in row[name] or ()]
    return rows


def _own_turn(turn: Any) -> Any:
    if not isinstance(turn, dict):
        return turn
    return {key: _own_keys(value) for key, value in turn.items() if value is not None} | {
        "content": turn["content"]
    }


def _own_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _own_keys(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_own_keys(item) for item in value]
    return value


def _may_be_text(found: pa.DataType) -> bool:
    """Whether a part of messages is text, or null in each of them."""
    import pyarrow as pa

    return _is_text(found) or bool(pa.types.is_null(found))


def _is_text(found: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
