"""Axolotl's configuration becomes a recipe; what has no counterpart is named, and never dropped."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from carrying import carries
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.recipe.axolotl import Imported, Wanted, import_axolotl
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe

pytestmark = pytest.mark.claim("C145")

LORA: dict[str, Any] = {
    "base_model": "./model",
    "model_type": "LlamaForCausalLM",
    "adapter": "lora",
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "lora_target_modules": ["q_proj", "v_proj"],
    "datasets": [{"path": "notes.jsonl", "type": "completion", "field": "note"}],
    "sequence_len": 256,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "num_epochs": 3,
    "learning_rate": 2e-4,
    "optimizer": "adamw_torch",
    "lr_scheduler": "cosine",
    "output_dir": "./out",
    "wandb_project": "mine",
    "flash_attention": True,
    "load_in_8bit": False,
    "val_set_size": 0,
    "bf16": None,
}


def imported(config: dict[str, Any] | None = None, **wanted: Any) -> Imported:
    given = {"name": "notes", "train": ("clinic-a.notes", "clinic-b.notes"), "records": 100}
    made = import_axolotl(LORA | (config or {}), Wanted(**(given | wanted)))
    parse_recipe(made.recipe)
    return made


def test_a_lora_becomes_the_recipe_that_says_the_same() -> None:
    recipe = parse_recipe(imported().recipe)
    assert recipe.phase == "sft"
    assert recipe.model.to_dict() | {"tokenizer": None} == {
        "path": "model", "tokenizer": None, "dtype": "float32",
    }  # fmt: skip
    assert recipe.columns.names == ("text",) or recipe.columns.to_dict() == {"text": "note"}
    trainer: Any = recipe.trainer
    assert (trainer.max_length, trainer.per_device_train_batch_size) == (256, 2)
    assert (trainer.gradient_accumulation_steps, trainer.learning_rate) == (4, 2e-4)
    assert trainer.max_steps == 38  # three epochs of a hundred records, eight a step
    assert trainer.warmup_steps == 1  # what Axolotl does when it is told nothing
    peft: Any = recipe.peft
    assert (peft.r, peft.lora_alpha, peft.lora_dropout) == (16, 32, 0.05)
    assert set(peft.target_modules) == {"q_proj", "v_proj"}
    assert recipe.release_policy.model.recipients == ("clinic-a", "clinic-b")


def test_epochs_stay_epochs_where_no_number_of_records_is_told() -> None:
    made = imported(records=None)
    trainer = parse_recipe(made.recipe).trainer
    assert (trainer.num_train_epochs, trainer.max_steps) == (3, 0)
    assert trainer.warmup_steps == 0.03
    assert made.translated["num_epochs"] == "trainer.num_train_epochs"


def test_a_template_that_the_file_spells_out_goes_under_the_model() -> None:
    spelt = {
        "datasets": [{"path": "x", "type": "chat_template"}],
        "chat_template": "jinja",
        "chat_template_jinja": "a\n{{ messages }}",
    }
    made = imported(spelt)
    assert made.recipe["model"]["chat_template"] == ["a", "{{ messages }}"]
    assert made.translated["chat_template_jinja"] == "model.chat_template"


def test_every_key_is_accounted_for() -> None:
    made = imported()
    said = {key for key, value in LORA.items() if value is not None}
    assert made.translated.keys() | made.left_out.keys() == said
    assert not made.translated.keys() & made.left_out.keys()
    assert {"output_dir", "wandb_project", "flash_attention"} <= made.left_out.keys()
    assert made.notes


@pytest.mark.parametrize(
    "changed",
    [
        {"val_set_size": 0.05},
        {"trust_remote_code": True},
        {"load_in_8bit": True},
        {"fp16": True},
        {"bf16": "sometimes"},
        {"deepspeed": "zero3.json"},
        {"group_by_length": True},
        {"unfrozen_parameters": ["lm_head"]},
        {"special_tokens": {"bos_token": "<s>"}},
        {"base_model": "org/model"},
        {"adapter": "prompt"},
        {"adapter": "qlora"},
        {"rl": "simpo"},
        {"chat_template": "chatml", "datasets": [{"path": "x", "type": "chat_template"}]},
        {"datasets": [{"path": "x", "type": "alpaca"}]},
        {"datasets": [{"path": "x", "type": "chat_template", "roles_to_train": ["user"]}]},
        {"datasets": [{"path": "x", "type": "completion", "weighted": 3}]},
        {"excess_length_strategy": "drop"},
        {"sample_packing": True},
        {"a_key_of_next_year": 1},
        {"s2_attention": True},
        {"model_type": "AutoModelForSequenceClassification"},
        {"tokenizer_use_fast": False},
        {"plugins": ["axolotl.integrations.liger.LigerPlugin", "mine.Plugin"]},
        {"attn_implementation": "org/kernel"},
    ],
)
def test_a_key_that_would_change_the_result_is_refused_by_name(changed: dict[str, Any]) -> None:
    with pytest.raises(RecipeInvalid, check=carries(check="axolotl")) as refused:
        imported(changed)
    names = {"fp16": "fp16", "sample_packing": "num_epochs", "adapter": ""}
    assert names.get(min(changed), min(changed)) in str(refused.value.got)


KEYS = [
    *LORA, "rl", "special_tokens", "warmup_ratio", "max_steps", "chat_template", "plugins",
    "load_in_4bit", "train_on_inputs", "tokenizer_config", "test_datasets", "sample_packing",
]  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=9), JUNK, max_size=4))
@settings(max_examples=examples(50), deadline=None)
def test_any_other_value_ends_in_a_recipe_or_in_a_refusal(changed: dict[str, Any]) -> None:
    with contextlib.suppress(RecipeInvalid):
        made = imported(changed)
        said = {key for key, value in (LORA | changed).items() if value is not None}
        assert made.translated.keys() | made.left_out.keys() == said


def test_all_refusals_come_at_once() -> None:
    with pytest.raises(RecipeInvalid) as refused:
        imported({"fp16": True, "val_set_size": 0.1, "deepspeed": "x.json"})
    assert all(key in str(refused.value.got) for key in ("fp16", "val_set_size", "deepspeed"))


def test_a_key_is_left_out_on_demand_and_still_named() -> None:
    made = imported({"val_set_size": 0.1}, without=["val_set_size"])
    assert "val_set_size" in made.left_out


def test_qlora_chats_and_preferences_are_translated() -> None:
    chat = {
        "adapter": "qlora", "load_in_4bit": True, "bf16": True, "lora_target_linear": True,
        "lora_target_modules": None, "warmup_ratio": 0.1,
        "datasets": [{"path": "x", "type": "chat_template", "field_messages": "turns"}],
    }  # fmt: skip
    recipe = imported(chat).recipe
    assert recipe["columns"] == {"messages": "turns"}
    assert recipe["trainer"]["assistant_only_loss"] is True
    assert recipe["trainer"]["warmup_steps"] == 0.1
    assert recipe["peft"]["target_modules"] == "all-linear"
    assert recipe["peft"]["quantization"]["bnb_4bit_compute_dtype"] == "bfloat16"
    columns = {"field_prompt": "question", "field_chosen": "good", "field_rejected": "bad"}
    dpo = {"rl": "dpo", "rl_beta": 0.2, "datasets": [{"path": "x", "type": columns}]}
    recipe = imported(dpo).recipe
    assert recipe["phase"] == "dpo"
    assert recipe["columns"] == {"prompt": "question", "chosen": "good", "rejected": "bad"}
    assert (recipe["trainer"]["beta"], recipe["trainer"]["loss_type"]) == (0.2, "sigmoid")


def test_alpaca_needs_records_that_hold_the_prompt() -> None:
    alpaca = {"datasets": [{"path": "x", "type": "alpaca"}], "train_on_inputs": False}
    made = imported(alpaca, prepared=True)
    assert made.recipe["columns"] == {"prompt": "prompt", "completion": "completion"}
    assert made.recipe["trainer"]["completion_only_loss"] is True
    assert any("alpaca" in note for note in made.notes)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"micro_batch_size": "two"}, "micro_batch_size:"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps:"),
        ({"num_epochs": 1e300}, "num_epochs:"),
        ({"lora_rr": 3}, "did you mean lora_r?"),
        ({"rl": "grpo"}, "phase rlhf"),
        ({"kd_trainer": True}, "kd_trainer: no recipe"),
        ({"optim_args": {"beta": 1}}, "adam_beta2"),
    ],
)
def test_what_is_wrong_is_named_with_the_word_to_write(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeInvalid, check=carries(check="axolotl")) as caught:
        imported(changed)
    assert told in str(caught.value.got)
