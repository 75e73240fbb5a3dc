"""Adapters in a recipe: one method each, settings that count, combinations that can be."""

from __future__ import annotations

from typing import Any

import pytest
from carrying import carries
from language_world import ADAPTERS, PROMPT_ADAPTERS, WEIGHT_ADAPTERS, cpt, embed
from training_world import LORA, sft

from sealtrain.recipe.errors import RecipeInvalid

BASE = {"path": "base"}


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_method_survives_being_written_and_read(name: str) -> None:
    recipe = sft(model=BASE, peft=ADAPTERS[name])
    assert recipe.peft is not None
    assert recipe.peft.method == ADAPTERS[name]["method"]
    assert recipe.peft.changes_weights == (name in WEIGHT_ADAPTERS)
    again = sft(model=BASE, peft=recipe.to_dict()["peft"])
    assert again.peft == recipe.peft


def test_a_report_can_name_every_method() -> None:
    titles = {name: sft(model=BASE, peft=adapter).peft.title for name, adapter in ADAPTERS.items()}
    assert titles["lora"] == "LoRA, rank 2"
    assert titles["qdora"] == "QDoRA, rank 2"
    assert titles["p-tuning"] == "P-tuning, 4 virtual tokens"
    assert len(set(titles.values())) == len(titles) - 1  # prefix tuning, made in two ways


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"peft": LORA | {"method": "adalora"}}, "peft"),
        ({"peft": PROMPT_ADAPTERS["prompt"] | {"merge": True}}, "merge"),
        ({"peft": LORA | {"num_virtual_tokens": 3}}, "num_virtual_tokens"),
        ({"peft": {"method": "prefix_tuning"}}, "num_virtual_tokens"),
        ({"peft": PROMPT_ADAPTERS["prefix"] | {"encoder_hidden_size": 8}}, "prefix_projection"),
        ({"peft": LORA | {"init_lora_weights": "pissa", "merge": True}}, "pissa"),
        (
            {"model": BASE, "peft": WEIGHT_ADAPTERS["qlora"] | {"init_lora_weights": "olora"}},
            "olora",
        ),
        ({"peft": WEIGHT_ADAPTERS["qlora"]}, "model.path"),
        (
            {"peft": WEIGHT_ADAPTERS["ia3"] | {"feedforward_modules": ["up_proj"]}},
            "feedforward_modules",
        ),
        ({"peft": PROMPT_ADAPTERS["prompt"], "trainer": {"packing": True}}, "packing"),
        (
            {"peft": PROMPT_ADAPTERS["prefix"], "trainer": {"activation_checkpointing": True}},
            "activation_checkpointing",
        ),
        ({"trainer": {"assistant_only_loss": True}}, "messages"),
        ({"columns": {"text": "text"}, "trainer": {"completion_only_loss": True}}, "completion"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecipeInvalid, match=problem):
        sft(**change)


def test_an_encoder_takes_no_learned_prompt() -> None:
    with pytest.raises(RecipeInvalid, match="prompt_tuning"):
        embed(peft=PROMPT_ADAPTERS["prompt"])


def test_an_encoder_needs_others_to_be_told_from() -> None:
    with pytest.raises(RecipeInvalid, check=carries(check="recipe", field="trainer")):
        embed(trainer={"per_device_train_batch_size": 1})


def test_text_and_ends_need_a_tokenizer_and_tokens_do_not() -> None:
    bare = {"config": cpt().to_dict()["model"]["config"], "init_seed": 1}
    tokens = {"tokens": "tokens"}
    assert not cpt(model=bare, columns=tokens).appends_eos
    with pytest.raises(RecipeInvalid, match="tokenizer"):
        cpt(model=bare)
    with pytest.raises(RecipeInvalid, match="tokenizer"):
        cpt(model=bare, columns=tokens, trainer={"append_eos": True})
    assert cpt().appends_eos
