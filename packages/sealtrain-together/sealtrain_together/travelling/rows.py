"""Training rows as words of the lent buffer, for the program ``trainer`` (spec/travelling.md §4).

A row has as many words as the recipe's longest, 32 bits each, little endian: the token, with the
highest bit where it is learned; what is left of the row has all bits set. So every row is equally
long, and a step is a fixed range of the buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sealtrain.errors import DataInvalid
from sealtrain.sealing.errors import RecordInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

IGNORED: Final = -100
"""Label of a token that is not learned."""
_LEARNED: Final = 1 << 31
_PADDING: Final = (1 << 32) - 1
MAX_TOKEN: Final = _LEARNED - 2


def write_row(row: Mapping[str, Any], view: memoryview) -> None:
    """Write a row.

    Args:
        row: ``input_ids``, and ``labels`` where not every token is learned.
        view: The words of one row.

    Raises:
        RecordInvalid: It is empty or too long, or a token does not fit.
    """
    import numpy as np

    words = np.frombuffer(view, dtype="<u4")
    ids = np.asarray(row["input_ids"], dtype=np.int64)
    if not 0 < len(ids) <= len(words):
        raise RecordInvalid(
            "a row does not fit", got=f"{len(ids)} tokens", expected=f"1 to {len(words)}"
        )
    if not 0 <= int(ids.min()) <= int(ids.max()) <= MAX_TOKEN:
        raise RecordInvalid("a token does not fit into 31 bits", check="tokens")
    learned = np.asarray(row["labels"]) != IGNORED if "labels" in row else np.True_
    words[:] = _PADDING
    words[: len(ids)] = ids | np.where(learned, _LEARNED, 0)


def read_rows(
    chunk: memoryview, words_a_row: int, vocabulary: int, *, rows_a_step: int, whole: bool
) -> list[dict[str, Any]]:
    """The rows of a chunk, lists of numbers: ``input_ids`` and ``labels``.

    Args:
        chunk: Whole steps, of a holder that may have written anything.
        words_a_row: Of each row.
        vocabulary: Tokens lie below.
        rows_a_step: Of each step.
        whole: Every token of every row is there and learned.

    Raises:
        DataInvalid: A row that the trainer would drop or cannot read, or a step without a loss.
    """
    import numpy as np

    table = np.frombuffer(chunk, dtype="<u4").reshape(-1, words_a_row)
    there = table != _PADDING
    lengths = there.sum(axis=1)
    ids = (table & np.uint32(_LEARNED - 1)).astype(np.int64)
    learned = there & (table >= _LEARNED)
    if (there != (np.arange(words_a_row) < lengths[:, None])).any() or (lengths == 0).any():
        raise DataInvalid("a chunk holds a row with a gap, or none", check="rows")
    if int(ids[there].max()) >= vocabulary:
        raise DataInvalid(
            "a chunk holds a token beyond the vocabulary", expected=f"below {vocabulary}"
        )
    if whole and not learned.all():
        raise DataInvalid("a chunk holds a row that is not whole", check="rows")
    # No token is predicted from none, and the mean over no token is no number.
    predicted = learned[:, 1:].reshape(-1, rows_a_step * (words_a_row - 1))
    if not learned.any(axis=1).all() or not predicted.any(axis=1).all():
        raise DataInvalid("a chunk holds a row or a step with nothing to learn", check="rows")
    labels = np.where(learned, ids, IGNORED)
    return [
        {"input_ids": ids[row, :length].tolist(), "labels": labels[row, :length].tolist()}
        for row, length in enumerate(lengths.tolist())
    ]
