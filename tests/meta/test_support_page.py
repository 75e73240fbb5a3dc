"""The page of what stands behind the tests names every file there, each with a line of its own."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[1] / "support"
PAGE = SUPPORT / "README.md"


def test_every_file_is_named_once_where_it_is_explained() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    files = {path.name for path in SUPPORT.iterdir()} - {PAGE.name, "__pycache__"}
    # The first table has its files in the second column: which world is for which question.
    cells = [cell for row in rows for cell in row.split("|")[1:3]]
    listed = [cell.strip() for cell in cells if re.fullmatch(r"\s*(`[\w./]+`(, )?)+\s*", cell)]
    named = Counter(name for cell in listed for name in re.findall(r"`([^`]+)`", cell))
    assert sorted(named) == sorted(files)
    assert [name for name, times in named.items() if times > 1] == []
