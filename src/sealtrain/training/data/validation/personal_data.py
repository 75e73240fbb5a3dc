"""Patterns of personal data, confirmed by their check digits or numbering plans.

Candidates are found by expression; ``python-stdnum`` confirms numbers with check digits,
``phonenumbers`` confirms telephone numbers. This finds what has a form. Names, addresses and
stories have none: no finding is no proof.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence

from sealtrain.base.extras import extra_missing

Finder = Callable[[str], Iterator[str]]
"""Kinds found in a text, each at most once."""

MAX_CHARACTERS = 1 << 20

_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}")
_DIGITS = re.compile(r"(?<![\w-])\d(?:[ -]?\d){8,18}(?![\w-])")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)")
_IP = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})"
)
_SSN = re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])")
_PHONE_HINT = re.compile(r"\+?\(?\d[\d\s().-]{5,}\d")


def finder(kinds: Sequence[str], regions: Sequence[str]) -> Finder:
    """A function that names the kinds of personal data in a text.

    Args:
        kinds: Of ``recipe.validation.PII_KINDS``.
        regions: Countries whose national telephone numbers count, as ``"US"``.

    Raises:
        ExtraMissing: The libraries are not installed.
    """
    try:
        checks = _checks(regions)
    except ImportError as error:
        raise extra_missing("looking for personal data", "validation", error) from None
    chosen = [(kind, checks[kind]) for kind in kinds]

    def find(text: str) -> Iterator[str]:
        text = text[:MAX_CHARACTERS]
        for kind, is_in in chosen:
            if is_in(text):
                yield kind

    return find


def _checks(regions: Sequence[str]) -> dict[str, Callable[[str], bool]]:
    import phonenumbers
    from stdnum import iban, luhn
    from stdnum.gb import nhs
    from stdnum.us import ssn

    def digits(text: str) -> Iterator[str]:
        return (re.sub(r"[ -]", "", found[0]) for found in _DIGITS.finditer(text))

    def card(text: str) -> bool:
        return any(
            13 <= len(number) <= 19 and number[0] in "23456" and luhn.is_valid(number)
            for number in digits(text)
        )

    def phone(text: str) -> bool:
        return _PHONE_HINT.search(text) is not None and any(
            phonenumbers.PhoneNumberMatcher(text, region).has_next() for region in regions
        )

    return {
        "credit-card": card,
        "email": lambda text: _EMAIL.search(text) is not None,
        "iban": lambda text: any(iban.is_valid(found[0]) for found in _IBAN.finditer(text)),
        "ip-address": lambda text: any(_address(found[0]) for found in _IP.finditer(text)),
        "nhs-number": lambda text: any(
            len(number) == 10 and nhs.is_valid(number) for number in digits(text)
        ),
        "phone": phone,
        "us-ssn": lambda text: any(ssn.is_valid(found[0]) for found in _SSN.finditer(text)),
    }


def _address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return len(text) > 3
