"""A page for each error code, out of the page that has them all."""

from __future__ import annotations

import re

from alone import ALONE

_SECTION = re.compile(r"^#{2,4} ([a-z0-9-]+)\n(.*?)(?=^#{1,4} |\Z)", re.MULTILINE | re.DOTALL)
_HERE = re.compile(r"\]\(#([a-z0-9-]+)\)")
_ELSEWHERE = re.compile(r"\]\((?!https?:|#)([^)]+)\)")
_ALL = "docs/reference/errors.md"


def error_pages(page: str) -> dict[str, str]:
    """Pages by their name on the site.

    Args:
        page: ``docs/reference/errors.md``.
    """
    sections = _SECTION.findall(page)
    codes = {code for code, _ in sections}
    pages = {
        f"errors/{code}.md": f"{ALONE}# {code}\n{_move_links(body, codes)}"
        for code, body in sections
    }
    rows = [
        f"| [`{code}`]({code}.md) | {_exit(body)} | {_first(body)} |" for code, body in sections
    ]
    pages["errors/index.md"] = "\n".join(
        [
            "# Error codes",
            "",
            "The code stands in brackets on stderr and in `error.code` of `--json`.",
            "`sealtrain explain CODE` says the same as its page here.",
            f"[One page](../{_ALL}) has them all, with how they belong together.",
            "",
            "| code | exit | when |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
    return pages


def _move_links(body: str, codes: set[str]) -> str:
    """A section's text where its links lead from the folder of the error pages."""
    body = _ELSEWHERE.sub(lambda found: f"](../docs/reference/{found[1]})", body)

    def to_page(found: re.Match[str]) -> str:
        return f"]({found[1]}.md)" if found[1] in codes else f"](../{_ALL}#{found[1]})"

    return _HERE.sub(to_page, body)


def _exit(body: str) -> str:
    found = re.search(r"exit (\d)", body)
    return found[1] if found else ""


def _first(body: str) -> str:
    """The first paragraph below the line of class, exit code and status."""
    paragraphs = [" ".join(word.split()) for word in body.strip().split("\n\n")]
    text = paragraphs[1] if len(paragraphs) > 1 else ""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("|", "\\|")
