"""Types of tensors by the names that safetensors gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

TYPE_NAMES: Final[Mapping[str, str]] = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""PyTorch's name → that of safetensors, in the order in which its files have tensors of each."""
WIDTHS: Final[Mapping[str, int]] = {
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
    "F32": 4,
    "U32": 4,
    "I32": 4,
    "BF16": 2,
    "F16": 2,
    "U16": 2,
    "I16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
"""Bytes of an element, by safetensors' name of its type."""


def dtype_name(dtype: torch.dtype) -> str:
    """Safetensors' name of a type."""
    return TYPE_NAMES[str(dtype).removeprefix("torch.")]


def torch_dtype(name: str) -> torch.dtype:
    """The type that safetensors names so."""
    import torch

    (found,) = (torch_name for torch_name, short in TYPE_NAMES.items() if short == name)
    dtype: torch.dtype = getattr(torch, found)
    return dtype
