"""A frozen linear layer as a public matrix of int8 (spec/one-time-pads.md §2)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import torch

from sealtrain.errors import UsageError
from sealtrain.recipe.errors import ModelInvalid
from sealtrain_together.pads.field import HALF, RUN

Direction = Literal["forward", "backward"]
DIRECTIONS: Final[tuple[Direction, Direction]] = ("forward", "backward")
BITS: Final = 12
"""Of activations and gradients, with their sign."""
MAX_SIDE: Final = 1 << 16
MAX_ENTRIES: Final = (1 << 28) - 64
_WEIGHT_MAX: Final = 127


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of weights as int8 and the scale of each: weight = scale * int8, to half a scale.

    Args:
        weight: (outputs, inputs), any floating type.

    Raises:
        ModelInvalid: A weight is infinite or NaN.
    """
    weight = weight.detach().to(torch.float32)
    if not bool(torch.isfinite(weight).all()):
        raise ModelInvalid("a frozen layer has weights that are not finite", check="weights")
    largest = weight.abs().amax(dim=1)
    scale = torch.where(largest > 0, largest / _WEIGHT_MAX, torch.ones_like(largest))
    return torch.round(weight / scale[:, None]).clamp_(-127, 127).to(torch.int8), scale


@dataclass(frozen=True, eq=False)
class PublicMatrix:
    """int8 weights of one layer, or of several stacked that share their input.

    Attributes:
        values: int8, (outputs, inputs), on the CPU. They are public.
        bits: Of what is multiplied with them.
    """

    values: torch.Tensor
    bits: int = BITS

    def __post_init__(self) -> None:
        if self.values.dtype != torch.int8 or self.values.dim() != 2:
            raise UsageError("a public matrix is int8 and has two sides")
        if (
            not 1 <= min(self.values.shape) <= max(self.values.shape) <= MAX_SIDE
            or self.values.numel() > MAX_ENTRIES
        ):
            raise ModelInvalid(
                "a layer is too large for one product",
                got=tuple(self.values.shape),
                expected=f"1 to {MAX_SIDE} a side, {MAX_ENTRIES} in all",
            )
        if not 8 <= self.bits <= BITS:
            raise UsageError("rows have 8 to 12 bits", got=self.bits, expected="8 to 12")

    @classmethod
    def stack(
        cls, weights: Sequence[torch.Tensor], *, bits: int = BITS
    ) -> tuple[PublicMatrix, torch.Tensor]:
        """The matrix of some layers' weights and the scales of all outputs.

        Raises:
            ModelInvalid: As ``quantise``, or too large.
        """
        parts = [quantise(weight) for weight in weights]
        matrix = cls(torch.cat([values for values, _ in parts]).contiguous().cpu(), bits)
        return matrix, torch.cat([scale for _, scale in parts]).cpu()

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name the matrix."""
        outputs, inputs = self.values.shape
        digest = hashlib.sha256(b"sealtrain/otp-matrix/v1")
        digest.update(outputs.to_bytes(4, "big") + inputs.to_bytes(4, "big"))
        digest.update(self.values.contiguous().numpy().data)
        return digest.digest()

    @cached_property
    def _largest(self) -> dict[Direction, int]:
        sizes = self.values.abs()  # as int8: wider copies of large matrices would not fit
        norms = {
            "forward": sizes.sum(dim=1, dtype=torch.int64),
            "backward": sizes.sum(dim=0, dtype=torch.int64),
        }
        cap = (1 << (self.bits - 1)) - 1
        return {
            direction: min(cap, HALF // max(1, int(norms[direction].max())))
            for direction in DIRECTIONS
        }

    def largest(self, direction: Direction) -> int:
        """Q: true products of entries in [-Q, Q] stay in [-H, H]. At least 127 at any size."""
        return self._largest[direction]

    def widths(self, direction: Direction) -> tuple[int, int]:
        """Columns of what goes in and of what comes out."""
        outputs, inputs = self.values.shape
        return (inputs, outputs) if direction == "forward" else (outputs, inputs)

    def factor(self, direction: Direction) -> torch.Tensor:
        """M: what stands on the right of a product, int8."""
        return self.values.T if direction == "forward" else self.values


def round_rows(rows: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nearest whole numbers in [-largest, largest] and the scale of each row.

    Args:
        rows: float32, (t, n).
        largest: Of the numbers.

    Returns:
        int32 (t, n) and float32 (t, 1). A row with an infinity or NaN is zeros with scale NaN.
    """
    return _in_runs(rows, lambda run, _: run.round_(), largest)


def stochastically_rounded(
    rows: torch.Tensor, largest: int, generator: torch.Generator | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``round_rows``, up or down by chance so that the mean is the value: no gradient is lost.

    Args:
        rows: float32, (t, n).
        largest: Of the numbers.
        generator: Of the chance; ``None`` for torch's own, whose state checkpoints keep.
    """
    chance = torch.rand(rows.shape, generator=generator)
    # In float32 the largest entry may come out a little above its bound, and chance lifts it.
    return _in_runs(
        rows,
        lambda run, part: run.add_(chance[part]).floor_().clamp_(-largest, largest),
        largest,
    )


def _in_runs(
    rows: torch.Tensor, whole: Callable[[torch.Tensor, slice], torch.Tensor], largest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers of scaled rows, some rows at a time: they stay in the cache of a core."""
    entries = torch.empty(rows.shape, dtype=torch.int32)
    scales = torch.empty(len(rows), 1)
    step = max(1, RUN // max(1, rows.shape[1]))
    for begin in range(0, len(rows), step):
        part = slice(begin, begin + step)
        scaled, scales[part] = _scale(rows[part], largest)
        entries[part] = whole(scaled, part)
    return entries, scales


def _scale(rows: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    reach = rows.abs().amax(dim=1, keepdim=True)
    usable = torch.isfinite(reach)
    # A row of zeros, or so small that its scale would vanish, keeps scale 1 and becomes zeros.
    least = torch.finfo(torch.float32).tiny * largest
    kept = usable & (reach >= least)
    scale = torch.where(kept, reach / largest, torch.ones_like(reach))
    scaled = rows / scale
    if not bool(kept.all()):
        scaled = torch.where(kept, scaled, torch.zeros_like(scaled))
    return scaled, torch.where(usable, scale, torch.full_like(scale, torch.nan))
