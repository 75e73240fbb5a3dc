"""Tensors as they travel: little-endian, row by row, in parts that fit one message."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import torch

from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain_together.channel.streams import Buffer

MAX_BYTES: Final = 1 << 28
"""Of one message, with what stands before its tensor."""
MAX_ROWS: Final = 1 << 20
EFFICIENT_ROWS: Final = 128
"""A matrix is read whole for each request: with fewer rows that costs more than the product."""
_BESIDE: Final = 64

Later = Callable[[], torch.Tensor]
"""Rows that another machine is at work on."""


def octets(values: torch.Tensor) -> memoryview:
    """Bytes of a tensor of integers as they travel: its own, where it lies in a row."""
    return memoryview(values.contiguous().numpy().reshape(-1).view("uint8").data)


def elements(body: Buffer, rows: int, columns: int, *, offset: int = 0) -> torch.Tensor:
    """int32 (rows, columns) from the bytes behind ``offset``.

    Raises:
        DataInvalid: They are of another length.
    """
    if len(body) - offset != 4 * rows * columns:
        raise DataInvalid(
            "a body has the wrong length",
            got=f"{len(body) - offset} bytes",
            expected=f"{4 * rows * columns} for {rows} rows of {columns}",
        )
    if rows * columns == 0:
        return torch.empty(rows, columns, dtype=torch.int32)
    return torch.frombuffer(body, dtype=torch.int32, offset=offset).view(rows, columns)


def row_parts(rows: int, widths: tuple[int, int], *, numbers: int | None = None) -> list[slice]:
    """Runs of rows whose request and answer fit a message each.

    Args:
        rows: All of them.
        widths: Columns of what goes in and of what comes out.
        numbers: At least so many in the larger of the two, and ``EFFICIENT_ROWS`` rows, where
            they fit; ``None`` for as many as fit.
    """
    count = -(-rows // min(MAX_ROWS, (MAX_BYTES - _BESIDE) // (4 * max(widths))))
    if numbers is not None:
        count = max(count, rows // max(EFFICIENT_ROWS, numbers // max(widths)))
    ends = [rows * part // count for part in range(count + 1)]
    return [slice(begin, end) for begin, end in pairwise(ends)]


def expect_rows(rows: int, columns: int) -> None:
    """See that an answer fits a message: a short request must not make for a long one.

    Args:
        rows: Asked for.
        columns: Of the widest tensor that it takes.

    Raises:
        DataInvalid: None, or more than one request may ask for.
        LimitExceeded: They fit no message.
    """
    if not 1 <= rows <= MAX_ROWS:
        raise DataInvalid("too many rows, or none", got=rows, expected=f"1 to {MAX_ROWS}")
    if 4 * columns * rows > MAX_BYTES:
        raise LimitExceeded(
            "the requested rows do not fit a message",
            got=f"{4 * columns * rows} bytes",
            expected=f"at most {MAX_BYTES}",
        )


def ask_in_parts(
    parts: list[slice], ask: Callable[[slice], None], read: Callable[[slice], torch.Tensor]
) -> Later:
    """Ask for rows, and have them later: meanwhile this side can do something else.

    The second request leaves only when the first is answered: two sides that both send, and read
    only afterwards, wait for each other.

    Args:
        parts: Rows of each request (``row_parts``).
        ask: Sends the request for some.
        read: Receives the answer to it.
    """
    ask(parts[0])

    def later() -> torch.Tensor:
        found = []
        for number, part in enumerate(parts):
            if number:
                ask(part)
            found.append(read(part))
        return found[0] if len(found) == 1 else torch.cat(found)

    return later
