"""Names of files that come from elsewhere: where such a file may lie, and what it may hold.

A *portable* name means the same file on every system: no other spelling of it, no way out of its
folder, nothing that a terminal obeys. A file that *may carry code* is one that common libraries
run, or let run, when they load it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

OWNER_NAME: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
"""Pattern of names of owners and consortia, which name files and folders too."""
MAX_NAME_CHARS: Final = 255
DATA_SUFFIXES: Final = (".safetensors", ".json", ".txt", ".model", ".tiktoken")
"""Ends of names that hold data: weights, settings, text, SentencePiece and BPE vocabularies."""
_PART: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9_-])?")
_DEVICE: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_PAPER: Final = re.compile(
    r"(README|LICEN[CS]E|NOTICE|USE_POLICY|COPYING)(\.(md|txt|rst|pdf))?", re.IGNORECASE
)
_EVENTS: Final = re.compile(r"events\.out\.tfevents\.[A-Za-z0-9._-]+")
_VOCABULARIES: Final = ("tokenizer.json", "vocab.json", "added_tokens.json")


def portable_name(name: str) -> str:
    """``name`` itself, if it is a relative path that means the same everywhere.

    Args:
        name: Parts of letters, digits, ``_``, ``.`` and ``-``, divided by ``/``; at most 255
            characters, 128 in a part.

    Raises:
        ValueError: It is another spelling, leaves its folder, or is a device of Windows.
    """
    parts = name.split("/")
    if len(name) > MAX_NAME_CHARS or not all(_PART.fullmatch(part) for part in parts):
        raise ValueError("is not a relative path of letters, digits, '_', '.' and '-'")
    if any(_DEVICE.fullmatch(part) for part in parts):
        raise ValueError("is the name of a device on Windows")
    return name


def clash(names: Iterable[str]) -> str | None:
    """Find a name that collides with another in one folder, ignoring case.

    Args:
        names: Portable names.

    Returns:
        One that another name equals or lies under; ``None`` where all can be written.
    """
    files: set[str] = set()
    folders: set[str] = set()
    for name in names:
        alike = name.lower()
        above = {str(folder) for folder in PurePosixPath(alike).parents}
        if alike in files or alike in folders or above & files:
            return name
        files.add(alike)
        folders |= above
    return None


def may_carry_code(name: str) -> bool:
    """Whether a file of this name can run code where a library loads it: any that is not known.

    Known are ``DATA_SUFFIXES``, the papers that go with a model, and TensorBoard's event files.
    """
    last = name.rsplit("/", 1)[-1]
    known = last.endswith(DATA_SUFFIXES) or _PAPER.fullmatch(last) or _EVENTS.fullmatch(last)
    return not known


def is_vocabulary(name: str) -> bool:
    """Whether a JSON file is a large table of words, whose keys are tokens and no settings."""
    return name.rsplit("/", 1)[-1] in _VOCABULARIES


def slug(stem: str, otherwise: str) -> str:
    """A name for a recipe, a dataset or a run from a text, which may hold nothing that fits."""
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:63] or otherwise
