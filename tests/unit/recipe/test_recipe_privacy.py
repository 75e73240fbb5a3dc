"""A recipe that would break its own promise of privacy is refused before anybody approves it."""

from __future__ import annotations

from typing import Any

import pytest
from training_world import LORA, OWNERS, POLICY, RANGES, private_classify, private_sft, sft

from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.privacy import spendings

pytestmark = [pytest.mark.claim("C37"), pytest.mark.claim("C550")]


def drawing(fields: dict[str, Any]) -> dict[str, Any]:
    """A model whose config asks for random numbers."""
    model: dict[str, Any] = private_sft().to_dict()["model"]
    return model | {"config": model["config"] | fields}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"release_policy": POLICY | {"metrics": ["loss"]}}, "loss"),
        ({"release_policy": POLICY | {"metrics": ["accuracy", "grad_norm"]}}, "grad_norm"),
        ({"trainer": {"packing": True}}, "packing"),
        ({"trainer": {"bf16": True}}, "bf16"),
        ({"trainer": {"activation_checkpointing": True}}, "activation_checkpointing"),
        ({"trainer": {"neftune_noise_alpha": 5.0}}, "neftune"),
        ({"peft": LORA | {"lora_dropout": 0.05}}, r"peft\.lora_dropout"),
        ({"model": drawing({"attention_dropout": 0.1})}, r"model\.config\.attention_dropout"),
        ({"model": drawing({"embd_pdrop": 0.1})}, r"model\.config\.embd_pdrop"),
        ({"model": drawing({"encoder_layerdrop": 1})}, r"model\.config\.encoder_layerdrop"),
        ({"model": drawing({"router_jitter_noise": 0.1})}, "router_jitter_noise"),
        ({"model": drawing({"text": {"drop_path_rate": 0.1}})}, r"text\.drop_path_rate"),
        ({"peft": None}, "phase sft"),
        ({"peft": LORA | {"use_dora": True}}, "lora"),
        ({"scripts": ["train.py"]}, "script"),
        ({"privacy": {"budgets": {"stranger": 9.0}}}, "stranger"),
        ({"privacy": {"budgets": {OWNERS[0]: 7.9}}}, r"privacy\.target_epsilon"),
        ({"privacy": {"target_epsilon": 0}}, "target_epsilon"),
        ({"privacy": {"delta": 0.5}}, "delta"),
        ({"privacy": {"sampling": "shuffle"}}, "sampling"),
        ({"privacy": {"accountant": "magic"}}, "accountant"),
        ({"privacy": {"feature_ranges": RANGES}}, "feature_ranges"),
    ],
)
def test_what_would_break_the_promise_is_refused(changed: dict[str, Any], why: str) -> None:
    private_sft()
    with pytest.raises(RecipeInvalid, match=why):
        private_sft(**changed)


@pytest.mark.parametrize(
    "ranges", [None, {"size": [200, 800]}, RANGES | {"age": [0, 1]}, RANGES | {"size": [8, 2]}]
)
def test_numbers_need_ranges_that_everyone_may_know(ranges: Any) -> None:
    with pytest.raises(RecipeInvalid, match="feature_ranges"):
        private_classify(privacy={"feature_ranges": ranges})


def test_a_model_may_say_that_nothing_is_dropped() -> None:
    none = {"attention_dropout": 0.0, "hidden_dropout_prob": 0, "router_jitter_noise": None}
    recipe = private_sft(model=drawing(none), peft=LORA | {"lora_dropout": 0.0})
    assert recipe.model.config.items() >= none.items()


def test_other_phases_promise_nothing() -> None:
    document = private_sft().to_dict() | {"phase": "dpo"}
    with pytest.raises(RecipeInvalid):
        private_sft(phase="dpo", columns={"chosen": "a", "rejected": "b"})
    assert document["privacy"]["dp"] == "sgd"


def test_every_training_dataset_is_reserved_for_and_no_test_data() -> None:
    reserved = spendings(private_sft(privacy={"budgets": {OWNERS[0]: 9.0}}))
    assert [
        (approval.owner, approval.name, approval.epsilon, approval.budget) for approval in reserved
    ] == [
        (OWNERS[0], "records", 8.0, 9.0),
        (OWNERS[1], "records", 8.0, None),
    ]
    assert spendings(sft()) == ()
