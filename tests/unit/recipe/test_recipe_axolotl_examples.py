"""Axolotl's own examples, as facts: the keys and values of sixty files, in files of our own.

``axolotl_keys.json`` has one row for each of sixty of Axolotl's 141 examples that tune a language
model on text or preferences (every 141/60th by name, July 2026), with names of our own for models,
data and tokens. No text of theirs is here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.foreignyaml import parse_foreign_yaml
from sealtrain.base.yamltext import yaml_text
from sealtrain.recipe.axolotl import Imported, Wanted, import_axolotl
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe

pytestmark = pytest.mark.claim("C636")

ROWS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("axolotl_keys.json").read_text("utf-8")
)
LEAST = 45


def imported(row: dict[str, Any], **changed: Any) -> Imported:
    config: Any = parse_foreign_yaml(
        yaml_text(row).encode(), error=RecipeInvalid, what="Axolotl file"
    )
    named = tuple(f"clinic-{number}.notes" for number in range(len(row.get("datasets", [])) or 1))
    given: dict[str, Any] = {
        "name": "notes", "train": named, "test": ("clinic-0.held",), "steps": 100, "base": "model",
        "prepared": True, "own_files": True, "whole_base": True,
    }  # fmt: skip
    made = import_axolotl(config, Wanted(**(given | changed)))
    parse_recipe(made.recipe)
    return made


def test_three_of_four_examples_become_a_recipe_and_the_others_say_which_key() -> None:
    refusals = []
    for row in ROWS:
        try:
            made = imported(row)
        except RecipeInvalid as error:
            refusals.append(error.check)
        else:
            said = {key for key, value in row.items() if value is not None}
            assert made.translated.keys() | made.left_out.keys() == said
    assert len(ROWS) == 60
    assert set(refusals) == {"axolotl"}
    assert len(ROWS) - len(refusals) >= LEAST


@pytest.mark.parametrize("missing", ["steps", "test", "prepared", "own_files", "whole_base"])
def test_what_an_option_answers_for_is_refused_without_it(missing: str) -> None:
    """Each option takes a decision that the file leaves open; none of them is taken silently."""
    without: dict[str, Any] = {"steps": None, "test": ()}
    refused = 0
    for row in ROWS:
        try:
            imported(row)
        except RecipeInvalid:
            continue
        try:
            imported(row, **{missing: without.get(missing, False)})
        except RecipeInvalid:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize(
    ("config", "path", "value"),
    [
        ({"bf16": "auto"}, ("trainer", "bf16"), True),
        ({"bf16": "auto"}, ("model", "dtype"), "bfloat16"),
        ({"bfloat16": True, "bf16": True}, ("model", "dtype"), "bfloat16"),
        ({"bf16": "True"}, ("model", "dtype"), "bfloat16"),
        ({"optimizer": "adamw_bnb_8bit"}, ("trainer", "optim"), "adamw_bnb_8bit"),
        ({"optimizer": "adamw_8bit"}, ("trainer", "optim"), "adamw_bnb_8bit"),
        ({"optimizer": "paged_adamw"}, ("trainer", "optim"), "paged_adamw_32bit"),
        ({"optimizer": "adamw_torch_4bit"}, ("trainer", "optim"), "adamw_torch_4bit"),
        ({"torch_compile": "auto"}, ("trainer", "torch_compile"), True),
        ({"attn_implementation": "sdpa"}, ("model", "attn_implementation"), "sdpa"),
        ({"eager_attention": True}, ("model", "attn_implementation"), "eager"),
        ({"gradient_checkpointing": "offload"}, ("trainer", "activation_checkpointing"), True),
        ({"num_epochs": 4, "sample_packing": True}, ("trainer", "max_steps"), 100),
        (
            {"early_stopping_patience": 3, "eval_steps": 10},
            ("trainer", "metric_for_best_model"),
            "eval_loss",
        ),
        (
            {"adapter": "lora", "lora_target_linear": True, "lora_target_modules": ["q_proj"]},
            ("peft", "target_modules"),
            "all-linear",
        ),
    ],
)
def test_a_value_of_the_examples_becomes(
    config: dict[str, Any], path: tuple[str, str], value: Any
) -> None:
    row = {"base_model": "./model", "datasets": [{"path": "records", "type": "completion"}]}
    made = imported(row | config)
    assert made.recipe[path[0]][path[1]] == value


@pytest.mark.parametrize(
    "config",
    [
        {"adapter": "lora", "lora_target_modules": "model.layers.[0-9]+.q_proj"},
        {"adapter": "lora", "lora_target_linear": True, "lora_target_modules": ["lm_head"]},
        {"deepspeed": "mine.json"},
        {"deepspeed": "../deepspeed_configs/zero3.json"},
        {"plugins": ["axolotl.integrations.liger.LigerPlugin", "mine.Plugin"]},
        {"optimizer": "muon"},
        {"bf16": "full"},
        {"qat": {"weight_dtype": "int4"}},
        {"unfrozen_parameters": ["lm_head"]},
        {"cosine_min_lr_ratio": 0.1},
        {"fp8": True},
        {"rl": "grpo"},
        {"load_in_8bit": "yes"},
    ],
)
def test_no_option_takes_another_training(config: dict[str, Any]) -> None:
    row = {"base_model": "./model", "datasets": [{"path": "records", "type": "completion"}]}
    with pytest.raises(RecipeInvalid):
        imported(row | config)
