"""Marks in chat templates around the assistant's turns, judged without the training libraries.

``assistant_only_loss`` learns what a template marks by ``{% generation %} … {% endgeneration %}``.
Templates of published models mostly have no marks. TRL has marked twins of some, which it finds by
their whole text; a template that is neither marked nor one of those ends the training before its
first step, after keys were released. So the desk looks first: at the template's file, and at the
files of templates in an installed TRL, which is not imported.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sealtrain.base.canonical import parse_foreign
from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_SETTINGS_BYTES

MARKS: Final = "{% generation %} … {% endgeneration %}"
_MARK: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
_DEFAULT: Final = "default"


def chat_template(folder: Path) -> str | None:
    """The chat template of the tokenizer in a folder; ``None`` where there is none.

    Of several named ones it is that named default, which tokenizers render by.

    Raises:
        DataInvalid: A file of the tokenizer is no JSON or no text, or too large.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        return read_bounded(path, MAX_SETTINGS_BYTES).decode("utf-8", "replace")
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return None
    settings = parse_foreign(read_bounded(path, MAX_SETTINGS_BYTES))
    found = settings.get("chat_template") if isinstance(settings, dict) else None
    if isinstance(found, list):
        named = [
            template
            for template in found
            if isinstance(template, dict) and template.get("name") == _DEFAULT
        ]
        found = named[0].get("template") if named else None
    return found if isinstance(found, str) else None


def known_templates() -> frozenset[str] | None:
    """Chat templates that an installed TRL knows; ``None`` where it is not installed."""
    spec = find_spec("trl")
    if spec is None or spec.origin is None:
        return None
    files = sorted((Path(spec.origin).parent / "chat_templates").glob("*.jinja"))
    return frozenset(path.read_text("utf-8") for path in files) or None


def marked(template: str, known: frozenset[str] | None) -> bool:
    """Whether a template marks the assistant's turns, or TRL may have a twin of it that does.

    Args:
        template: Its text.
        known: Templates that TRL knows; where they cannot be told, each template may be one.
    """
    return known is None or template in known or _MARK.search(template) is not None
