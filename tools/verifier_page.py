"""Write what the second verifier has from the package, and the digest of its page.

These are the schema of locked recipes, the tiers of machines, and the tables of visible characters
and of a run log's events, which the console's scripts and the page of the run log have, too.
``manifest.second_verifier`` joins all modules to one page: ``--page FILE`` writes it, and
``verify/verify.html.sha256`` holds its digest. ``--check`` writes nothing and fails where a file is
not the current one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from locked_schema import locked_schema
from sealtrain.attest.open_values import OPEN_RTMR0
from sealtrain.base.digests import sha256_hex
from sealtrain.base.tiers import TIER_OF_KIND, TIERS, WORDS
from sealtrain.base.visible_text import fault_pattern
from sealtrain.manifest.limits import OPEN, TEXTS
from sealtrain.manifest.second_verifier import join_page
from sealtrain.signing import logevents

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "verify"
DIGEST = FOLDER / "verify.html.sha256"
SCHEMA = FOLDER / "recipeschema.js"
CHARACTERS = FOLDER / "characters.js"
CONSOLE_CHARACTERS = ROOT / "packages/sealtrain-console/sealtrain_console/web/static/characters.js"
CODES = FOLDER / "codes.js"
TIERS_MODULE = FOLDER / "tiers.js"
OPEN_MODULE = FOLDER / "openwords.js"
LIMITS_MODULE = FOLDER / "limitwords.js"
EVENTS_MODULE = FOLDER / "logevents.js"
EVENTS_PAGE = ROOT / "spec/run-log.md"
PUBLISHED = ROOT / "spec/schema/recipe.schema.json"
PUBLISHED_CODES = ROOT / "spec/schema/error-codes.json"

_TABLE_BEGINS, _TABLE_ENDS = "<!-- events -->", "<!-- /events -->"


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


def page_digest() -> str:
    """The digest of the page, as ``sha256sum`` writes it."""
    return f"{sha256_hex(join_page().encode())}  verify.html\n"


def main() -> int:
    """Write schema, codes, tiers, tables and digest, or compare them; write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where it differs")
    parser.add_argument("--page", type=Path, help="write only the joined page, to this file")
    given = parser.parse_args()
    if given.page is not None:
        given.page.parent.mkdir(parents=True, exist_ok=True)
        given.page.write_text(join_page(), encoding="utf-8")
        sys.stdout.write(f"{given.page}  SHA-256 {page_digest().split()[0]}\n")
        return 0
    # The page holds schema, codes, tiers and tables, so these come first.
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
        (DIGEST, page_digest),
    ):
        written = text_of()
        if not given.check:
            path.write_text(written, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != written:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
