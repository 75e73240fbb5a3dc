"""The second verifier (``verify/``, JavaScript) in one file: the report's script, and a page.

Both are joined from its modules where they are needed, so that no joined file can be older than the
modules. Each module becomes a function that returns what it exports; imports become names taken
from those. ``verify/verify.html.sha256`` holds the digest of the page, which every installation of
one version joins alike.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from sealtrain.base.shipped import find_shipped

_PAGE: Final = "page.js"
_EMBEDDED: Final = "embedded.js"
_IMPORT: Final = re.compile(r'^import (\{[^}]*\}|\* as \w+) from "\./([\w.]+)";\n', re.MULTILINE)
_REEXPORT: Final = re.compile(r'^export (\{[^}]*\}) from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ((?:async )?function|const|class) (\w+)", re.MULTILINE)


@cache
def join_script() -> str:
    """The script with which a report verifies its own manifest."""
    return _join(_EMBEDDED)


def join_page() -> str:
    """The page that verifies a manifest from disk, offline: ``verify.html``."""
    folder = find_shipped("verify")
    code = _join(_PAGE)
    look = files("sealtrain.manifest").joinpath("look.css").read_text("utf-8")
    style = look + (folder / "page.css").read_text("utf-8")
    template = (folder / "page.html").read_text("utf-8")
    parts = {
        "'SCRIPT_HASH'": f"'{hash_for_policy(code)}'",
        "'STYLE_HASH'": f"'{hash_for_policy(style)}'",
        ">STYLE<": f">{style}<",
        ">SCRIPT<": f">{code}<",
    }
    return re.sub("|".join(map(re.escape, parts)), lambda match: parts[match[0]], template)


def hash_for_policy(text: str) -> str:
    """How a Content-Security-Policy names a style or script that stands in its page."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _join(entry: str) -> str:
    """All modules that one needs, itself the last."""
    modules = _collect(find_shipped("verify"), entry, {})
    text = "".join(_wrap(name, source) for name, source in modules.items())
    if "</script" in text or "<!--" in text:
        raise ValueError("a module holds what begins or ends a script element")
    return text


def _collect(folder: Path, module: str, found: dict[str, str]) -> dict[str, str]:
    """Sources by name, each after what it imports."""
    source = (folder / module).read_text("utf-8")
    for pattern in (_IMPORT, _REEXPORT):
        for match in pattern.finditer(source):
            if match[2] not in found:
                _collect(folder, match[2], found)
    found[module] = source
    return found


def _wrap(module: str, source: str) -> str:
    exported = [match[2] for match in _EXPORT.finditer(source)]
    for match in _REEXPORT.finditer(source):
        exported += [name.strip() for name in match[1].strip("{} ").split(",")]
    body = _REEXPORT.sub(_take, _IMPORT.sub(_take, source))
    body = _EXPORT.sub(r"\1 \2", body)
    return f"const {_name(module)} = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();\n"


def _take(match: re.Match[str]) -> str:
    names, module = match[1], _name(match[2])
    if names.startswith("*"):
        return f"const {names.removeprefix('* as ')} = {module};\n"
    return f"const {re.sub(r' as ', ': ', names)} = {module};\n"


def _name(module: str) -> str:
    return f"module_{module.removesuffix('.js')}"
