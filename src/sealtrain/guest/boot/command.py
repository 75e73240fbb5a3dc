"""The command of a deployment document, as a guest of our own starts it."""

from __future__ import annotations

from typing import Final

from sealtrain.recipe.document import frame_of
from sealtrain.recipe.errors import LockInvalid

_PROGRAM: Final = ("/usr/bin/python3.11", "-s", "/usr/local/bin/sealtrain")


def words_of(document: bytes) -> tuple[str, ...]:
    """Words of the command, the program first.

    Args:
        document: That was measured.

    Raises:
        LockInvalid: It is no deployment document, or names no image: its script is for an ordinary
            process of a simulator.
    """
    frame = frame_of(document)
    if frame.image is None:
        raise LockInvalid(
            "the document has a script and no image: this machine runs none",
            check="deployment document",
        )
    return (*_PROGRAM, *frame.words)
