"""Rows of activations and gradients as small whole numbers (spec/one-time-pads.md §3)."""

from __future__ import annotations

import torch

__all__ = ["rounded", "stochastically_rounded"]


def rounded(rows: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nearest whole numbers in [-largest, largest] and the scale of each row.

    Args:
        rows: float32, (t, n).
        largest: Of the numbers.

    Returns:
        int32 (t, n) and float32 (t, 1). A row with an infinity or NaN is zeros with scale NaN.
    """
    scaled, scale = _scaled(rows, largest)
    return torch.round(scaled).to(torch.int32), scale


def stochastically_rounded(
    rows: torch.Tensor, largest: int, generator: torch.Generator | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``rounded``, up or down by chance so that the mean is the value: no gradient is lost.

    Args:
        rows: float32, (t, n).
        largest: Of the numbers.
        generator: Of the chance; ``None`` for torch's own, whose state checkpoints keep.
    """
    scaled, scale = _scaled(rows, largest)
    chance = torch.rand(scaled.shape, generator=generator)
    # In float32 the largest entry may come out a little above its bound, and chance lifts it.
    return scaled.add_(chance).floor_().clamp_(-largest, largest).to(torch.int32), scale


def _scaled(rows: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    reach = rows.abs().amax(dim=1, keepdim=True)
    usable = torch.isfinite(reach)
    # A row of zeros, or so small that its scale would vanish, keeps scale 1 and becomes zeros.
    least = torch.finfo(torch.float32).tiny * largest
    scale = torch.where(usable & (reach >= least), reach / largest, torch.ones_like(reach))
    scaled = torch.where(usable & (reach >= least), rows, torch.zeros_like(rows)) / scale
    return scaled, torch.where(usable, scale, torch.full_like(scale, torch.nan))
