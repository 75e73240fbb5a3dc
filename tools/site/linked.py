"""Pages for the files and folders of the repository that other pages link to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

from alone import ALONE

_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".js": "javascript",
    ".toml": "toml",
}
_FOLDER = "files"
_AS_THEY_ARE = (".md", ".svg", ".png")
_MOST_LINES = 4000


def with_linked_files(pages: dict[str, str], repository: Path) -> dict[str, str]:
    """The pages with links that lead to pages, and a page for each file and folder linked to.

    Args:
        pages: Markdown by its name, relative to the repository.
        repository: Where the files are.
    """
    added: dict[str, str] = {}
    changed: dict[str, str] = {}
    for name, text in pages.items():
        here = PurePosixPath(name).parent

        def move_link(found: re.Match[str], here: PurePosixPath = here) -> str:
            target = os.path.normpath(here / found[1])
            page = _page_of(target, pages, repository, added)
            return (os.path.relpath(page, here) if page else found[1]) + (found[2] or "")

        changed[name] = _outside_code(text, partial(_LINK.sub, move_link))
    return changed | added


def _page_of(
    target: str, pages: dict[str, str], repository: Path, added: dict[str, str]
) -> str | None:
    """The page to which a link to this file leads; ``None`` where it stays as it is."""
    path = repository / target
    if target in pages or path.suffix in _AS_THEY_ARE or not path.exists():
        return None
    for index in (f"{target}/index.md", f"{target}/README.md"):
        if index in pages:
            return index
    name = f"{_FOLDER}/{target}.md"
    if name not in added:
        added[name] = _folder_page(target, path) if path.is_dir() else _file_page(target, path)
    return name


def _folder_page(target: str, path: Path) -> str:
    names = sorted(
        f"{each_path.name}/" if each_path.is_dir() else each_path.name
        for each_path in path.iterdir()
        if not each_path.name.startswith((".", "__pycache__"))
    )
    return "\n".join([f"{ALONE}# `{target}/`", "", *(f"- `{name}`" for name in names), ""])


def _file_page(target: str, path: Path) -> str:
    lines = path.read_text("utf-8").splitlines()
    text = lines if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], "…"]
    language = _LANGUAGES.get(path.suffix, "text")
    return "\n".join([f"{ALONE}# `{target}`", "", f"``````{language}", *text, "``````", ""])


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with a change made to each line that stands in no block of code."""
    lines, inside = [], False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            inside = not inside
        lines.append(line if inside else change(line))
    return "\n".join(lines)
