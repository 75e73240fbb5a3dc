"""Exact products of secret rows with public matrices: inside the guest, or outside under pads.

Both give the same numbers. ``Inside`` is what everything in the guest costs, and what ``UnderPads``
is compared with.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Protocol

import torch

from sealtrain.errors import AcceleratorUnreachable, SealtrainError
from sealtrain_together.pads.accelerator import Accelerator, expect_elements
from sealtrain_together.pads.exact_products import ExactProduct, Float64
from sealtrain_together.pads.field import add_centred, subtract_centred
from sealtrain_together.pads.freivalds import CHECKS, Freivalds
from sealtrain_together.pads.masks import OnePlace, draw_secret
from sealtrain_together.pads.matrix import Direction, PublicMatrix
from sealtrain_together.pads.pads import InGuest, Pad, PadSupply, Supplier
from sealtrain_together.pads.prefetch import PREFETCH_BYTES
from sealtrain_together.pads.tensors import Later, row_parts

_PART_NUMBERS: Final = 1 << 18
"""Of one request or its answer, where rows are many: so few stay in a cache between steps."""
_AHEAD: Final = 2
"""Requests that are out: the accelerator multiplies one while the guest hides or opens another."""


class Engine(Protocol):
    """Multiplies."""

    def admit(self, matrix: PublicMatrix) -> None:
        """Get ready for a matrix."""
        ...

    def product(
        self, matrix: PublicMatrix, direction: Direction, entries: torch.Tensor
    ) -> torch.Tensor:
        """``entries`` times the matrix, exact.

        Args:
            matrix: Admitted before.
            direction: Which way.
            entries: int32 (t, n) in [-Q, Q].

        Returns:
            int32 (t, m).
        """
        ...


class Inside:
    """Multiplies in the guest. Nothing leaves it."""

    def __init__(self, exact: ExactProduct | None = None) -> None:
        self._exact = exact or Float64()

    def admit(self, matrix: PublicMatrix) -> None:
        """Nothing to do."""

    def product(
        self, matrix: PublicMatrix, direction: Direction, entries: torch.Tensor
    ) -> torch.Tensor:
        """As ``Engine.product``."""
        return self._exact.product(entries, matrix.factor(direction))


@dataclass(slots=True)
class PadTimes:
    """What products under pads took so far. Seconds by the clock.

    Attributes:
        products: How many.
        rows: Of all of them.
        bytes_out: To the accelerator.
        bytes_in: From it.
        pads: Making or fetching pads.
        masking: Adding them.
        waiting: For the accelerator, with both ways.
        opening: Taking them off.
        checking: By Freivalds.
    """

    products: int = 0
    rows: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    pads: float = 0.0
    masking: float = 0.0
    waiting: float = 0.0
    opening: float = 0.0
    checking: float = 0.0

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Count the time of a block to one of the parts."""
        begin = time.perf_counter()
        yield
        setattr(self, part, getattr(self, part) + time.perf_counter() - begin)


@dataclass(eq=False)
class _Work:
    """One product that goes out in several requests.

    Attributes:
        pad: Its pad.
        result: Is filled, part by part.
        asked: Requests without an answer so far, oldest first, and the rows of each.
    """

    pad: Pad
    result: torch.Tensor
    asked: deque[tuple[slice, Later]] = field(default_factory=deque)

    @cached_property
    def product(self) -> torch.Tensor:
        """U of the pad, which may be at work until then.

        Raises:
            ProductAltered: It is not made of elements.
        """
        return expect_elements(self.pad.product(), self.result, of="dealer")


