"""A file of weights that is made tensor by tensor has the bytes that safetensors gives it."""

from __future__ import annotations

from typing import Any

import pytest
from collecting import COLLECTING

from sealtrain.errors import UsageError
from sealtrain.training.tensor_types import TYPE_NAMES, WIDTHS

if not COLLECTING:
    import torch
    from safetensors.torch import save

    from sealtrain.training.tensor_types import dtype_name, torch_dtype
    from sealtrain.training.weight_file import HeldWeights, WeightFile


@pytest.mark.claim("C770")
def test_files_are_those_of_safetensors_for_all_types() -> None:
    assert set(TYPE_NAMES.values()) == set(WIDTHS)
    tensors = {
        f"{name}é\n": torch.arange(6).reshape(3, 2).to(torch_dtype(name))
        for name in reversed(WIDTHS)
    }
    for tensor in tensors.values():
        assert tensor.element_size() == WIDTHS[dtype_name(tensor.dtype)]
    turned = torch.randn(3, 4).T
    further = {"number": torch.tensor(3.0), "nothing": torch.zeros(0, 4), "turned": turned}
    made = WeightFile("model.safetensors", tensors | further).to_bytes(
        HeldWeights(tensors | further)
    )
    plain = tensors | further | {"turned": turned.contiguous()}
    assert made == save(plain, metadata={"format": "pt"})


@pytest.mark.claim("C770")
@pytest.mark.parametrize("wrong", ["shorter", "longer", "another type", "another shape"])
def test_a_tensor_that_was_not_laid_out_ends_the_file(wrong: str) -> None:
    outline = {"a": torch.zeros(4, 6), "b": torch.zeros(2)}
    given = {
        "shorter": torch.zeros(4, 5),
        "longer": torch.zeros(4, 7),
        "another type": torch.zeros(4, 6, dtype=torch.int32),
        "another shape": torch.zeros(6),
    }[wrong]

    def turn(tensors: dict[str, Any]) -> dict[str, Any]:
        return {name: each.T if each.dim() == 2 else each + 0 for name, each in tensors.items()}

    for convert in (None, turn):
        laid = WeightFile("model.safetensors", outline, convert=convert)
        with pytest.raises(UsageError) as caught:
            laid.to_bytes(HeldWeights({**outline, "a": given}))
        assert caught.value.check == "ranks"


def test_tensors_that_are_published_otherwise_are_converted_in_groups() -> None:
    """As experts are: one tensor of a layer in training, one for each of them in the file."""
    trained = {
        **{f"layers.{at}.experts": torch.randn(3, 4, 2) for at in range(2)},
        **{f"layers.{at}.norm": torch.randn(4) for at in range(2)},
        "head": torch.randn(2, 2, dtype=torch.bfloat16),
    }
    largest: list[int] = []

    def convert(tensors: dict[str, Any]) -> dict[str, Any]:
        if not next(iter(tensors.values())).is_meta:
            largest.append(len(tensors))
        found = {}
        for name, tensor in tensors.items():
            if name.endswith("experts"):
                found |= {f"{name}.{at}.w": part.T for at, part in enumerate(tensor.unbind())}
            else:
                found[f"model.{name}"] = tensor
        return found

    laid = WeightFile("model.safetensors", trained, convert=convert)
    published = {name: tensor.contiguous() for name, tensor in convert(trained).items()}
    largest.clear()
    made = laid.to_bytes(HeldWeights(trained))
    assert made == save(published, metadata={"format": "pt"})
    assert len(made) == laid.size
    assert max(largest) == 2  # a layer at a time
