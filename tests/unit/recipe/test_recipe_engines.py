"""Engine settings: each in the hash, none in a lock at its default, and refused where untried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sealtrain.recipe.engines import BITSANDBYTES_OPTIMIZERS, ENGINES, TORCHAO_OPTIMIZERS
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.installation import packages_of
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.schema import parse_recipe

Locks = Callable[..., LockedRecipe]
SETTINGS: dict[str, dict[str, Any]] = {
    "optim": {"optim": "adamw_torch_8bit"},
    "torch_compile": {"torch_compile": True},
    "use_liger_kernel": {"use_liger_kernel": True},
}
SPOKEN = {"columns": {"messages": "messages"}}


def test_every_engine_setting_is_looked_at() -> None:
    assert SETTINGS.keys() == ENGINES.keys()


@pytest.mark.claim("C742")
def test_recipes_that_differ_in_one_engine_setting_have_different_hashes(
    sft: dict[str, Any], lock_of: Locks
) -> None:
    usual = sft | {
        "datasets": [dataset | {"weight": 1} for dataset in sft["datasets"]],
        **SPOKEN,
    }
    steps = {name: value for name, value in usual["trainer"].items() if name != "max_steps"}
    trainers: list[dict[str, Any]] = [
        usual["trainer"],
        *({**usual["trainer"], "optim": name} for name in BITSANDBYTES_OPTIMIZERS),
        *({**usual["trainer"], "optim": name} for name in TORCHAO_OPTIMIZERS),
        *(
            {**usual["trainer"], "torch_compile": True, "torch_compile_backend": name}
            for name in (None, "inductor", "aot_eager", "eager")
        ),
        {**usual["trainer"], "use_liger_kernel": True},
        steps | {"num_train_epochs": 1},
        steps | {"num_train_epochs": 30},
        steps | {"num_train_epochs": 1.5},
    ]
    models: list[dict[str, Any]] = [
        {"attn_implementation": "eager"},
        {"attn_implementation": "sdpa"},
        {"chat_template": ["{{ messages }}"]},
        {"chat_template": ["{{ messages }}", ""]},
    ]
    recipes = [usual | {"trainer": trainer} for trainer in trainers]
    recipes += [usual | {"model": usual["model"] | model} for model in models]
    hashes = [lock_of(recipe).recipe_hash for recipe in recipes]
    assert len(set(hashes)) == len(recipes) == 18


@pytest.mark.claim("C654")
def test_at_their_defaults_they_are_in_no_lock(sft: dict[str, Any], lock_of: Locks) -> None:
    usual = lock_of(sft)
    trainer = sft["trainer"] | {
        "num_train_epochs": None, "torch_compile": False, "torch_compile_backend": None,
        "use_liger_kernel": False,
    }  # fmt: skip
    model = sft["model"] | {"attn_implementation": None, "chat_template": None}
    assert lock_of(sft | {"trainer": trainer, "model": model}).lock_bytes == usual.lock_bytes


UNFIT: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a collaboration": lambda _: {
        "collaboration": {"kind": "cut", "policy": "policy.json", "layers": 0}
    },
    "noise": lambda _: {
        "privacy": {"dp": "sgd", "unit": "record", "target_epsilon": 8.0, "delta": 1e-5,
                    "max_grad_norm": 1.0}
    },
    "a backend": lambda _: {"backend": {"name": "fsdp", "ranks": 2}},
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("where", UNFIT)
def test_where_one_was_not_tried_it_is_refused_by_name(
    sft: dict[str, Any], name: str, where: str
) -> None:
    changed = UNFIT[where](sft)
    trainer = sft["trainer"] | SETTINGS[name]
    with pytest.raises(RecipeInvalid, match=name):
        parse_recipe(sft | changed | {"trainer": trainer})


@pytest.mark.parametrize("name", ["torch_compile", "use_liger_kernel"])
@pytest.mark.parametrize(
    "changed",
    [
        {"scripts": ["train.py"]},
        {"model": {"path": "base"}, "peft": {"method": "lora", "target_modules": ["q_proj"],
                                              "quantization": {"bnb_4bit_quant_type": "nf4"}}},
        {"phase": "embed", "columns": {"anchor": "prompt", "positive": "completion"}},
    ],
)  # fmt: skip
def test_what_reaches_into_the_model_is_refused_where_it_cannot(
    sft: dict[str, Any], name: str, changed: dict[str, Any]
) -> None:
    with pytest.raises(RecipeInvalid, match=name):
        parse_recipe(sft | changed | {"trainer": sft["trainer"] | SETTINGS[name]})


@pytest.mark.parametrize(
    "trainer",
    [{"torch_compile_backend": "aot_eager"}, {"torch_compile_mode": "max-autotune"},
     {"torch_compile": True, "torch_compile_backend": "tensorrt"}, {"torch_compile": "auto"}],
)  # fmt: skip
def test_half_a_setting_is_refused(sft: dict[str, Any], trainer: dict[str, Any]) -> None:
    with pytest.raises(RecipeInvalid, match="torch_compile"):
        parse_recipe(sft | {"trainer": sft["trainer"] | trainer})


def test_the_lock_pins_the_packages_of_a_setting_and_no_others(sft: dict[str, Any]) -> None:
    def extras(**trainer: Any) -> tuple[str, ...]:
        return packages_of(parse_recipe(sft | {"trainer": sft["trainer"] | trainer})).extras

    assert extras() == extras(torch_compile=True) == ("train",)
    assert extras(optim="adamw_torch_4bit") == ("train", "torchao")
    assert extras(optim="paged_adamw_8bit") == ("train", "quantize")
    assert extras(use_liger_kernel=True) == ("train", "liger")
