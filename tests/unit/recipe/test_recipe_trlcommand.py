"""The command line of a TRL script is read as a shell separates it, and nothing of it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from carrying import carries
from typer.testing import CliRunner

from sealtrain.cli import app
from sealtrain.errors import SealtrainError, UsageError
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.trlcommand import read_command

pytestmark = pytest.mark.claim("C145")

ARGUMENTS = "--model_name_or_path ./base --max_steps 10 --dataset_text_field note"


@pytest.mark.parametrize(
    ("before", "trainer", "launcher"),
    [
        ("python trl/scripts/sft.py", "sft", 2),
        ("trl dpo", "dpo", 2),
        ("python -m trl.scripts.sft", "sft", 3),
        ("accelerate launch --config_file a/zero2.yaml --num_processes 4 sft.py", "sft", 7),
        ("CUDA_VISIBLE_DEVICES=0 torchrun --standalone dpo.py", "dpo", 4),
        ("", None, 0),
    ],
)
def test_the_script_is_found_behind_what_starts_it(
    before: str, trainer: str | None, launcher: int
) -> None:
    found = read_command(f"#!/bin/sh\nset -e\n\n# train\n{before} {ARGUMENTS}  # a note\n")
    assert found is not None
    assert (found.trainer, len(found.launcher)) == (trainer, launcher)
    assert found.arguments == {
        "model_name_or_path": "./base", "max_steps": 10, "dataset_text_field": "note",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("--a=1 --b 2.5e-4 \\\n  --c -3 \\\r\n --d", {"a": 1, "b": 2.5e-4, "c": -3, "d": True}),
        ("--x True --y false --no_z --w None", {"x": True, "y": False, "z": False, "w": None}),
        ("--lora-modules q_proj v_proj", {"lora_modules": ["q_proj", "v_proj"]}),
        ("--run_name 'a: b' --t 1e", {"run_name": "a: b", "t": "1e"}),
    ],
)
def test_values_are_what_the_script_would_make_of_them(
    text: str, arguments: dict[str, Any]
) -> None:
    found = read_command(f"sft.py {text}")
    assert found is not None
    assert found.arguments == arguments


@pytest.mark.parametrize(
    "text",
    [
        "sft.py --a 1 && rm -rf x", "sft.py --a 1; echo", "sft.py --a 1 | tee log", "sft.py --a '1",
        "sft.py --a 1 --a 2", "sft.py --a 1\nsft.py --a 2", "trl grpo --a 1", "sft.py a --b 1",
        "sft.py --config a.yaml", "sft_vlm.py --a 1", "sft.py --a -x", "sft.py --a '--'",
        "trl sft --a 1 &",
    ],
)  # fmt: skip
def test_a_line_that_is_no_one_training_is_refused(text: str) -> None:
    with pytest.raises(RecipeInvalid, check=carries(check="trl")) as caught:
        read_command(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    "text", ["", "a: 1\n", "base_model: ./m\nnote: use --a\n", "python sft.py", "- a\n"]
)
def test_other_texts_are_no_command_line(text: str) -> None:
    assert read_command(text) is None


def run_import(folder: Path, text: str, *words: str) -> Any:
    source = folder / "train.sh"
    source.write_text(text)
    called = ["recipe", "import", str(source), "--out", str(folder / "recipe.yaml"), "--dataset",
              "clinic-a.notes", "--json", *words]  # fmt: skip
    return CliRunner().invoke(app, called)


def test_a_command_line_becomes_a_recipe(tmp_path: Path) -> None:
    done = run_import(tmp_path, f"accelerate launch sft.py {ARGUMENTS} --learning_rate 2e-4\n")
    assert done.exit_code == 0
    assert '"launcher"' in done.stdout
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    assert (recipe["phase"], recipe["trainer"]["max_steps"]) == ("sft", 10)
    assert recipe["columns"] == {"text": "note"}


def test_a_line_of_another_script_than_was_said_is_refused(tmp_path: Path) -> None:
    done = run_import(tmp_path, f"sft.py {ARGUMENTS}\n", "--trainer", "dpo")
    assert isinstance(done.exception, UsageError)
    assert carries(check="--trainer", expected="sft")(done.exception)


@pytest.mark.parametrize(
    ("argument", "key", "field"),
    [
        ("--learning_rate fast", "learning_rate", "trainer.learning_rate"),
        ("--seed 0x10", "seed", "trainer.seed"),
        ("--use_peft --lora_target_modules q_proj --lora_r 1.5", "lora_r", "peft.lora.r"),
    ],
)
def test_a_value_that_no_recipe_has_is_refused_at_its_own_key(
    tmp_path: Path, argument: str, key: str, field: str
) -> None:
    done = run_import(tmp_path, f"sft.py {ARGUMENTS} {argument}\n")
    assert isinstance(done.exception, SealtrainError)
    assert carries(check=key, field=field)(done.exception)
    assert not (tmp_path / "recipe.yaml").exists()
