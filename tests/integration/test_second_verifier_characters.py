"""Both verifiers see the same characters: one table, in two languages."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from node_judges import judge
from variants import variants

from sealtrain.base.version import own_folders
from sealtrain.base.visible_text import MARKS, SCRIPTS, escape_hidden, is_visible

DRIVER = Path(__file__).resolve().parents[1] / "support/second_characters.mjs"
CONSOLE = own_folders()["sealtrain_console"] / "web/static/characters.js"
pytestmark = [pytest.mark.long, pytest.mark.claim("C178"), pytest.mark.claim("C211")]


def texts(each: int) -> list[str]:
    """Characters between two letters, and characters of all kinds behind each other.

    Args:
        each: Of characters from 0x4000 on every so manieth, besides both sides of every border of
            the table.
    """
    ranges = [*MARKS, *(letters for script in SCRIPTS for letters in script.letters)]
    borders = {code + beside for ends in ranges for code in ends for beside in (-1, 0, 1)}
    codes = sorted({*range(0x4000), *range(0x4000, 0x110000, each), *borders})
    made = [f"a{chr(code)}b" for code in codes]
    seeded = random.Random(6)  # noqa: S311  # no secret
    marks = [chr(code) for a, b in MARKS for code in range(a, b + 1)]
    pool = [*"aZ 3-éΩж漢가ー。", "\u202e", "\u2800", "\U000e0101", "\u0334", *marks]
    made += ["".join(seeded.choices(pool, k=seeded.randrange(12))) for _ in range(20_000)]
    return [*made, *marks]


@pytest.mark.parametrize("each", variants([1, 17], each_time=[17]))
def test_both_verifiers_admit_and_show_the_same(each: int) -> None:
    asked = texts(each)
    said = judge(DRIVER, map(json.dumps, asked), seconds=120)
    for text, answer in zip(asked, said, strict=True):
        assert answer == [is_visible(text), escape_hidden(text)], ascii(text)


def test_the_consoles_table_is_the_verifiers() -> None:
    module = (DRIVER.parents[2] / "verify/characters.js").read_text("utf-8")
    assert CONSOLE.read_text("utf-8") == module.replace("export const", "const")
