"""Text that a reader sees is the same text for every program, whatever Unicode it knows."""

from __future__ import annotations

import unicodedata
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.base.visible_text import (
    MARKS,
    MOST_MARKS,
    SCRIPTS,
    SIGNS,
    WIDE_SIGNS,
    Script,
    cells,
    escape_hidden,
    escape_hidden_lines,
    fold,
    is_visible,
)

LETTERS = {
    script.name: [chr(code) for a, b in script.letters for code in range(a, b + 1)]
    for script in SCRIPTS
}
ALL_MARKS = [chr(code) for a, b in MARKS for code in range(a, b + 1)]
ADMITTED = {
    *map(chr, range(0x20, 0x7F)),
    *chain.from_iterable(LETTERS.values()),
    *ALL_MARKS,
    *SIGNS,
    *WIDE_SIGNS,
}
LENGTHENERS = {"\u30fc", "\u3005"}
"""Two signs of Japanese that Unicode counts as letters that modify."""


def test_every_other_character_is_hidden_wherever_it_stands() -> None:
    for code in range(0x110000):
        char = chr(code)
        assert is_visible(f"a{char}b") == (char in ADMITTED), hex(code)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_letters_are_letters_of_their_script_from_left_to_right(script: Script) -> None:
    name = script.name
    for letter in LETTERS[name]:
        assert unicodedata.category(letter) in {"Lu", "Ll", "Lo"} or letter in LENGTHENERS
        assert unicodedata.bidirectional(letter) == "L"
        said = unicodedata.name(letter)
        assert said.startswith({"Han": "CJK"}.get(name, name).upper()) or letter in LENGTHENERS


def test_no_admitted_letter_becomes_other_ascii_by_any_normal_form() -> None:
    for letter in chain.from_iterable(LETTERS.values()):
        for form in ("NFC", "NFKC"):
            assert not unicodedata.normalize(form, letter).isascii(), hex(ord(letter))


def test_signs_are_neither_letters_nor_spaces_nor_formats() -> None:
    for sign in SIGNS + WIDE_SIGNS:
        assert unicodedata.category(sign)[0] in "PSN" or sign == "\N{MICRO SIGN}"
    assert not set(SIGNS) & set(WIDE_SIGNS)


@pytest.mark.parametrize(
    "char",
    [
        "\N{ZERO WIDTH SPACE}", "\u202e", "\u2028", "\xa0", "\x1b", "\U000e0041", "\ue000",
        "\u3164", "\u115f", "\u1160", "\uffa0", "\u2800", "\u034f", "\u17b4", "\u180b", "\u180f",
        "\ufe0f", "\U000e0100", "\U000e01ef", "\u2065", "\U0001d159", "\U00016fe4", "\U00013440",
        "\u05d0", "\u0661", "\u09ea", "\uff41", "\U0001d41a", "\u212a", "\ufb01", "\u0332",
        "\u0338", "\u20dd", "\u0360", "\ufffd", "\U0001f9ec", "\U0001faf8", "\t", "\n", "\r",
        "\x85", chr(0xD800),
    ],
    ids=lambda char: f"U+{ord(char):04X}",
)  # fmt: skip
def test_no_text_hides_turns_or_imitates_another(char: str) -> None:
    assert not is_visible(f"a{char}b")
    assert escape_hidden(f"a{char}b") == f"a\\u{{{ord(char):x}}}b"


@pytest.mark.parametrize(
    "text", [" ", "", "é", "e\u0301", "漢", "Ω", "ж", "データ", "데이터", "ε ≤ 3"]
)
def test_letters_and_signs_of_the_table_are_visible(text: str) -> None:
    assert is_visible(f"a{text}b")
    assert escape_hidden(f"a{text}b") == f"a{text}b"


@pytest.mark.parametrize("mark", ALL_MARKS, ids=lambda mark: f"U+{ord(mark):04X}")
def test_marks_stand_on_letters_that_take_them_and_do_not_pile_up(mark: str) -> None:
    for letter in "aZΩж":
        assert is_visible(letter + mark * MOST_MARKS)
        piled = letter + mark * 40
        shown = escape_hidden(piled)
        assert not is_visible(piled)
        assert is_visible(shown)
        assert shown.count(mark) == MOST_MARKS
    for other in ("", " ", "3", "-", "漢", "…", "가"):
        assert not is_visible(other + mark)


def test_lines_stay_lines_and_tabs_become_spaces() -> None:
    assert escape_hidden_lines("a\tb\n\u202ec\r") == "a       b\n\\u{202e}c\\u{d}"


def test_a_limit_bounds_what_is_shown() -> None:
    assert len(escape_hidden("\u202e" * 500, 200)) == 200


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("漢字", 4), ("e\u0301", 1), ("a漢e\u0301", 4), ("", 0)]
)
def test_a_width_is_counted_in_cells(text: str, width: int) -> None:
    assert cells(text) == width


@settings(deadline=None, max_examples=examples(50))
@given(
    st.text(st.sampled_from("ab  漢é\u0301\u202e\u2800-"), max_size=300),
    st.integers(min_value=2, max_value=40),
)
def test_folded_lines_fit_and_lose_nothing_but_spaces(text: str, width: int) -> None:
    lines = fold(text, width)
    assert lines
    assert all(cells(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == escape_hidden(text).replace(" ", "")
