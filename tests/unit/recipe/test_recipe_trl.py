"""Arguments of TRL's scripts become a recipe that says the same, or are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from carrying import carries

from sealtrain.recipe.axolotl import Imported, Wanted
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe
from sealtrain.recipe.trlarguments import TrlTrainer, import_trl, is_of_trl

pytestmark = pytest.mark.claim("C145")

SFT: dict[str, Any] = {
    "model_name_or_path": "./model", "dataset_name": "org/notes", "dataset_text_field": "note",
    "learning_rate": 2e-4, "num_train_epochs": 2, "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2, "max_length": 512, "packing": False, "use_peft": True,
    "lora_r": 8, "lora_target_modules": ["q_proj", "v_proj"], "output_dir": "out",
    "report_to": "none", "push_to_hub": False, "attn_implementation": "sdpa", "seed": 7,
    "trust_remote_code": False, "logging_steps": 1, "warmup_ratio": 0.1,
}  # fmt: skip


def imported(
    changed: dict[str, Any] | None = None, trainer: TrlTrainer = "sft", **wanted: Any
) -> Imported:
    given = {"name": "notes", "train": ("clinic-a.notes", "clinic-b.notes"), "records": 100}
    config = {key: value for key, value in (SFT | (changed or {})).items() if value is not None}
    made = import_trl(config, Wanted(**(given | wanted)), trainer)
    parse_recipe(made.recipe)
    said = made.translated.keys() | made.left_out.keys()
    assert said == config.keys()
    return made


def test_arguments_become_the_recipe_that_says_the_same() -> None:
    made = imported()
    recipe = made.recipe
    assert recipe["columns"] == {"text": "note"}
    trainer = recipe["trainer"]
    assert (trainer["learning_rate"], trainer["max_length"], trainer["seed"]) == (2e-4, 512, 7)
    assert trainer["max_steps"] == 26  # two epochs of thirteen steps, the last one short
    assert (trainer["bf16"], trainer["activation_checkpointing"]) == (True, True)  # TRL's own
    assert trainer["warmup_steps"] == 0.1
    assert recipe["peft"]["r"] == 8
    assert recipe["peft"]["lora_alpha"] == 32
    assert {"dataset_name", "output_dir", "report_to", "trust_remote_code"} <= made.left_out.keys()


def test_epochs_stay_epochs_where_no_number_of_records_is_told() -> None:
    made = imported(records=None)
    assert made.recipe["trainer"]["num_train_epochs"] == 2
    assert "max_steps" not in made.recipe["trainer"]
    assert made.translated["num_train_epochs"] == "trainer.num_train_epochs"
    assert imported().translated["num_train_epochs"] == "trainer.max_steps"
    nothing = imported({"num_train_epochs": None}, records=None)
    assert nothing.recipe["trainer"]["num_train_epochs"] == 3  # TRL's own


def test_what_trl_does_without_an_argument() -> None:
    made = imported({"learning_rate": None, "use_peft": None, "lora_r": None,
                     "lora_target_modules": None})  # fmt: skip
    assert made.recipe["trainer"]["learning_rate"] == 2e-5
    assert made.recipe["trainer"]["optim"] == "adamw_torch_fused"
    assert made.recipe["peft"] is None


@pytest.mark.parametrize(
    ("changed", "trainer", "columns"),
    [
        (
            {"dataset_text_field": None, "assistant_only_loss": True},
            "sft",
            {"messages": "messages"},
        ),
        (
            {"dataset_text_field": None, "completion_only_loss": True},
            "sft",
            {"prompt": "prompt", "completion": "completion"},
        ),
        (
            {"dataset_text_field": None, "packing": None, "max_length": None, "beta": 0.2},
            "dpo",
            {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
        ),
    ],
)
def test_columns_follow_from_what_is_learned(
    changed: dict[str, Any], trainer: TrlTrainer, columns: dict[str, str]
) -> None:
    assert imported(changed, trainer).recipe["columns"] == columns


def test_four_bits_and_every_linear_layer() -> None:
    made = imported({"load_in_4bit": True, "lora_target_modules": "all-linear",
                     "use_bnb_nested_quant": True, "dtype": "bfloat16"})  # fmt: skip
    assert made.recipe["peft"]["target_modules"] == "all-linear"
    assert made.recipe["peft"]["quantization"]["bnb_4bit_use_double_quant"] is True
    assert made.recipe["peft"]["quantization"]["bnb_4bit_compute_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"trust_remote_code": True}, {}),
        ({"chat_template_path": "org/model"}, {}),
        ({"load_in_8bit": True}, {}),
        ({"packing": True}, {}),
        ({"dataset_text_field": None}, {}),
        ({"lora_target_modules": None}, {}),
        ({"use_peft": None, "load_in_4bit": True}, {}),
        ({"model_name_or_path": "org/model"}, {}),
        ({"average_tokens_across_devices": False}, {}),
        ({"an_argument_of_next_year": False}, {}),
        ({"lora_target_parameters": ["experts"]}, {}),
    ],
)
def test_an_argument_that_would_change_the_result_is_refused(
    changed: dict[str, Any], wanted: dict[str, Any]
) -> None:
    with pytest.raises(RecipeInvalid, check=carries(check="trl")):
        imported(changed, **wanted)


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"trust_remote_code": True}, {"own_files": True}),
        ({"load_in_8bit": True}, {"whole_base": True}),
        ({"packing": True}, {"steps": 9}),
        ({"num_train_epochs": None, "max_steps": 9}, {"records": None}),
        ({"model_name_or_path": "org/model"}, {"base": "model"}),
        ({"an_argument_of_next_year": 1}, {"without": ("an_argument_of_next_year",)}),
    ],
)
def test_the_word_of_the_refusal_takes_it(changed: dict[str, Any], wanted: dict[str, Any]) -> None:
    imported(changed, **wanted)


def test_a_template_s_file_and_a_way_of_attention_go_under_the_model() -> None:
    spoken = {"dataset_text_field": None, "assistant_only_loss": True}
    made = imported(spoken | {"chat_template_path": "chat.jinja"}, template="a\n{{ messages }}")
    assert made.recipe["model"]["chat_template"] == ["a", "{{ messages }}"]
    assert made.recipe["model"]["attn_implementation"] == "sdpa"
    assert made.translated["chat_template_path"] == "model.chat_template"
    assert "attn_implementation" in imported({"attn_implementation": "flash_attention_2"}).left_out


def test_files_of_both_tools_are_told_apart() -> None:
    assert is_of_trl(SFT)
    assert not is_of_trl({"base_model": "./model", "model_name_or_path": "x"})
    assert not is_of_trl({})
