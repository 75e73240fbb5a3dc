"""Chat templates judged without the training libraries: marks, and a text that changes by itself.

``assistant_only_loss`` learns what a template marks by ``{% generation %} … {% endgeneration %}``.
Templates of published models mostly have no marks. TRL has marked twins of some, which it finds by
their whole text; a template that is neither marked nor one of those ends the training before its
first step, after keys were released. So the desk looks first: at the template's file, and at the
files of templates in an installed TRL, which is not imported.

Templates may call ``strftime_now``, which Transformers gives them: the date of the clock then
stands in every record, so a model learns another text tomorrow than its owners approved. Such a
template is refused by name, by the desk and by the guest, and so is one that draws at random.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sealtrain.base.canonical import parse_foreign
from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_SETTINGS_BYTES
from sealtrain.recipe.errors import ModelInvalid

MARKS: Final = "{% generation %} … {% endgeneration %}"
_MARK: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
_DEFAULT: Final = "default"
_FURTHER: Final = "additional_chat_templates"
_WRITING: Final = ("dpo", "reward", "rlhf", "sft")
"""Phases that write conversations by the tokenizer's template; `vlm` reads the processor's."""
_ASKS: Final = re.compile(r"\bstrftime_now\s+is\s+(?:not\s+)?defined\b")
_CHANGING: Final = {
    "strftime_now": re.compile(r"\bstrftime_now\b"),
    "lipsum": re.compile(r"\blipsum\s*\("),
    "random": re.compile(r"(?:\||\bfilter\s|\bmap\s*\(\s*['\"])\s*random\b"),
}
"""What Jinja and Transformers give a template that does not give the same text each time."""


def chat_template(folder: Path) -> str | None:
    """The chat template of the tokenizer in a folder; ``None`` where there is none.

    Of several named ones it is that named default, which tokenizers render by.

    Raises:
        DataInvalid: A file of the tokenizer is no JSON or no text, or too large.
    """
    return chat_templates(folder).get(_DEFAULT)


def chat_templates(folder: Path) -> dict[str, str]:
    """The chat templates of the tokenizer in a folder by name; a single one is named default.

    Raises:
        DataInvalid: A file of the tokenizer is no JSON or no text, or too large.
    """
    files = {_DEFAULT: folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((folder / _FURTHER).glob("*.jinja"))}
    found = {
        name: read_bounded(path, MAX_SETTINGS_BYTES).decode("utf-8", "replace")
        for name, path in files.items()
        if path.is_file()
    }
    path = folder / "tokenizer_config.json"
    if found or not path.is_file():
        return found
    settings = parse_foreign(read_bounded(path, MAX_SETTINGS_BYTES))
    listed = settings.get("chat_template") if isinstance(settings, dict) else None
    if not isinstance(listed, list):
        listed = [{"name": _DEFAULT, "template": listed}]
    return {
        entry["name"]: entry["template"]
        for entry in reversed(listed)  # the first of one name
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    }


def find_template_fault(recipe: Any) -> str | None:
    """Why a ``Recipe`` has no use for a chat template of its own; ``None`` if it has."""
    if recipe.phase not in _WRITING or recipe.columns.kind in ("image", "tabular"):
        return f"is not for phase {recipe.phase}, which writes no conversation by the tokenizer"
    if recipe.phase == "sft" and recipe.columns.kind != "messages":
        return "is not for columns without messages, which no template writes"
    if recipe.scripts:
        return "does not reach into a script of your own; set tokenizer.chat_template there"
    if recipe.backend.name in ("axolotl", "unsloth"):
        return (
            f"is not for backend {recipe.backend.name}, which opens the tokenizer by itself; save "
            "the template with the tokenizer"
        )
    return None


@lru_cache(maxsize=32)
def changing_name(template: str) -> str | None:
    """The name in a template that gives another text each day or each time; ``None`` without.

    A template that only asks whether the name is defined does not use it. Comments count: what
    looks like one may stand within a text.

    Args:
        template: Its text.
    """
    code = _ASKS.sub("", template)
    return next((name for name, mention in _CHANGING.items() if mention.search(code)), None)


def changing_template(name: str) -> ModelInvalid:
    """The refusal of a chat template that renders another text later, at the desk and in the guest.

    Args:
        name: That it uses.
    """
    return ModelInvalid(
        "the chat template writes a text that changes by itself, so the model would learn "
        "another one than its owners approved",
        check="tokenizer",
        got=name,
        expected="a chat template that renders a record the same way every time",
        hint='write a fixed text in place of the call, such as "26 Jul 2024" for '
        "strftime_now(...), and save the tokenizer",
    )


def list_templates() -> frozenset[str] | None:
    """Chat templates that an installed TRL knows; ``None`` where it is not installed."""
    spec = find_spec("trl")
    if spec is None or spec.origin is None:
        return None
    files = sorted((Path(spec.origin).parent / "chat_templates").glob("*.jinja"))
    return frozenset(path.read_text("utf-8") for path in files) or None


def has_marks(template: str, known: frozenset[str] | None) -> bool:
    """Whether a template marks the assistant's turns, or TRL may have a twin of it that does.

    Args:
        template: Its text.
        known: Templates that TRL knows; where they cannot be told, each template may be one.
    """
    return known is None or template in known or _MARK.search(template) is not None
