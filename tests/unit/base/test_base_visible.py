"""Text that a reader sees is the same text for every program, whatever Unicode it knows."""

from __future__ import annotations

import unicodedata

import pytest

from sealtrain.base.visible import is_visible

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"}


def test_what_unicode_14_hides_is_hidden() -> None:
    """Newer tables may hide more; what they newly assign stays as it was."""
    shown = [
        hex(code)
        for code in range(0x110000)
        if unicodedata.ucd_3_2_0.category(chr(code)) in HIDDEN
        and unicodedata.category(chr(code)) in HIDDEN
        and code != 0x20
        and is_visible(chr(code))
    ]
    assert shown == []


@pytest.mark.parametrize(
    "char",
    ["\N{ZERO WIDTH SPACE}", "\u202e", "\u2028", "\xa0", "\x1b", "\U000e0041", "\ue000", "\ud800"],
)
def test_no_text_hides_or_turns_another(char: str) -> None:
    assert not is_visible(f"a{char}b")


@pytest.mark.parametrize("char", [" ", "é", "e\u0301", "漢", "🧬", "\U0001faf8", "\U0001fadf"])
def test_letters_and_signs_of_any_age_are_visible(char: str) -> None:
    assert is_visible(f"a{char}b")