class UnderPads(OnePlace):
    """Has an untrusted accelerator multiply, under pads, and checks it.

    After anything went wrong no product is made any more. There is no way to switch the check off.

    Args:
        accelerator: Sees uniform numbers and public matrices.
        supplier: Makes the pads' products; ``None`` for the guest itself.
        checks: Secret vectors of each matrix, 1 to 4: a wrong product passes with 2**(-31 n).
        prefetch: Bytes of pads that may be made ahead of their use, in a thread; 0 for none.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        *,
        supplier: Supplier | None = None,
        checks: int = CHECKS,
        prefetch: int = PREFETCH_BYTES,
    ) -> None:
        self._accelerator = accelerator
        # Both secrets are new and have no way in or out: a beginning cannot be repeated.
        self._pads = PadSupply(supplier or InGuest(Float64()), prefetch=prefetch)
        self._freivalds = Freivalds(draw_secret(), checks)
        self._failed: SealtrainError | None = None
        self._lock = threading.Lock()
        self.spent = PadTimes()

    @property
    def session(self) -> str:
        """Name of this beginning (``PadSupply.session``)."""
        return self._pads.session

    @property
    def failure(self) -> SealtrainError | None:
        """What went wrong: no product is made any more."""
        return self._failed

    def close(self) -> None:
        """Make no pads ahead any more. The connections are the caller's to close, after this."""
        self._pads.close()

    def admit(self, matrix: PublicMatrix) -> None:
        """Have the accelerator and the supplier know a matrix, and its check ready.

        Raises:
            AcceleratorUnreachable: One of them did not answer.
            ProductAltered: The accelerator took it for another matrix.
        """
        with self._end_on_failure():
            self._accelerator.admit(matrix)
            self._pads.admit(matrix)
            self._freivalds.prepare(matrix)

    def product(
        self, matrix: PublicMatrix, direction: Direction, entries: torch.Tensor
    ) -> torch.Tensor:
        """As ``Engine.product``.

        Raises:
            ProductAltered: What came back was wrong, or has not the form of an answer.
            PadsRefused: There is no pad left.
            AcceleratorUnreachable: No answer.
        """
        widths = matrix.widths(direction)
        if entries.shape[0] == 0:  # an expert that got no tokens
            return entries.new_zeros(0, widths[1])
        with self._end_on_failure():
            spent = self.spent
            with spent.on("pads"):
                pad = self._pads.take(matrix, direction, entries.shape[0])
            work = _Work(pad, entries.new_empty(entries.shape[0], widths[1]))
            for part in row_parts(entries.shape[0], widths, numbers=_PART_NUMBERS):
                with spent.on("masking"):
                    hidden = add_centred(entries[part], pad.mask[part])
                with spent.on("waiting"):
                    work.asked.append((part, self._accelerator.product(matrix, direction, hidden)))
                spent.bytes_out += 4 * hidden.numel()
                if len(work.asked) == _AHEAD:
                    self._open(work, matrix, direction, entries)
            while work.asked:
                self._open(work, matrix, direction, entries)
            spent.products += 1
            spent.rows += entries.shape[0]
            return work.result

    def _open(
        self, work: _Work, matrix: PublicMatrix, direction: Direction, entries: torch.Tensor
    ) -> None:
        """Take the answer to the first of the requests that are out, open it and check it."""
        part, asked = work.asked.popleft()
        spent = self.spent
        with spent.on("pads"):  # a dealer, or the guest itself, works beside the accelerator
            product = work.product[part]
        with spent.on("waiting"):
            answer = asked()
        with spent.on("opening"):
            answer = expect_elements(answer, work.result[part], of="accelerator")
            opened = subtract_centred(answer, product, out=work.result[part])
        with spent.on("checking"):
            self._freivalds.check(matrix, direction, entries[part], opened)
        spent.bytes_in += 4 * answer.numel()

    @contextmanager
    def _end_on_failure(self) -> Iterator[None]:
        with self._lock:
            if self._failed is not None:
                raise self._failed
            try:
                yield
            except BaseException as error:
                # Whatever interrupted it: the next answer may be the one to this request.
                self._failed = (
                    error
                    if isinstance(error, SealtrainError)
                    else AcceleratorUnreachable("a product under pads was interrupted")
                )
                self._pads.close()
                raise
