"""Suggest the known name nearest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def nearest(name: str, names: Collection[str]) -> str | None:
    """The one of some names that was probably meant; ``None`` where none is like it."""
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.6)), None)
