"""Pictures and counts in the documentation are made from what was recorded, and are fresh."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


@pytest.mark.parametrize(
    "tool",
    [
        "guide_pictures.py",
        "notebook.py",
        "bad_input_reference.py",
        "openapi_documents.py",
        "grafana_dashboard.py",
        "release_table.py",
    ],
)
def test_what_a_tool_makes_is_fresh(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, f"tools/{tool}", "--check"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def faults_by_file(pattern: str, faults_of: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What is wrong with each file; a file without a fault is left out."""
    files = sorted(REPOSITORY.glob(pattern))
    assert files
    return {
        path.relative_to(REPOSITORY).as_posix(): faults
        for path in files
        if (faults := faults_of(path))
    }


def faults_of_pictures_in(page: Path) -> list[str]:
    faults = []
    for words, target in IMAGE.findall(page.read_text("utf-8")):
        if "://" not in target and not (page.parent / target).is_file():
            faults.append(f"{target} does not exist")
        if len(words.split()) <= 5:
            faults.append(f"{target} says nothing to a reader who cannot see it")
    return faults


def test_every_picture_of_a_page_exists_and_has_words_in_its_place() -> None:
    assert faults_by_file("docs/**/*.md", faults_of_pictures_in) == {}


def faults_of_picture(picture: Path) -> list[str]:
    text = picture.read_text("utf-8")
    width = re.search(r'viewBox="0 0 (\d+)', text)
    faults = re.findall(r"url\((?!#)|<script|<image|@import", text)
    if len(text) >= 32 << 10:
        faults.append(f"{len(text)} characters")
    # Letters of 20 units are 11 pixels or more on a screen of 380.
    if width is None or int(width[1]) > 690:
        faults.append("wider than a phone")
    return faults


def test_a_picture_is_light_fits_a_phone_and_asks_no_server() -> None:
    assert faults_by_file("docs/**/*.svg", faults_of_picture) == {}
