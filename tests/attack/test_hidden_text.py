"""An engineer hides code or a condition from owners: in what they read, or in its layout."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from world import OWNERS, founded, lock_changed

from sealtrain.base.models import load_model
from sealtrain.base.visible_text import cells, is_visible
from sealtrain.cli.output import emit, say
from sealtrain.cli.review import change_lines, page, screen_width, within
from sealtrain.errors import ConfigError
from sealtrain.manifest.exports.model_facts import plain
from sealtrain.manifest.markup import tag
from sealtrain.recipe.diff import RecipeChange
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe
from sealtrain.recipe.scripts import read_scripts, script_problem
from sealtrain.signing.datause import DataUse

BLANK = ("\u2800", "\u3164", "\u115f", "\u1160", "\uffa0", "\u3000", "\u00a0", "\u2003", "\u180e")
IGNORED = ("\u034f", "\u17b4", "\u180b", "\ufe00", "\ufe0f", "\U000e0100", "\U000e01ef", "\u2065")
TURNING = ("\u202e", "\u2066", "\u061c", "\u05d0", "\u0627", "\u07ca")
PAINTING = (
    "\u0332",
    "\u0338",
    "\u20dd",
    "\u0489",
    "a" + "\u0323" * 3,
    "a" + "\u0301" * 9,
    " \u0301",
)
PAYLOAD = "print('a record')"


def hidden(text: str) -> str:
    """A program in characters that no screen shows."""
    return "".join(chr(0xE0100 + byte) for byte in text.encode())


@pytest.mark.claim("C123")
@pytest.mark.parametrize("char", [*BLANK, *IGNORED, *TURNING, *PAINTING], ids=ascii)
def test_a_script_holds_nothing_that_owners_do_not_see(char: str, tmp_path: Path) -> None:
    for text in (f"TITLE = '{char}'\n", f"# {char}\n", f"x{char} = 1\n", f"{char}\n"):
        (tmp_path / "train.py").write_text(text)
        with pytest.raises(RecipeInvalid):
            read_scripts(["train.py"], tmp_path)
        (tmp_path / "notes.txt").write_text(text)
        with pytest.raises(RecipeInvalid):
            read_scripts(["notes.txt"], tmp_path)


@pytest.mark.claim("C123")
def test_a_program_in_variation_selectors_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"TITLE = 'v1{hidden(PAYLOAD)}'\n"
        "exec(bytes(ord(c) - 0xE0100 for c in TITLE if ord(c) > 0xE00FF))\n"
    )
    with pytest.raises(RecipeInvalid):
        read_scripts(["train.py"], tmp_path)


@pytest.mark.claim("C123")
@pytest.mark.parametrize(
    "code",
    [
        "m\u043edel = 1",  # Cyrillic
        "x = \u03bfs",  # Greek
        "x.\u0430ttr = 1",
        "f(\u0430=1)",
        "def f(\u0430): pass",
        "def f\u0430(): pass",
        "class \u0410: pass",
        "import json as \u0430",
        "from json import lo\u0430ds",
        "global \u0430",
        "try: pass\nexcept ValueError as \u0435: pass",
        "match x:\n case {**\u0430}: pass",
        "match x:\n case [*\u0430]: pass",
        "match x:\n case C(\u0430=1): pass",
        "print(f'{\u0430}')",
        "lambda \u0430: 1",
        "e\u0301 = 1",
        "\u00e9 = 1",
        "(\u0430 := 1)",
    ],
    ids=ascii,
)
def test_a_name_in_code_cannot_look_like_another(code: str) -> None:
    with pytest.raises(RecipeInvalid) as refusal:
        script_problem({"train.py": f"{code}\n"}, ["train.py"], ())
    assert refusal.value.check == "scripts"


@pytest.mark.claim("C123")
def test_words_of_people_stay_possible_in_literals_and_comments() -> None:
    text = (
        "# Größe, размер, μέγεθος, 大きさ “x” ≤ 3\nNAMES = {'größe': '大'}\nprint(f'é {NAMES}')\n"
    )
    assert script_problem({"train.py": text}, ["train.py"], ()) is None


@pytest.mark.claim("C178")
@pytest.mark.parametrize("char", [*BLANK, *IGNORED, *TURNING, *PAINTING], ids=ascii)
def test_neither_recipes_nor_statements_of_owners_hold_it(char: str) -> None:
    recipe: dict[str, Any] = founded_recipe()
    for change in (
        {"description": f"a{char} b"},
        {"purpose": f"a{char} b"},
        {"columns": {"text": f"a{char}b"}},
        {"trainer": recipe["trainer"] | {"eos_token": f"<{char}>"}},
    ):
        with pytest.raises(RecipeInvalid):
            parse_recipe(recipe | change)
    for field in ("purposes", "categories"):
        with pytest.raises(ConfigError):
            load_model(DataUse, {field: [f"a{char} b"]}, ConfigError, "data use")


def founded_recipe() -> dict[str, Any]:
    locked = lock_changed(founded(owners=OWNERS).consortium_id, ("ab" * 32,), lambda _: None)
    recipe: dict[str, Any] = locked.lock.to_dict()["recipe"]
    return recipe


def lines_of(text: str, width: int) -> list[str]:
    """The page of a recipe with this description."""
    locked = lock_changed(
        founded(owners=OWNERS).consortium_id,
        ("ab" * 32,),
        lambda recipe: recipe.update(description=text),
    )
    return page(locked.lock, width=width)


def forged(width: int, filler: str) -> str:
    """A description that reaches over lines of the page, up to a label of its own at their left."""
    label = f"  {'privacy':<12}differential privacy with epsilon 0.5"
    return (filler * width)[: width - 14] + label + filler * 40


@pytest.mark.claim("C178")
@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("filler", ["x", "x ", "漢", "漢x", "e\u0301", "-", "漢 ", "ー"])
def test_a_long_text_stays_in_its_column(width: int, filler: str) -> None:
    honest = [line[:14] for line in lines_of("short", width)]
    lines = lines_of(forged(width, filler), width)
    assert all(cells(line) <= width for line in lines)
    labels = [line[:14] for line in lines if line[:14].strip()]
    assert labels == [label for label in honest if label.strip()]


@pytest.mark.claim("C123")
@pytest.mark.parametrize("width", [40, 80, 100])
def test_a_long_line_of_a_script_paints_no_line_of_the_page(width: int) -> None:
    script = "x = 1  #" + " " * 400 + "privacy     differential privacy" + "漢" * 200 + "\n"
    change = RecipeChange(
        path="scripts[train.py]",
        kind="added",
        before=None,
        after=script,
        area="code",
        severity="critical",
    )
    lines = within((f"  {line}" for line in change_lines([change])), width)
    assert all(cells(line) <= width for line in lines)
    assert not any(line.startswith("  privacy") for line in lines)
    painted = [line for line in lines if "privacy" in line]
    assert painted
    assert all(line.startswith(" " * 14) for line in painted)


@contextmanager
def terminal(columns: int) -> Iterator[int]:
    """A terminal of this width; yields the end that a program writes to."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        yield theirs
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.claim("C178")
@pytest.mark.parametrize(("columns", "expected"), [(80, 80), (200, 100), (10, 40)])
def test_the_page_is_no_wider_than_the_terminal(
    columns: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(columns) as descriptor, os.fdopen(os.dup(descriptor), "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        assert screen_width() == expected


@pytest.mark.claim("C211")
@pytest.mark.parametrize("char", [*BLANK, *IGNORED, *TURNING, *PAINTING], ids=ascii)
def test_what_is_read_is_shown_by_number(char: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"a {char}b"
    emit(False, {}, [text])
    emit(True, {"text": text})
    say(text)
    written = capsys.readouterr()
    for shown in (written.out, written.err, tag("p", text, title=text), plain(text)):
        for line in shown.split("\n"):
            assert is_visible(line), ascii(line)
