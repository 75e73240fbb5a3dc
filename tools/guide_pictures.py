"""Draw the pictures of ``docs/guides/first_hour.md`` from the outputs that the page holds.

Usage: ``python tools/guide_pictures.py [--check]``

1. ``approve.svg``: the page that an owner reads, from the first command with ``--and-approve``.
2. ``status.svg``: what ``sealtrain status`` says of a recipe that misses an owner.

Lines are wrapped at ``WIDTH`` columns, so that a phone shows them at a size that can be read. The
text is the page's own; the font is what the reader's machine has. With ``--check`` nothing is
written; a stale picture exits 1.
"""

from __future__ import annotations

import inspect
import io
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "guides" / "first_hour.md"
FOLDER = PAGE.with_suffix("")
WIDTH = 52
_LABEL = 12

_BLOCK = re.compile(r"^```console\n(?P<typed>\$ .*?[^\\])\n(?P<said>.*?)^```$", re.M | re.S)
_FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
_FORMAT = inspect.signature(Console.export_svg).parameters["code_format"].default
_LABELLED = re.compile(r"^(?P<label> *(?:you pin|\S+(?: \S+)?)) {2,}(?P<text>\S.*)$")
_TITLES = {"approve": "sealtrain seal … --and-approve", "status": "sealtrain status"}


def draw(page: str) -> dict[str, str]:
    """The pictures of a page, by name."""
    said = {block["typed"]: block["said"].splitlines() for block in _BLOCK.finditer(page)}

    def first(fits: Callable[[str], bool]) -> list[str]:
        return next(lines for typed, lines in said.items() if fits(typed))

    asked = first(lambda typed: "--and-approve" in typed)
    start = next(at for at, line in enumerate(asked) if line.startswith("You are about to"))
    end = next(at for at, line in enumerate(asked) if line.startswith("Type APPROVE"))
    told = first(lambda typed: typed == "$ sealtrain status")
    shown = {
        "approve": asked[start : end + 1],
        "status": [line for line in told if not line.startswith("from ")],
    }
    return {name: _svg(name, lines) for name, lines in shown.items()}


def _svg(name: str, lines: Iterable[str]) -> str:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for line in _wrap(_join(lines)):
        console.print(_colour(line), soft_wrap=False, highlight=False)
    svg = console.export_svg(
        title=_TITLES[name],
        theme=DEFAULT_TERMINAL_THEME,
        code_format=_FONTS.sub("", _FORMAT),
        unique_id=f"first-hour-{name}",
    )
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def _join(lines: Iterable[str]) -> Iterator[str]:
    """Lines as they were before the command wrapped them."""
    whole = ""
    for line in lines:
        # Below a label, text that the command wrapped; another dataset stands on its own.
        if whole and re.match(r" {14}\S", line) and not re.match(r" {14}\S+/\S+ \(", line):
            whole = f"{whole} {line.strip()}"
            continue
        if whole:
            yield whole
        whole = line
    yield whole


def _wrap(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        deep = " " * (len(line) - len(line.lstrip()) + 2)
        found = _LABELLED.match(line)
        if found is not None and len(found["label"]) > _LABEL:
            found = None
        text = line if found is None else f"{found['label'].ljust(_LABEL)}  {found['text']}"
        yield from textwrap.wrap(
            text,
            WIDTH,
            subsequent_indent=deep if found is None else " " * (_LABEL + 2),
            break_on_hyphens=False,
            drop_whitespace=True,
            replace_whitespace=False,
        )


def _colour(line: str) -> Text:
    text = Text(line)
    text.highlight_regex(r"^ {2,4}(?:you pin|not proven|runs on|\S+(?= {2}))", "bold blue")
    text.highlight_regex(r"\[[a-z-]+\]|NOT ATTESTED|no differential privacy", "bold red")
    text.highlight_regex(r"(?<=go on: )APPROVE$", "bold green")
    return text


def main() -> None:
    """Write the pictures, or with ``--check`` compare them."""
    for name, svg in draw(PAGE.read_text("utf-8")).items():
        path = FOLDER / f"{name}.svg"
        if path.exists() and path.read_text("utf-8") == svg:
            continue
        if "--check" in sys.argv[1:]:
            raise SystemExit(f"{path.name} is stale: run python tools/guide_pictures.py")
        FOLDER.mkdir(exist_ok=True)
        path.write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
