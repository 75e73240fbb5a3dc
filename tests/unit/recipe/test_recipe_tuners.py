"""What Unsloth and Axolotl would change in a recipe is refused before it is locked."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.errors import ExtraMissing
from sealtrain.recipe.backends import Axolotl, Unsloth
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.installation import measure_installation
from sealtrain.recipe.schema import parse_recipe

BACKENDS = [Unsloth(name="unsloth"), Axolotl(name="axolotl")]
LORA = {"method": "lora", "target_modules": ["q_proj"]}
QLORA = LORA | {"quantization": {"bnb_4bit_use_double_quant": True}}
FROM_NOTHING = {
    "config": {"model_type": "llama"},
    "init_seed": 1,
    "tokenizer": {"path": "../models/base"},
}
PRIVATE = {
    "dp": "sgd",
    "target_epsilon": 8.0,
    "delta": 1e-5,
    "budgets": {"hospital-a": 24.0, "hospital-b": 24.0},
}
BASE = {"path": "../models/base"}


def changed(
    sft: dict[str, Any], backend: str, *, trainer: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A recipe the backend takes, with changes."""
    return {
        **sft,
        "backend": {"name": backend},
        "model": BASE,
        "peft": LORA,
        "trainer": {"max_steps": 4, "max_length": 64} | (trainer or {}),
        **fields,
    }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"peft": None},
        {"peft": LORA | {"target_modules": "all-linear", "use_rslora": True, "merge": True}},
        {"peft": LORA | {"modules_to_save": ["lm_head"], "layers_to_transform": [0]}},
        {"peft": QLORA, "model": BASE | {"dtype": "bfloat16"}},
        {"trainer": {"max_length": None, "neftune_noise_alpha": 5.0, "bf16": True}},
    ],
)
def test_unsloth_takes(sft: dict[str, Any], fields: dict[str, Any]) -> None:
    recipe = parse_recipe(changed(sft, "unsloth", **fields))
    assert recipe.backend == Unsloth(name="unsloth")
    assert recipe.to_dict()["backend"] == {"name": "unsloth", "ranks": 1}


SHARED: list[tuple[dict[str, Any], str]] = [
    ({"model": FROM_NOTHING}, "model.path"),
    ({"model": BASE | {"tokenizer": {"kind": "bytes"}}}, "model.path"),
    ({"trainer": {"packing": True}}, "padding_free"),
    ({"trainer": {"padding_free": True, "max_length": None}}, "padding_free"),
    ({"trainer": {"loss_type": "dft"}}, "loss_type"),
    ({"scripts": ["train.py"]}, "script"),
    ({"peft": LORA | {"use_dora": True}}, "use_dora"),
    ({"peft": {"method": "ia3", "target_modules": ["k_proj"]}}, "method lora"),
    ({"peft": {"method": "prompt_tuning", "num_virtual_tokens": 4}}, "method lora"),
    ({"peft": LORA | {"init_lora_weights": "pissa"}}, "init_lora_weights"),
    ({"peft": LORA | {"target_modules": ["q_proj", "lm_head"]}}, "modules_to_save"),
    ({"privacy": PRIVATE}, "backend trl"),
]


@pytest.mark.parametrize("backend", ["unsloth", "axolotl"])
@pytest.mark.parametrize(("fields", "why"), SHARED)
def test_both_refuse(sft: dict[str, Any], backend: str, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeInvalid, match=f"backend {backend}: .*{why}"):
        parse_recipe(changed(sft, backend, **fields))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"audit": {"canaries": 4}}, "audit"),
        ({"peft": QLORA, "model": BASE | {"dtype": "bfloat16"}}, "quantization"),
        ({"peft": LORA | {"bias": "all"}}, "bias"),
        ({"peft": LORA | {"init_lora_weights": "gaussian"}}, "init_lora_weights"),
        ({"trainer": {"bf16": True}}, "bf16"),
        ({"model": BASE | {"dtype": "bfloat16"}}, "bf16"),
        ({"trainer": {"max_length": None}}, "max_length"),
        ({"trainer": {"truncation_mode": "keep_end"}}, "truncation_mode"),
        ({"trainer": {"warmup_steps": 1}}, "warmup_steps"),
        ({"trainer": {"label_smoothing_factor": 0.1}}, "label_smoothing_factor"),
        ({"trainer": {"eos_token": "</s>"}}, "eos_token"),
        ({"trainer": {"pad_token": "</s>"}}, "pad_token"),
    ],
)
def test_axolotl_refuses(sft: dict[str, Any], fields: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeInvalid, match=f"backend axolotl: .*{why}"):
        parse_recipe(changed(sft, "axolotl", **fields))


def test_axolotl_takes(sft: dict[str, Any]) -> None:
    assert parse_recipe(changed(sft, "axolotl")).backend == Axolotl(name="axolotl")
    half = {"model": BASE | {"dtype": "bfloat16"}, "trainer": {"bf16": True, "warmup_steps": 0.1}}
    assert parse_recipe(changed(sft, "axolotl", **half)).trainer.bf16


@pytest.mark.parametrize(
    ("peft", "why"),
    [
        (LORA | {"quantization": {}}, "double_quant"),
        (
            LORA
            | {"quantization": {"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True}},
            "nf4",
        ),
        (QLORA, "compute_dtype"),
    ],
)
def test_unsloth_holds_four_bits_in_one_way(
    sft: dict[str, Any], peft: dict[str, Any], why: str
) -> None:
    with pytest.raises(RecipeInvalid, match=why):
        parse_recipe(changed(sft, "unsloth", peft=peft))


@pytest.mark.parametrize("backend", ["unsloth", "axolotl"])
def test_it_is_one_process(sft: dict[str, Any], backend: str) -> None:
    recipe = changed(sft, backend) | {"backend": {"name": backend, "ranks": 2}}
    with pytest.raises(RecipeInvalid, check=carries(field=f"backend.{backend}.ranks")):
        parse_recipe(recipe)


def test_other_phases_are_not_for_it(sft: dict[str, Any]) -> None:
    dpo = changed(sft, "unsloth", phase="dpo", columns={"chosen": "a", "rejected": "b"})
    with pytest.raises(RecipeInvalid, match=r"unsloth.*sft"):
        parse_recipe(dpo)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda one: one.name)
def test_what_it_brings_is_pinned_or_missing(sft: dict[str, Any], backend: Any) -> None:
    recipe = parse_recipe(changed(sft, backend.name))
    if importlib.util.find_spec(backend.name) is None:
        with pytest.raises(ExtraMissing) as refusal:
            measure_installation(recipe)
        assert refusal.value.got == "absent"
        assert refusal.value.expected == f"=={backend.packages[0].partition('==')[2]}"
        return
    pinned = measure_installation(recipe).environment.packages
    assert {name.partition("==")[0] for name in backend.packages} <= pinned.keys()
    assert set(pinned) > set(measure_installation(parse_recipe(sft)).environment.packages)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda one: one.name)
def test_the_version_it_installs_is_the_one_that_locks(backend: Any) -> None:
    tools = Path(__file__).resolve().parents[3] / "tools" / "backends" / f"{backend.name}.txt"
    lines = {line.replace("_", "-") for line in tools.read_text().splitlines()}
    assert set(backend.packages) <= lines
