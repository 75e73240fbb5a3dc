"""Which extras and packages a recipe asks for."""

from __future__ import annotations

from typing import Any

import pytest

from sealtrain.recipe.installation import packages_of
from sealtrain.recipe.schema import parse_recipe

pytestmark = pytest.mark.claim("C124")

Document = dict[str, Any]
BASE = {"model": {"path": "base"}}
FOUR_BITS = {
    "method": "lora",
    "target_modules": ["q_proj"],
    "quantization": {
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "float32",
    },
}


@pytest.mark.parametrize(
    ("fields", "extras"),
    [
        ({}, ("train",)),
        (BASE | {"peft": FOUR_BITS}, ("train", "quantize")),
        ({"validation": {"min_records": 1}}, ("train",)),
        (
            {"validation": {"personal": {"columns": ["prompt"], "max_share": 0}}},
            ("train", "validation"),
        ),
        ({"backend": {"name": "deepspeed", "zero_stage": 1}}, ("train", "deepspeed")),
        ({"backend": {"name": "fsdp"}}, ("train",)),
    ],
)
def test_extras_follow_from_the_recipe(
    sft: Document, fields: Document, extras: tuple[str, ...]
) -> None:
    wanted = packages_of(parse_recipe(sft | fields))
    assert wanted.extras == extras
    assert (wanted.of_backend, wanted.of_scripts) == ((), ())


def test_a_tuner_and_scripts_bring_packages_of_their_own(sft: Document) -> None:
    tuner = parse_recipe(sft | BASE | {"backend": {"name": "unsloth"}})
    assert packages_of(tuner).of_backend == tuner.backend.packages
    scripted = parse_recipe(sft | {"scripts": ["a.py"], "packages": ["lightning==2.5.0"]})
    assert packages_of(scripted).of_scripts == ("lightning==2.5.0",)
