"""What a recipe may say of a training that travels: nothing that its program does not follow."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sealtrain.recipe.collaborations.travelling import program_of
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe
from sealtrain_together.travelling.program import ProgramSettings

Document = dict[str, Any]


@pytest.fixture
def travelling(sft: Document) -> Document:
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 64}
    return sft | {
        "phase": "cpt",
        "model": {"config": config, "init_seed": 7},
        "datasets": [
            dataset | {"weight": 1} for dataset in sft["datasets"] if dataset["role"] == "train"
        ],
        "columns": {"tokens": "tokens"},
        "trainer": {
            "max_steps": 9, "block_size": 16, "per_device_train_batch_size": 2,
            "learning_rate": 0.01, "lr_scheduler_type": "constant", "weight_decay": 0.1,
        },
        "peft": None,
        "collaboration": {"kind": "travelling", "policy": "policy.yaml", "buffer_bytes": 128},
    }  # fmt: skip


def test_the_program_is_what_the_recipe_says(travelling: Document) -> None:
    recipe = parse_recipe(travelling)
    settings = ProgramSettings.of(recipe, "cpu")
    assert settings.to_dict().items() >= program_of(recipe).items()
    assert (settings.n_layer, settings.seed, settings.weight_decay) == (2, 7, 0.1)
    assert settings.step_bytes == 64
    assert recipe.trainer.max_grad_norm == settings.max_grad_norm == 1.0


@pytest.mark.parametrize(
    ("section", "changed", "named"),
    [
        ("config", {"attn_pdrop": 0.1}, "attn_pdrop"),
        ("config", {"n_layer": 0}, "n_layer"),
        ("config", {"n_layer": "2"}, "n_layer"),
        ("config", {"n_layer": True}, "n_layer"),
        ("config", {"n_head": 3}, "n_embd"),
        ("config", {"vocab_size": (1 << 20) + 1}, "vocab_size"),
        ("config", {"n_positions": 32}, "n_positions"),
        ("config", {"model_type": "llama"}, "gpt2"),
        ("model", {"dtype": "float16"}, "float32"),
        ("model", {"tokenizer": {"kind": "bytes"}}, "tokenizer"),
        ("trainer", {"lr_scheduler_type": "linear"}, "constant"),
        ("trainer", {"learning_rate": 2.0}, "learning_rate"),
        ("trainer", {"warmup_steps": 3}, "warmup_steps"),
        ("trainer", {"optim": "sgd"}, "optim"),
        ("trainer", {"bf16": True}, "bf16"),
        ("trainer", {"gradient_accumulation_steps": 2}, "gradient_accumulation_steps"),
        ("trainer", {"per_device_train_batch_size": 3}, "buffer_bytes"),
    ],
)
def test_what_the_program_does_not_follow_is_refused(
    travelling: Document, section: str, changed: Document, named: str
) -> None:
    recipe = copy.deepcopy(travelling)
    place = recipe["model"]["config"] if section == "config" else recipe[section]
    place.update(changed)
    with pytest.raises(RecipeInvalid, match=named):
        parse_recipe(recipe)


@pytest.mark.parametrize("changed", [{"role": "test"}, {"weight": 2.0}])
def test_every_dataset_is_trained_on_alike(travelling: Document, changed: Document) -> None:
    first, *others = travelling["datasets"]
    with pytest.raises(RecipeInvalid):
        parse_recipe(travelling | {"datasets": [first | changed, *others]})


def test_bounds_on_what_chunks_do_are_part_of_the_program(travelling: Document) -> None:
    privacy = {"noise_multiplier": 1.0, "max_sequence_norm": 0.5, "delta": 1e-5}
    travelling["collaboration"] |= {"max_update_norm": 2.0, "sequence_privacy": privacy}
    recipe = parse_recipe(travelling)
    program = ProgramSettings.of(recipe, "cpu")
    assert program.to_dict() == {"device": "cpu"} | program_of(recipe)
    assert program.privacy is not None
    assert (program.max_update_norm, program.privacy.max_sequence_norm) == (2.0, 0.5)


@pytest.mark.parametrize("bound", [{"max_update_norm": 0}, {"sequence_privacy": {"delta": 1e-5}}])
def test_a_bound_that_is_none_is_refused(travelling: Document, bound: Document) -> None:
    travelling["collaboration"] |= bound
    with pytest.raises(RecipeInvalid):
        parse_recipe(travelling)
