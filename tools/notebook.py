"""Write ``examples/notebook/story.ipynb`` from ``story.py``, whose cells begin with ``# %%``.

Usage: ``python tools/notebook.py [--check | --run [--out FILE]]``

Outputs that are there stay as long as no cell changed. ``--run`` executes every cell in a kernel of
its own, in a new folder, and keeps the outputs; a cell that fails exits 1. With ``--check`` nothing
is written; a stale notebook, or an output that shows a place on a machine, exits 1.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

SOURCE = Path(__file__).resolve().parent.parent / "examples" / "notebook" / "story.py"
NOTEBOOK = SOURCE.with_suffix(".ipynb")
SECONDS_A_CELL = 1500
_MARK = re.compile(r"^# %%(?P<markdown> \[markdown\])?$", re.M)
_PLACE = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|work|usr|opt|var|Users|private)/|file://")
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def cells(source: str) -> Iterator[tuple[str, str]]:
    """Kind (``markdown`` or ``code``) and text of each cell of a source."""
    marks = list(_MARK.finditer(source))
    ends = [mark.start() for mark in marks[1:]] + [len(source)]
    for mark, end in zip(marks, ends, strict=True):
        text = source[mark.end() : end].strip("\n")
        if mark["markdown"]:
            yield "markdown", re.sub(r"^# ?", "", text, flags=re.M)
        else:
            yield "code", text


def write(source: str, before: nbformat.NotebookNode | None) -> nbformat.NotebookNode:
    """The notebook of a source, with the outputs of an earlier one whose cells are the same."""
    made: nbformat.NotebookNode = nbformat.v4.new_notebook(metadata=_METADATA)
    for place, (kind, text) in enumerate(cells(source)):
        new: Any = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
        made.cells.append(new(text, id=f"cell-{place}"))
    if before is not None and _list_cells(before) == _list_cells(made):
        made.cells = before.cells
    return made


def execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The same with outputs, without times and versions of the machine.

    Raises:
        CellExecutionError: A cell failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=SECONDS_A_CELL,
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    notebook.metadata = _METADATA
    return notebook


def places(notebook: nbformat.NotebookNode) -> list[str]:
    """Lines of outputs that show a place on a machine."""
    shown = (str(output) for cell in notebook.cells for output in cell.get("outputs", ()))
    return [text[:200] for text in shown if _PLACE.search(text)]


def _list_cells(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def _read() -> nbformat.NotebookNode | None:
    return nbformat.read(NOTEBOOK, as_version=4) if NOTEBOOK.exists() else None


def main() -> None:
    """Write, check or run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--out", type=Path, default=NOTEBOOK)
    chosen = parser.parse_args()
    before = _read()
    made = write(SOURCE.read_text("utf-8"), before)
    if chosen.check:
        if before is None or nbformat.writes(before) != nbformat.writes(made) or places(before):
            raise SystemExit(f"{NOTEBOOK.name} is stale: make format, or tools/notebook.py --run")
        return
    if chosen.run:
        try:
            made = execute(made)
        except CellExecutionError as error:
            print(error, file=sys.stderr)
            raise SystemExit(1) from None
        if places(made):
            raise SystemExit(f"outputs show places on this machine: {places(made)}")
    nbformat.validate(made)
    text = nbformat.writes(made) + "\n"
    if not chosen.out.exists() or chosen.out.read_text("utf-8") != text:
        chosen.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
