"""Weights that are no numbers are refused before a recipe is locked."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.finite_weights import require_sound_weights
from sealtrain.recipe.schema import parse_recipe

pytestmark = pytest.mark.claim("C619")

MIB = 1 << 20
FORMS: dict[str, dict[str, str]] = {
    "F64": {"one": "3ff0000000000000", "nan": "7ff8000000000000", "infinity": "fff0000000000000"},
    "F32": {"one": "3f800000", "nan": "ffc00001", "infinity": "7f800000"},
    "F16": {"one": "3c00", "nan": "7e00", "infinity": "fc00"},
    "BF16": {"one": "3f80", "nan": "7fc0", "infinity": "ff80"},
    "F8_E5M2": {"one": "3c", "nan": "7d", "infinity": "7c"},
    "F8_E4M3": {"one": "38", "nan": "ff", "most": "7e"},
}
"""Bits of numbers, the highest byte first."""


def folder_of(folder: Path, dtype: str, name: str, *numbers: bytes, file: str = "model") -> Path:
    """A model whose second tensor holds these numbers, each in little-endian order."""
    data = b"".join(numbers)
    header = {
        "__metadata__": {"format": "pt"},
        "first.packed": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
        name: {"dtype": dtype, "shape": [len(numbers)], "data_offsets": [4, 4 + len(data)]},
    }
    head = json.dumps(header).encode()
    path = folder / "base" / f"{file}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"\xff" * 4 + data)
    return folder


def number(dtype: str, kind: str) -> bytes:
    return bytes.fromhex(FORMS[dtype][kind])[::-1]


def check(sft: dict[str, Any], folder: Path) -> None:
    recipe = parse_recipe(sft | {"model": {"path": "base"}, "peft": None})
    require_sound_weights(recipe, folder)


@pytest.mark.parametrize("dtype", FORMS)
def test_a_nan_is_refused_wherever_it_stands(
    sft: dict[str, Any], tmp_path: Path, dtype: str
) -> None:
    one, nan = number(dtype, "one"), number(dtype, "nan")
    check(sft, folder_of(tmp_path, dtype, "a.weight", one, one))
    for name in ("a.weight", "a.bias", "a.mask"):
        folder_of(tmp_path, dtype, name, one, nan)
        with pytest.raises(ModelInvalid, check=carries(check="weights")) as refused:
            check(sft, tmp_path)
        assert refused.value.got == f"model.safetensors: {name}"


@pytest.mark.parametrize("dtype", [dtype for dtype in FORMS if "infinity" in FORMS[dtype]])
def test_an_infinity_is_refused_in_a_parameter_and_not_in_a_mask(
    sft: dict[str, Any], tmp_path: Path, dtype: str
) -> None:
    one, infinity = number(dtype, "one"), number(dtype, "infinity")
    check(sft, folder_of(tmp_path, dtype, "a.mask", one, infinity))
    folder_of(tmp_path, dtype, "a.weight", one, infinity)
    with pytest.raises(ModelInvalid, check=carries(check="weights")):
        check(sft, tmp_path)


def test_the_largest_number_of_eight_bits_is_one(sft: dict[str, Any], tmp_path: Path) -> None:
    check(sft, folder_of(tmp_path, "F8_E4M3", "a.weight", number("F8_E4M3", "most")))


def test_the_last_number_of_a_large_tensor_in_a_second_file_is_read(
    sft: dict[str, Any], tmp_path: Path
) -> None:
    ones = number("BF16", "one") * MIB  # two blocks
    folder_of(tmp_path, "BF16", "a.weight", number("BF16", "one"))
    check(sft, folder_of(tmp_path, "BF16", "a.weight", ones, file="in/second"))
    folder_of(tmp_path, "BF16", "a.weight", ones + number("BF16", "nan"), file="in/second")
    with pytest.raises(ModelInvalid, check=carries(got="second.safetensors: a.weight")):
        check(sft, tmp_path)


@pytest.mark.parametrize("kept", [-1, 9, 0])
def test_a_file_that_is_cut_is_refused(sft: dict[str, Any], tmp_path: Path, kept: int) -> None:
    folder_of(tmp_path, "F32", "a.weight", number("F32", "one"))
    path = tmp_path / "base" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelInvalid):
        check(sft, tmp_path)
