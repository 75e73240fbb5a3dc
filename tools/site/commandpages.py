"""A page for each command, out of the page that has them all."""

from __future__ import annotations

import re

from alone import ALONE

_SECTION = re.compile(r"^## (sealtrain [a-z -]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_GROUP = re.compile(r"^\*\*(.+)\*\*$")
_LISTED = re.compile(r"^- \[`(.+)`\]\(#[^)]*\): (.*)$")
_ELSEWHERE = re.compile(r"\]\((?!https?:|#)([^)]+)\)")
_ALL = "docs/reference/cli.md"


def command_pages(page: str) -> dict[str, str]:
    """Pages by their name on the site.

    Args:
        page: ``docs/reference/cli.md``.
    """
    sections = _SECTION.findall(page)
    pages = {
        f"commands/{_file(name)}.md": f"{ALONE}# {name}\n{_move_links(body)}\n\n"
        "[All commands](index.md)\n"
        for name, body in sections
    }
    lines = [
        "# Commands by what you want to do",
        "",
        "`sealtrain COMMAND --help` says the same as a page here.",
        f"[One page](../{_ALL}) has them all.",
        "",
    ]
    for line in page.splitlines():
        if group := _GROUP.match(line):
            lines += ["", f"## {group[1]}", "", "| command | what it does |", "|---|---|"]
        elif listed := _LISTED.match(line):
            said = listed[2].replace("|", "\\|")
            lines.append(f"| [`{listed[1]}`]({_file(listed[1])}.md) | {said} |")
    pages["commands/index.md"] = "\n".join([*lines, ""])
    return pages


def _file(name: str) -> str:
    return name.removeprefix("sealtrain ").replace(" ", "-")


def _move_links(body: str) -> str:
    """A section's text where its links lead from the folder of the command pages."""
    return _ELSEWHERE.sub(lambda found: f"](../docs/reference/{found[1]})", body).rstrip()
