"""The promises of ``spec/claims.md``, by their numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from sealtrain.base.files import read_bounded
from sealtrain.base.shipped import find_shipped

_MAX_BYTES: Final = 1 << 20
_LINE: Final = re.compile(r"\| (?P<number>C[0-9]+) \| (?P<promise>[^|]+) \| (?P<tests>[^|]+) \|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One promise.

    Attributes:
        number: Such as ``C10``.
        promise: What it says.
        tests: Files below ``tests/`` that try to refute it.
    """

    number: str
    promise: str
    tests: tuple[str, ...]


@cache
def claims() -> Mapping[str, Promise]:
    """Every promise, by number.

    Raises:
        DataInvalid: The page is neither installed nor in a checkout.
    """
    page = read_bounded(find_shipped("spec/claims.md"), _MAX_BYTES).decode("utf-8")
    found = [_LINE.fullmatch(line.strip()) for line in page.splitlines()]
    return {
        line["number"]: Promise(
            number=line["number"],
            promise=line["promise"].replace("`", ""),
            tests=tuple(re.findall(r"`([^`]+)`", line["tests"])),
        )
        for line in found
        if line is not None
    }
