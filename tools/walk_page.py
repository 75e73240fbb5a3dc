"""Write the table of ``docs/guides/walk.md`` from a walk that is really played.

Usage: ``python tools/walk_page.py [--folder FOLDER]``

The walk's run is prepared in ``FOLDER`` where none lies there. Nothing is written where a step does
not end as the walk promises.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sealtrain_console.walk.switch import StepOutcome
from sealtrain_console.walk.table import TITLES, play_all
from sealtrain_console.walk_run import prepare_run

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "guides" / "walk.md"
_BEGIN: Final = "<!-- begin: tools/walk_page.py -->\n"
_END: Final = "<!-- end: tools/walk_page.py -->\n"


def table_of(outcomes: Iterable[StepOutcome]) -> str:
    """The switches that were switched off, step by step, as Markdown.

    Args:
        outcomes: Of every switch, off, in the order of the walk.

    Raises:
        ValueError: One was not refused.
    """
    lines: list[str] = []
    step = ""
    for number, outcome in enumerate(outcomes):
        switch, error = outcome.switch, outcome.refusal
        if error is None:
            raise ValueError(f"nothing refused {switch.name}")
        if switch.step != step:
            step = switch.step
            lines += [
                *([""] if number else []),
                f"### {TITLES[switch.step]}",
                "",
                "| switch | what holds | switched off | refused with | check | exit | promise |",
                "|---|---|---|---|---|---|---|",
            ]
        code = f"[{error.code}](../reference/errors.md#{error.code})"
        lines.append(
            f"| `{switch.name}` | {switch.protection} | {switch.off} | {code} | "
            f"{error.check or '-'} | {error.exit_code} | {switch.claim} |"
        )
    return "\n".join(lines) + "\n"


def write(page: str, table: str) -> str:
    """The guide with a table in its place."""
    head, _, rest = page.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    return f"{head}{_BEGIN}\n{table}\n{_END}{tail}"


def main() -> None:
    """Play the walk and write the page."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--folder", type=Path)
    folder: Path | None = asked.parse_args().folder
    with tempfile.TemporaryDirectory() as own:
        run = prepare_run(
            folder or Path(own) / "walk", on_step=lambda line: print(line, file=sys.stderr)
        )
        table = table_of(play_all(run))
    PAGE.write_text(write(PAGE.read_text("utf-8"), table), "utf-8")


if __name__ == "__main__":
    main()
