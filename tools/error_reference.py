"""Keep the table of errors, their page and the closed list of codes in step with the classes.

Usage: ``python tools/error_reference.py [--check]``

1. Every class of an ``errors`` module stands in ``src/sealtrain/error_homes.py``, by its code, and
   gets a section of ``docs/reference/errors.md``, in the order of the tree: its code, class, exit
   code, HTTP status, retry, parent and docstring are written from the code.
2. What stands below ``**What to do.**`` is written by hand and kept as it is.
3. A section without advice is an error, and so is advice for a code that no longer exists.
4. The closed list of codes, in order, stands in ``spec/schema/error-codes.json`` too: verifiers
   read it there.

With ``--check`` nothing is written; a stale file exits 1.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from sealtrain.base.distributions import DISTRIBUTIONS, code_folder
from sealtrain.errors import INTERNAL, SealtrainError, code_of, every_error

__all__ = ["CODES", "PAGE", "TABLE", "advice_in", "closed_list", "homes", "render", "table", "tree"]

_ROOT = Path(__file__).resolve().parent.parent
PAGE = _ROOT / "docs" / "reference" / "errors.md"
TABLE = _ROOT / "src" / "sealtrain" / "error_homes.py"
CODES = _ROOT / "spec" / "schema" / "error-codes.json"

_TABLE_HEAD = '''\
"""Where the class of each error code stands. ``tools/error_reference.py`` writes this file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

'''
_MARK = "**What to do.**"
_SECTION = re.compile(r"^#{2,3} ([a-z0-9-]+)\n(.*?)(?=^#{1,3} |\Z)", re.MULTILINE | re.DOTALL)
_INTRO = """\
# Errors

Everything sealtrain refuses on purpose is one of these. The code stands in brackets on stderr
(`refused [approvals-missing]: …`) and in the field `error.code` of `--json`; it never changes its
meaning. Behind it come the owner and the check concerned, what was got, what was expected and a
hint. An error never shows a key, a row or a sample. After a refusal no half-written file is left.

Exit codes are explained in [exit-codes.md](exit-codes.md). A broker answers with the HTTP status.
*Retry again* means that the same request may succeed in a moment, *retry later* that owners or
operators can change the answer. In Python, catch the class, whose module stands beside it; the
classes form a tree, so `except sealtrain.errors.Refused` catches all that exits 3.

Headings, classes and descriptions on this page are written by `tools/error_reference.py`.
"""


def tree(kind: type[SealtrainError] = SealtrainError) -> Iterator[type[SealtrainError]]:
    """Every error class, parents before children.

    Of one parent, those beside the base stand first, in the order of their definition, and then
    those of packages, in the order of their codes.
    """
    yield kind
    base, known = SealtrainError.__module__, set(every_error())
    children = [child for child in kind.__subclasses__() if child in known]
    for child in sorted(children, key=lambda one: "" if one.__module__ == base else one.code):
        yield from tree(child)


def homes() -> dict[str, str]:
    """Module and name of each error class by its code, as the sources have them."""
    return {
        code_of(
            node.name
        ): f"{'.'.join(path.relative_to(source).with_suffix('').parts)}:{node.name}"
        for source in (code_folder(_ROOT, name) for name in DISTRIBUTIONS)
        for path in sorted(source.glob("sealtrain*/**/errors.py"))
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
    }


def table() -> str:
    """The module with the closed table."""
    rows = "".join(f'    "{code}": "{home}",\n' for code, home in sorted(homes().items()))
    return f"{_TABLE_HEAD}HOMES: Final[Mapping[str, str]] = {{\n{rows}}}\n"


def advice_in(page: str) -> dict[str, str]:
    """Hand-written text of each section, by code; sections without any are left out."""
    found: dict[str, str] = {}
    for code, body in _SECTION.findall(page):
        _, mark, advice = body.partition(_MARK)
        if mark and advice.strip():
            found[code] = advice.strip()
    return found


def render(advice: dict[str, str]) -> str:
    """The whole page.

    Args:
        advice: Hand-written text by error code.

    Raises:
        SystemExit: A code has no advice, or advice has no code.
    """
    codes = {kind.code for kind in tree()}
    if problems := sorted(codes ^ advice.keys()):
        raise SystemExit(
            f"write '{_MARK} …' for the new codes in {PAGE.name}, remove the gone ones: "
            + ", ".join(problems)
        )
    return _INTRO + "".join(_section(kind, advice[kind.code]) for kind in tree())


def closed_list() -> str:
    """All codes, in order, as JSON."""
    return json.dumps(sorted({*homes(), INTERNAL}), indent=1) + "\n"


def _section(kind: type[SealtrainError], advice: str) -> str:
    parent = kind.__base__
    depth = len(kind.__mro__) - len(SealtrainError.__mro__)
    facts = [
        f"`{kind.__module__}.{kind.__name__}`",
        f"exit {kind.exit_code}",
        f"HTTP {kind.http_status}",
    ]
    if kind.retry != "never":
        facts.append(f"retry {kind.retry}")
    if depth > 1 and parent is not None and issubclass(parent, SealtrainError):
        facts.append(f"a kind of [{parent.code}](#{parent.code})")
    summary = " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())
    return (
        f"\n{'##' if depth < 2 else '###'} {kind.code}\n\n"
        f"{' · '.join(facts)}\n\n{summary}\n\n{_MARK} {advice}\n"
    )


def main() -> None:
    """Rewrite table, page and list, or with ``--check`` compare them."""
    if TABLE.read_text("utf-8") != (fresh := table()):
        if "--check" in sys.argv[1:]:
            raise SystemExit(f"{TABLE.name} is stale: run python tools/error_reference.py")
        TABLE.write_text(fresh, "utf-8")
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606  # with the new table
    page = PAGE.read_text("utf-8")
    for path, fresh in ((PAGE, render(advice_in(page))), (CODES, closed_list())):
        if path.is_file() and path.read_text("utf-8") == fresh:
            continue
        if "--check" in sys.argv[1:]:
            raise SystemExit(f"{path.name} is stale: run python tools/error_reference.py")
        path.write_text(fresh, "utf-8")


if __name__ == "__main__":
    main()
