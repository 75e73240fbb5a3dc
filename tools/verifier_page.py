"""Write the second verifier in one file each: ``verify/verify.html`` and the report's script.

The page works from disk, offline; the script is what a report carries to verify itself.
Beside them it writes what the verifier and the console's scripts have from the package: the schema
of locked recipes, the tiers of machines, and the tables of visible characters and of a run log's
events, which the page of the run log shows, too.

Each module of ``verify/`` becomes a function that returns what it exports; imports become names
taken from those. ``--check`` writes nothing and fails where the file is not the current one.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import sys
from pathlib import Path

from locked_schema import locked_schema
from sealtrain.attest.open_values import OPEN_RTMR0
from sealtrain.base.tiers import TIER_OF_KIND, TIERS, WORDS
from sealtrain.base.visible_text import fault_pattern
from sealtrain.manifest.limits import OPEN, TEXTS
from sealtrain.signing import logevents

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "verify"
PAGE = FOLDER / "verify.html"
SCRIPT = ROOT / "src/sealtrain/manifest/verifier.js"
LOOK = ROOT / "src/sealtrain/manifest/look.css"
SCHEMA = FOLDER / "recipeschema.js"
CHARACTERS = FOLDER / "characters.js"
CONSOLE_CHARACTERS = ROOT / "src/sealtrain_console/web/static/characters.js"
CODES = FOLDER / "codes.js"
TIERS_MODULE = FOLDER / "tiers.js"
OPEN_MODULE = FOLDER / "openwords.js"
LIMITS_MODULE = FOLDER / "limitwords.js"
EVENTS_MODULE = FOLDER / "logevents.js"
EVENTS_PAGE = ROOT / "spec/run-log.md"
PUBLISHED = ROOT / "spec/schema/recipe.schema.json"
PUBLISHED_CODES = ROOT / "spec/schema/error-codes.json"
ENTRY, EMBEDDED = "page.js", "embedded.js"

_TABLE_BEGINS, _TABLE_ENDS = "<!-- events -->", "<!-- /events -->"
_IMPORT = re.compile(r'^import (\{[^}]*\}|\* as \w+) from "\./([\w.]+)";\n', re.MULTILINE)
_REEXPORT = re.compile(r'^export (\{[^}]*\}) from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|const|class) (\w+)", re.MULTILINE)


def _name(module: str) -> str:
    return f"module_{module.removesuffix('.js')}"


def _taken(match: re.Match[str]) -> str:
    names, module = match[1], _name(match[2])
    if names.startswith("*"):
        return f"const {names.removeprefix('* as ')} = {module};\n"
    return f"const {re.sub(r' as ', ': ', names)} = {module};\n"


def _wrapped(module: str, source: str) -> str:
    exported = [match[2] for match in _EXPORT.finditer(source)]
    for match in _REEXPORT.finditer(source):
        exported += [one.strip() for one in match[1].strip("{} ").split(",")]
    body = _REEXPORT.sub(_taken, _IMPORT.sub(_taken, source))
    body = _EXPORT.sub(r"\1 \2", body)
    return f"const {_name(module)} = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();\n"


def _in_order(module: str, seen: dict[str, str]) -> dict[str, str]:
    """Sources by name, each after what it imports."""
    source = (FOLDER / module).read_text(encoding="utf-8")
    for pattern in (_IMPORT, _REEXPORT):
        for match in pattern.finditer(source):
            if match[2] not in seen:
                _in_order(match[2], seen)
    seen[module] = source
    return seen


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def script(entry: str) -> str:
    """All modules that one needs, in one script."""
    text = "".join(_wrapped(name, source) for name, source in _in_order(entry, {}).items())
    if "</script" in text or "<!--" in text:
        raise ValueError("a module holds what begins or ends a script element")
    return text


def page() -> str:
    """The text of ``verify.html``."""
    code = script(ENTRY)
    style = "".join(path.read_text(encoding="utf-8") for path in (LOOK, FOLDER / "page.css"))
    template = (FOLDER / "page.html").read_text(encoding="utf-8")
    parts = {
        "'SCRIPT_HASH'": f"'{_hash(code)}'",
        "'STYLE_HASH'": f"'{_hash(style)}'",
        ">STYLE<": f">{style}<",
        ">SCRIPT<": f">{code}<",
    }
    return re.sub("|".join(map(re.escape, parts)), lambda match: parts[match[0]], template)


def schema_module() -> str:
    """The module that holds the schema of the recipes in locks."""
    schema = locked_schema(json.loads(PUBLISHED.read_text(encoding="utf-8")))
    text = json.dumps(schema, separators=(",", ":"), ensure_ascii=True)
    return (
        "// The schema of the recipes in locks: written by tools/verifier_page.py from\n"
        "// spec/schema/recipe.schema.json.\n"
        f"\nexport const RECIPE_SCHEMA = {text};\n"
    )


def codes_module() -> str:
    """The module that holds the closed list of error codes."""
    text = json.dumps(json.loads(PUBLISHED_CODES.read_text(encoding="utf-8")), indent=2)
    return (
        "// The closed list of error codes: written by tools/verifier_page.py from\n"
        "// spec/schema/error-codes.json.\n"
        f"\nexport const ERROR_CODES = {text.removesuffix(chr(10) + ']')},\n];\n"
    )


def tiers_module() -> str:
    """The module that holds the tiers, what they mean, and the tier of each kind of evidence."""
    words = "".join(f"  {json.dumps(tier)}:\n    {json.dumps(WORDS[tier])},\n" for tier in TIERS)
    kinds = "".join(f'  "{kind}": "{tier}",\n' for kind, tier in TIER_OF_KIND.items())
    return (
        "// What a kind of evidence really proves of a machine (spec/evidence.md §6.1): written\n"
        "// by tools/verifier_page.py from src/sealtrain/base/tiers.py.\n"
        "\n/** Strongest first. */\n"
        f"export const TIERS = {json.dumps(TIERS)};\n"
        "\n/** What each tier means. */\n"
        f"export const TIER_WORDS = {{\n{words}}};\n"
        "\n/** Kind of the processor's evidence → its tier. */\n"
        f"export const TIER_OF_KIND = {{\n{kinds}}};\n"
        "\n/** Whether a tier is at least the lowest that is taken. */\n"
        "export const reaches = (proven, lowest) =>\n"
        "  TIERS.indexOf(proven) <= TIERS.indexOf(lowest);\n"
    )


def limits_module() -> str:
    """The texts of the limits of a manifest."""
    return (
        "// What a manifest does not prove, by the id of the limit: written by\n"
        "// tools/verifier_page.py from manifest/limits.py.\n\n"
        f"export const LIMIT_TEXTS = {json.dumps(dict(TEXTS), indent=2, ensure_ascii=False)};\n"
    )


def open_module() -> str:
    """The module that holds what each field that is left open accepts, in words."""
    return (
        "// What a trust file or policy accepts that leaves a field open: written by\n"
        "// tools/verifier_page.py from attest/open_values.py and manifest/limits.py.\n"
        f"\nexport const OPEN_WORDS = {json.dumps(OPEN, indent=2)};\n"
        f"export const OPEN_RTMR0 = {json.dumps(OPEN_RTMR0)};\n"
    )


def events_page() -> str:
    """The page of the run log, with its table of events as the package has it."""
    text = EVENTS_PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_TABLE_BEGINS)
    _, _, after = rest.partition(_TABLE_ENDS)
    lines = "".join(f"{line}\n" for line in logevents.table())
    return f"{before}{_TABLE_BEGINS}\n{lines}{_TABLE_ENDS}{after}"


def _characters(export: str) -> str:
    pattern = fault_pattern(lambda code: f"\\u{{{code:x}}}")
    return (
        "// What the table of visible characters does not admit (spec/key-release.md §1): written\n"
        "// by tools/verifier_page.py from src/sealtrain/base/visible_text.py.\n"
        f"\n{export}const HIDDEN =\n  /{pattern}/gu;\n\n"
        "/** Text for people: what the table does not admit is shown by number. */\n"
        f"{export}const escapeHidden = (text) =>\n"
        "  String(text).replace(HIDDEN, (found) => "
        "`\\\\u{${found.codePointAt(0).toString(16)}}`);\n"
    )


def characters_module() -> str:
    """The table as a module of the second verifier."""
    return _characters("export ")


def characters_script() -> str:
    """The table as a script of the console."""
    return _characters("")


def main() -> int:
    """Write schema, codes, tiers, table, page and script, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where it differs")
    check = parser.parse_args().check
    # Page and script hold schema, codes, tiers and table, so these come first.
    for path, text_of in (
        (SCHEMA, schema_module),
        (CODES, codes_module),
        (TIERS_MODULE, tiers_module),
        (OPEN_MODULE, open_module),
        (LIMITS_MODULE, limits_module),
        (EVENTS_MODULE, logevents.module),
        (EVENTS_PAGE, events_page),
        (CHARACTERS, characters_module),
        (CONSOLE_CHARACTERS, characters_script),
        (PAGE, page),
        (SCRIPT, lambda: script(EMBEDDED)),
    ):
        written = text_of()
        if not check:
            path.write_text(written, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != written:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
