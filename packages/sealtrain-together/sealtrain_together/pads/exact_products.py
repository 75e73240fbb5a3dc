"""Exact products of centred elements with int8 matrices: two ways, the same bytes (spec §1).

``Float64`` works everywhere. ``Int8Limb`` is the fast one where int8 products are hardware
(VNNI, AMX, CUDA), and is used only where extreme values came out right: some processors' int8
instructions saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import torch

from sealtrain.errors import UsageError
from sealtrain_together.pads.field import centre_float64, combine

_DIGIT_OFFSET: Final = 0x808080
_CUDA_LEAST_ROWS: Final = 17
_CUDA_MULTIPLE: Final = 8

Int8Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class ExactProduct(Protocol):
    """A way to multiply."""

    name: str

    def product(self, elements: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """``elements @ matrix`` modulo p.

        Args:
            elements: Centred int32, (t, n), n at most 2**16.
            matrix: int8 in [-127, 127], (n, m), on the same device.

        Returns:
            Centred int32, (t, m).
        """
        ...


class Float64:
    """One product in float64: every sum stays below 2**53."""

    name = "float64"

    def product(self, elements: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """As ``ExactProduct.product``."""
        return centre_float64(elements.to(torch.float64) @ matrix.to(torch.float64))


class Int8Limb:
    """Four balanced digits to base 256 of each element, one int8 product of four times the rows."""

    name = "int8-limb"

    def __init__(self, multiply: Int8Product | None = None) -> None:
        self._multiply = multiply or int8_product

    def product(self, elements: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """As ``ExactProduct.product``."""
        rows, columns = elements.shape
        digits = ((elements + _DIGIT_OFFSET) ^ _DIGIT_OFFSET).contiguous().view(torch.int8)
        digits = digits.view(rows, columns, 4).permute(2, 0, 1).reshape(4 * rows, columns)
        return combine(self._multiply(digits, matrix).view(4, rows, -1))


def int8_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """int8 product with int32 sums. CUDA takes certain shapes only, so zeros fill up to them."""
    if left.device.type != "cuda":
        if right.shape[0] == 1:
            # A turned column has both strides 1, which this product takes for another matrix.
            right = right.clone(memory_format=torch.contiguous_format)
        return torch._int_mm(left, right)
    pad = torch.nn.functional.pad
    rows, columns = left.shape[0], right.shape[1]
    inner = -left.shape[1] % _CUDA_MULTIPLE
    left = pad(left, (0, inner, 0, max(0, _CUDA_LEAST_ROWS - rows)))
    right = pad(right, (0, -columns % _CUDA_MULTIPLE, 0, inner))
    return torch._int_mm(left, right)[:rows, :columns]


def backend(
    name: str,
    device: str,
    *,
    in_hardware: Callable[[str], bool] | None = None,
    multiply: Int8Product | None = None,
) -> ExactProduct:
    """The back-end of that name.

    Args:
        name: ``float64``, ``int8-limb``, or ``fastest``: int8 where it is hardware and right.
        device: Where it will multiply: ``cpu``, ``cuda``, ``cuda:1``.
        in_hardware: Whether int8 products are hardware on a device; asked of PyTorch where
            ``None``.
        multiply: int8 product with int32 sums; ``int8_product`` where ``None``.

    Raises:
        UsageError: No back-end has that name, or the device is missing or multiplies int8 wrongly.
    """
    _require_device(device)
    in_hardware, multiply = in_hardware or _int8_in_hardware, multiply or int8_product
    if name == "float64" or (name == "fastest" and not in_hardware(device)):
        return Float64()
    if name not in ("int8-limb", "fastest"):
        raise UsageError(
            "no such back-end", got=name[:40], expected="float64, int8-limb or fastest"
        )
    if _int8_is_right(device, multiply):
        return Int8Limb(multiply)
    if name == "fastest":
        return Float64()
    raise UsageError("int8 products are not exact on this device", got=device, hint="use float64")


def _require_device(name: str) -> None:
    try:
        there = {"cpu": True, "cuda": torch.cuda.is_available()}.get(torch.device(name).type, False)
    except RuntimeError:  # no name of a device
        there = False
    if not there:
        raise UsageError(
            "no such device",
            check="--device",
            got=name[:40],
            expected="cpu, or cuda on a machine that has one",
        )


def _int8_in_hardware(device: str) -> bool:
    if torch.device(device).type == "cuda":
        return True
    return bool(torch.cpu._is_vnni_supported())


def _int8_is_right(device: str, multiply: Int8Product) -> bool:
    """Saturating instructions show where neighbouring products are large and of one sign."""
    left = torch.full((20, 64), -128, dtype=torch.int8, device=device)
    right = torch.full((64, 8), 127, dtype=torch.int8, device=device)
    right[:, ::2] = -127
    expected = left.double() @ right.double()
    return bool((multiply(left, right).double() == expected).all())
