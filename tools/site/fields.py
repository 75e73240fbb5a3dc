"""A page for each part of a recipe, out of the schema of recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from alone import ALONE

Schema = dict[str, Any]
_SPEC = "../spec/recipe.md"


def field_pages(schema: Path) -> dict[str, str]:
    """Pages by their name on the site.

    Args:
        schema: ``spec/schema/recipe.schema.json``.
    """
    parts: dict[str, Schema] = json.loads(schema.read_text("utf-8"))["$defs"]
    parts = {name: part for name, part in sorted(parts.items()) if "properties" in part}
    where: dict[str, list[str]] = {}
    for name, part in parts.items():
        for field in part["properties"]:
            where.setdefault(field, []).append(name)
    pages = {f"recipe-fields/{name}.md": _page(name, part, parts) for name, part in parts.items()}
    rows = [
        f"| `{field}` | {', '.join(f'[{name}]({name}.md)' for name in names)} |"
        for field, names in sorted(where.items())
    ]
    pages["recipe-fields/index.md"] = "\n".join(
        [
            "# Fields of a recipe",
            "",
            "Every field, and the parts of a recipe that have it.",
            f"[The specification]({_SPEC}) says what each does to a run, and what goes together;",
            "`sealtrain recipe check` holds a file against both.",
            "",
            "| field | part |",
            "|---|---|",
            *rows,
            "",
        ]
    )
    return pages


def _page(name: str, part: Schema, parts: dict[str, Schema]) -> str:
    needed = set(part.get("required", ()))
    rows = [
        f"| `{field}` | {_kind(of, parts)} | {_usual(of, field in needed)} | {_said(of)} |"
        for field, of in sorted(part["properties"].items())
    ]
    return "\n".join(
        [
            f"{ALONE}# {name}",
            "",
            _text(part.get("description", "")),
            "",
            "| field | value | when left out | |",
            "|---|---|---|---|",
            *rows,
            "",
            f"More: [the specification]({_SPEC}), [all fields](index.md).",
            "",
        ]
    )


def _kind(of: Schema, parts: dict[str, Schema]) -> str:
    if "$ref" in of:
        name = of["$ref"].rsplit("/", 1)[1]
        return f"[{name}]({name}.md)" if name in parts else name
    if "const" in of:
        return f"`{of['const']}`"
    if "enum" in of:
        return ", ".join(f"`{one}`" for one in of["enum"])
    for several in ("anyOf", "oneOf"):
        if several in of:
            return " or ".join(dict.fromkeys(_kind(one, parts) for one in of[several]))
    if of.get("type") == "array" and isinstance(of.get("items"), dict):
        return f"list of {_kind(of['items'], parts)}"
    return " ".join([str(of.get("type", "any")), *_bounds(of)])


def _bounds(of: Schema) -> list[str]:
    signs = {
        "exclusiveMinimum": ">",
        "minimum": "≥",
        "exclusiveMaximum": "<",
        "maximum": "≤",
    }
    bounds = [f"{sign} {of[name]}" for name, sign in signs.items() if name in of]
    if "maxLength" in of:
        bounds.append(f"of {of.get('minLength', 0)} to {of['maxLength']} characters")
    return [", ".join(bounds)] if bounds else []


def _usual(of: Schema, needed: bool) -> str:
    if needed:
        return "must be written"
    return f"`{json.dumps(of['default'], ensure_ascii=False)}`" if "default" in of else ""


def _said(of: Schema) -> str:
    return _text(of.get("description", ""))


def _text(said: str) -> str:
    """A description in the reStructuredText of docstrings as Markdown."""
    return " ".join(said.replace("``", "`").replace("|", "\\|").split())
