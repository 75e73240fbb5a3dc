"""Pictures and counts in the documentation are made from what was recorded, and are fresh."""

from __future__ import annotations

import re
import subprocess
import sys
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
    ],
)
def test_what_a_tool_makes_is_fresh(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, f"tools/{tool}", "--check"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "page", sorted(REPOSITORY.glob("docs/**/*.md")), ids=lambda path: path.stem
)
def test_every_picture_of_a_page_exists_and_has_words_in_its_place(page: Path) -> None:
    for words, target in IMAGE.findall(page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).is_file(), target
        assert len(words.split()) > 5, f"{target} says nothing to a reader who cannot see it"


@pytest.mark.parametrize(
    "picture", sorted(REPOSITORY.glob("docs/**/*.svg")), ids=lambda path: path.stem
)
def test_a_picture_is_light_fits_a_phone_and_asks_no_server(picture: Path) -> None:
    text = picture.read_text("utf-8")
    assert len(text) < 32 << 10
    width = re.search(r'viewBox="0 0 (\d+)', text)
    assert width is not None
    # Letters of 20 units are 11 pixels or more on a screen of 380.
    assert int(width[1]) <= 690
    assert re.findall(r"url\((?!#)|<script|<image|@import", text) == []
