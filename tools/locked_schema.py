"""The schema of a recipe in a lock, as small as it gets: what the second verifier embeds.

``spec/schema/recipe.schema.json`` is of a recipe as it is written. In a lock every default is
written out, except of the fields that the schema marks ``x-left-out``: these stand there only with
another value than their default (spec/recipe.md §3). Annotations are left out, and what occurs
twice stands once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

_ANNOTATIONS = {
    *("$schema", "title", "description", "default", "examples", "discriminator"),
    *("x-left-out",),
}
_BY_NAME = ("properties", "patternProperties", "$defs")
_ONE = ("additionalProperties", "items", "propertyNames", "not")
_SEVERAL = ("anyOf", "oneOf", "prefixItems")
_WORTH_SHARING = 32
"""Bytes of a schema below which a reference to it saves nothing."""

Schema = Any


def locked_schema(published: dict[str, Any]) -> dict[str, Any]:
    """The schema of the recipes that locks hold.

    Args:
        published: ``spec/schema/recipe.schema.json``.
    """
    return _share(_lock(published))


def _map_schemas(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """A schema whose immediate subschemas are changed."""
    if isinstance(schema, bool):
        return schema
    result: dict[str, Schema] = {}
    for keyword, value in schema.items():
        if keyword in _BY_NAME:
            result[keyword] = {name: change(inner) for name, inner in value.items()}
        elif keyword in _ONE:
            result[keyword] = change(value)
        elif keyword in _SEVERAL:
            result[keyword] = [change(inner) for inner in value]
        else:
            result[keyword] = value
    return result


def _lock(schema: Schema) -> Schema:
    if isinstance(schema, bool):
        return schema
    result = {
        keyword: value
        for keyword, value in _map_schemas(schema, _lock).items()
        if keyword not in _ANNOTATIONS
    }
    if "properties" in schema:
        chosen = {name for item in schema.get("oneOf", ()) for name in item.get("required", ())}
        properties = schema["properties"]
        left_out = {name for name, part in properties.items() if part.get("x-left-out")}
        result["required"] = sorted(properties.keys() - left_out - chosen)
        for name in left_out:
            result["properties"][name]["not"] = {"const": properties[name]["default"]}
    return result


def _share(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema with what occurs twice among its definitions, under numbers."""
    definitions = schema["$defs"]

    def key(part: Schema) -> str:
        return json.dumps(part, sort_keys=True, separators=(",", ":"))

    # Definitions that say the same are one.
    def resolve(part: Schema) -> Schema:
        if not isinstance(part, bool) and "$ref" in part:
            target = resolve(definitions[part["$ref"].removeprefix("#/$defs/")])
            rest = {keyword: value for keyword, value in part.items() if keyword != "$ref"}
            return {**target, **_map_schemas(rest, resolve)}
        return _map_schemas(part, resolve)

    whole = resolve({name: value for name, value in schema.items() if name != "$defs"})
    seen: Counter[str] = Counter()

    def count(part: Schema) -> Schema:
        seen[key(part)] += 1
        if seen[key(part)] == 1:
            _map_schemas(part, count)
        return part

    count(whole)
    numbers: dict[str, str] = {}
    kept: dict[str, Schema] = {}

    def compact(part: Schema) -> Schema:
        same = key(part)
        if seen[same] < 2 or len(same) < _WORTH_SHARING:
            return _map_schemas(part, compact)
        if same not in numbers:
            numbers[same] = str(len(numbers))
            kept[numbers[same]] = _map_schemas(part, compact)
        return {"$ref": f"#/$defs/{numbers[same]}"}

    root = compact(whole)
    return {"$defs": kept, **root}
