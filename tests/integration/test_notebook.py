"""The notebook is executed, cell by cell, in a kernel of its own: what it shows is what happens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from collecting import COLLECTING

if not COLLECTING:
    import nbformat

CODES = (
    "approvals-missing",
    "recipe-changed",
    "submission-ended",
    "signature-invalid",
    "subject-mismatch",
    "approval-revoked",
)
"""What the story shows to be refused, in this order."""


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_story_plays_and_shows_no_place_of_this_machine(
    repository: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "tools/notebook.py", "--run", "--out", tmp_path / "story.ipynb"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=1780,
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "story.ipynb").read_text()
    played = nbformat.reads(text, as_version=4)
    outputs = [output for cell in played.cells for output in cell.get("outputs", ())]
    said = "".join(output.get("text", "") for output in outputs)
    refused = [line.split()[1].rstrip(",") for line in said.splitlines() if "refused:" in line]
    assert [code for code in refused if code in CODES] == list(CODES)
    assert [output for output in outputs if "image/png" in output.get("data", {})]
    assert str(tmp_path) not in text
    assert str(repository) not in text


def test_a_cell_that_changed_loses_its_output(repository: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, 'tools')\n"
        "import nbformat, notebook\n"
        "source = notebook.SOURCE.read_text()\n"
        "before = nbformat.read(notebook.NOTEBOOK, as_version=4)\n"
        "kept = notebook.write(source, before)\n"
        "assert any(cell.get('outputs') for cell in kept.cells)\n"
        "lost = notebook.write(source.replace('simulation.close()', 'pass'), before)\n"
        "assert not any(cell.get('outputs') for cell in lost.cells)\n"
        "before.cells[1].outputs = [nbformat.v4.new_output('stream', text='see /usr/share/run')]\n"
        "assert notebook.places(before)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=repository, check=True, timeout=60)
