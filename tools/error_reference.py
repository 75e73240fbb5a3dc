"""Keep ``docs/reference/errors.md`` and ``spec/schema/error-codes.json`` in step with the errors.

Usage: ``python tools/error_reference.py [--check]``

1. Every class of ``sealtrain.errors`` gets a section, in the order of the tree: its code, class,
   exit code, HTTP status, retry, parent and docstring are written from the code.
2. What stands below ``**What to do.**`` is written by hand and kept as it is.
3. A section without advice is an error, and so is advice for a code that no longer exists.
4. The closed list of codes, in order, stands in the specification too: verifiers read it there.

With ``--check`` nothing is written; a stale file exits 1.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from sealtrain.errors import ERROR_CODES, SealtrainError

__all__ = ["CODES", "PAGE", "advice_in", "closed_list", "render", "tree"]

_ROOT = Path(__file__).resolve().parent.parent
PAGE = _ROOT / "docs" / "reference" / "errors.md"
CODES = _ROOT / "spec" / "schema" / "error-codes.json"

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
operators can change the answer. In Python, catch the class (`sealtrain.errors`); the classes form a
tree, so `except Refused` catches all that exits 3.

Headings, classes and descriptions on this page are written by `tools/error_reference.py`.
"""


def tree(kind: type[SealtrainError] = SealtrainError) -> Iterator[type[SealtrainError]]:
    """Every error class, parents before children, in the order of their definition."""
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == SealtrainError.__module__:
            yield from tree(child)


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
    return json.dumps(sorted(ERROR_CODES), indent=1) + "\n"


def _section(kind: type[SealtrainError], advice: str) -> str:
    parent = kind.__base__
    depth = len(kind.__mro__) - len(SealtrainError.__mro__)
    facts = [f"`{kind.__name__}`", f"exit {kind.exit_code}", f"HTTP {kind.http_status}"]
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
    """Rewrite page and list, or with ``--check`` compare them."""
    page = PAGE.read_text("utf-8")
    for path, fresh in ((PAGE, render(advice_in(page))), (CODES, closed_list())):
        if path.is_file() and path.read_text("utf-8") == fresh:
            continue
        if "--check" in sys.argv[1:]:
            raise SystemExit(f"{path.name} is stale: run python tools/error_reference.py")
        path.write_text(fresh, "utf-8")


if __name__ == "__main__":
    main()
