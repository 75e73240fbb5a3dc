"""A recipe as Axolotl's configuration: every setting in its place, and nothing on by itself."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest
from training_world import sft

from sealtrain.recipe.adapters import Lora
from sealtrain.recipe.phases.sft import SftArguments
from sealtrain.training.backends.axolotl_config import axolotl_config

LORA = {"method": "lora", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
PLACES = {"model": "base", "tokenizer": "words", "output": "scratch"}
PAIRS: dict[str, Any] = {}
TEXT = {"columns": {"text": "note"}}
TALKS = {"columns": {"messages": "turns"}}
# What a recipe says elsewhere, or what our checkpoints, evaluation and streams do themselves.
OURS = {
    "data_seed",
    "early_stopping_patience",
    "early_stopping_threshold",
    "eval_steps",
    "greater_is_better",
    "load_best_model_at_end",
    "metric_for_best_model",
    "save_steps",
    "save_total_limit",
    "num_train_epochs",  # recipe.epochs.with_steps put steps in its place
}
# recipe.backends takes only one value of these.
FIXED = {
    "fp16",
    "eos_token",
    "label_smoothing_factor",
    "loss_type",
    "packing",
    "packing_strategy",
    "pad_token",
    "padding_free",
    "torch_compile",
    "torch_compile_backend",
    "truncation_mode",
    "use_liger_kernel",
}
CHANGED: dict[str, Any] = {
    "max_steps": 9,
    "per_device_train_batch_size": 3,
    "per_device_eval_batch_size": 5,
    "gradient_accumulation_steps": 7,
    "learning_rate": 0.0123,
    "lr_scheduler_type": "polynomial",
    "lr_scheduler_kwargs": {"power": 2.0},
    "warmup_steps": 4,
    "optim": "sgd",
    "weight_decay": 0.07,
    "adam_beta1": 0.8,
    "adam_beta2": 0.95,
    "adam_epsilon": 1e-6,
    "max_grad_norm": 0.3,
    "neftune_noise_alpha": 4.0,
    "activation_checkpointing": True,
    "seed": 11,
    "logging_steps": 6,
    "max_length": 77,
    "pad_to_multiple_of": 16,
    "completion_only_loss": False,
}


def translated(*, trainer: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    fields = {"backend": {"name": "axolotl"}, "model": {"path": "base"}, **changed}
    return axolotl_config(sft(trainer=trainer, **fields), **PLACES)


@pytest.mark.parametrize("name", CHANGED)
def test_every_trainer_setting_is_carried_over(name: str) -> None:
    before, after = translated(), translated(trainer={name: CHANGED[name]})
    assert before != after


def test_no_trainer_setting_is_forgotten() -> None:
    alone = {"bf16", "assistant_only_loss"}  # these go with another field
    assert set(SftArguments.model_fields) == set(CHANGED) | OURS | FIXED | alone
    half = {"path": "base", "dtype": "bfloat16"}
    assert translated(trainer={"bf16": True}, model=half)["bf16"] is True


@pytest.mark.parametrize(
    ("setting", "value", "key", "expected"),
    [
        ("r", 16, "lora_r", 16),
        ("lora_alpha", 3, "lora_alpha", 3),
        ("lora_dropout", 0.25, "lora_dropout", 0.25),
        ("use_rslora", True, "peft_use_rslora", True),
        ("layers_to_transform", [0, 2], "peft_layers_to_transform", [0, 2]),
        ("modules_to_save", ["lm_head"], "lora_modules_to_save", ["lm_head"]),
        ("target_modules", ["k_proj"], "lora_target_modules", ["k_proj"]),
        ("target_modules", "all-linear", "lora_target_linear", True),
    ],
)
def test_every_adapter_setting_is_carried_over(
    setting: str, value: Any, key: str, expected: Any
) -> None:
    config = translated(peft=LORA | {setting: value})
    assert config["adapter"] == "lora"
    assert config[key] == expected
    assert translated(peft=LORA)[key] != expected


def test_no_adapter_setting_is_forgotten() -> None:
    carried = {"r", "lora_alpha", "lora_dropout", "use_rslora", "layers_to_transform"}
    carried |= {"modules_to_save", "target_modules"}
    refused = {"bias", "init_lora_weights", "quantization", "use_dora"}
    assert set(Lora.model_fields) == carried | refused | {"method", "merge"}
    assert translated()["adapter"] is None


@pytest.mark.parametrize(
    ("fields", "trainer", "kind", "inputs"),
    [
        (PAIRS, {}, None, False),
        (PAIRS, {"completion_only_loss": False}, None, True),
        (TEXT, {}, "completion", True),
        (TALKS, {}, "chat_template", True),
        (TALKS, {"assistant_only_loss": True}, "chat_template", False),
    ],
)
def test_what_is_learned(
    fields: dict[str, Any], trainer: dict[str, Any], kind: str | None, inputs: bool
) -> None:
    config = translated(trainer=trainer, **fields)
    assert config["train_on_inputs"] is inputs
    for dataset in config["datasets"]:
        if kind is None:
            assert dataset["type"]["field_instruction"] == "prompt"
            assert dataset["type"]["no_input_format"] == "{instruction}"
        else:
            assert dataset["type"] == kind


def test_a_fraction_of_warm_up_is_rounded_up() -> None:
    assert translated(trainer={"max_steps": 10, "warmup_steps": 0.11})["warmup_steps"] == 2


def test_nothing_is_on_by_itself() -> None:
    config = translated()
    off = ("use_wandb", "use_mlflow", "use_comet", "use_trackio", "use_tensorboard")
    assert not any(config[name] for name in (*off, "sample_packing", "trust_remote_code"))
    assert config["save_strategy"] == "no"
    assert config["dataloader_num_workers"] == 0
    assert [dataset["path"] for dataset in config["datasets"]] == [
        "hospital-a.records",
        "hospital-b.records",
    ]
    assert not any("hub" in name for name in config)


@pytest.mark.slow
def test_axolotls_own_schema_takes_it() -> None:
    if importlib.util.find_spec("axolotl") is None:
        pytest.skip("axolotl is not installed here: tools/backends/install.sh axolotl")
    every = CHANGED | {"completion_only_loss": None}
    texts: list[dict[str, Any]] = [
        translated(),
        translated(peft=LORA | {"use_rslora": True, "layers_to_transform": [0]}),
        translated(peft=LORA | {"target_modules": "all-linear"}, trainer=every, **TEXT),
        translated(trainer={"assistant_only_loss": True}, **TALKS),
    ]
    # In a process of its own: loading Axolotl changes other libraries.
    program = (
        "import sys, ast\n"
        "from sealtrain.training.backends.ready import make_ready\n"
        "make_ready('axolotl')\n"
        "from axolotl.utils.schemas.config import AxolotlInputConfig\n"
        "for text in sys.argv[1:]:\n"
        "    wanted = ast.literal_eval(text)\n"
        "    made = AxolotlInputConfig(**wanted).model_dump()\n"
        "    unknown = set(wanted) - set(AxolotlInputConfig.model_fields)\n"
        "    assert not unknown, unknown\n"
        "    changed = [name for name, value in wanted.items() if name != 'datasets'\n"
        "        and value is not None and getattr(made[name], 'value', made[name]) != value]\n"
        "    assert not changed, [(name, wanted[name], made[name]) for name in changed]\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *map(repr, texts)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
