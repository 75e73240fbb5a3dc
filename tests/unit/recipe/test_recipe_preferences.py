"""Recipes of ``dpo`` and ``reward``: each method its own settings and columns, nothing besides."""

from __future__ import annotations

from typing import Any

import pytest
from carrying import carries
from preference_world import LABELLED, PAIRS, kto, preferring
from training_world import LORA

from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe


def test_the_loss_chooses_the_method() -> None:
    assert preferring("dpo").trainer.kind == "dpo"
    assert preferring("dpo", trainer={"loss_type": "ipo"}).trainer.kind == "dpo"
    assert preferring("dpo", trainer={"loss_type": "orpo"}).trainer.kind == "orpo"
    assert kto().trainer.kind == "kto"
    assert kto(trainer={"loss_type": "apo_zero_unpaired"}).trainer.kind == "kto"


@pytest.mark.parametrize(
    "wanted",
    [
        preferring("dpo"),
        preferring("dpo", trainer={"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}),
        preferring("dpo", columns={"chosen": "chosen", "rejected": "rejected"}),
        preferring("dpo", trainer={"loss_type": "orpo"}),
        preferring("reward", peft=LORA),
        kto(),
    ],
)
def test_written_out_it_reads_the_same(wanted: Any) -> None:
    assert parse_recipe(wanted.to_dict()) == wanted


PROMPT = {"method": "prompt_tuning", "num_virtual_tokens": 4}
REFUSED = [
    ("dpo", {"trainer": {"loss_type": "dpo"}}, "loss_type"),
    ("dpo", {"trainer": {"loss_type": []}}, "loss_type"),
    ("dpo", {"trainer": {"loss_type": ["sigmoid", "sigmoid"]}}, "one twice"),
    ("dpo", {"trainer": {"loss_type": "sft"}}, "compares nothing"),
    ("dpo", {"trainer": {"loss_type": ["sigmoid", "kto"]}}, "loss_type"),
    ("dpo", {"trainer": {"loss_weights": [1.0, 2.0]}}, "loss_weights"),
    ("dpo", {"trainer": {"label_smoothing": 0.1}}, "label_smoothing"),
    ("dpo", {"trainer": {"loss_type": "exo_pair"}}, "exo_pair"),
    ("dpo", {"trainer": {"loss_type": "robust", "label_smoothing": 0.5}}, "label_smoothing"),
    ("dpo", {"trainer": {"loss_type": "bco_pair", "f_divergence_type": "forward_kl"}}, "f_div"),
    ("dpo", {"trainer": {"loss_type": "aot", "use_weighting": True}}, "use_weighting"),
    ("dpo", {"trainer": {"beta": 0}}, "beta"),
    ("dpo", {"trainer": {"label_smoothing_factor": 0.1}}, "label_smoothing_factor"),
    ("reward", {"trainer": {"label_smoothing_factor": 0.1}}, "label_smoothing_factor"),
    # What needs the whole data in memory and writes it to a cache, or does not resume.
    ("dpo", {"trainer": {"precompute_ref_log_probs": True}}, "precompute_ref_log_probs"),
    ("dpo", {"trainer": {"sync_ref_model": True}}, "sync_ref_model"),
    ("dpo", {"trainer": {"model_init_kwargs": {}}}, "model_init_kwargs"),
    # Settings of another method.
    ("dpo", {"trainer": {"desirable_weight": 2.0}}, "desirable_weight"),
    ("dpo", {"trainer": {"loss_type": "orpo", "ld_alpha": 0.5}}, "ld_alpha"),
    ("dpo", {"trainer": {"loss_type": "orpo", "max_length": None}}, "max_length"),
    ("dpo", {"trainer": {"loss_type": "kto"}}, "completion"),
    ("dpo", {"columns": LABELLED}, "chosen, rejected"),
    ("dpo", {"columns": PAIRS | {"label": "label"}}, "columns"),
    ("reward", {"columns": LABELLED}, "columns"),
    ("reward", {"columns": {"chosen": "chosen"}}, "rejected"),
    ("reward", {"trainer": {"beta": 0.1}}, "trainer.beta"),
    ("dpo", {"model": {"config": {"model_type": "llama"}, "init_seed": 1}}, "tokenizer"),
    ("reward", {"model": {"config": {"model_type": "llama"}, "init_seed": 1}}, "tokenizer"),
    ("dpo", {"peft": LORA, "trainer": {"disable_dropout": True}}, "lora_dropout"),
    ("dpo", {"peft": PROMPT, "trainer": {"loss_type": "orpo"}}, "prompt_tuning"),
    (
        "reward",
        {"peft": LORA | {"quantization": {}}, "model": {"path": "base"}},
        "trainer.bf16",
    ),
    ("reward", {"peft": LORA, "trainer": {"disable_dropout": True}}, "lora_dropout"),
]


@pytest.mark.parametrize(("phase", "changed", "told"), REFUSED)
def test_what_training_would_not_follow_is_refused(
    phase: str, changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(RecipeInvalid) as refusal:
        preferring(phase, **changed)
    assert told in str(refusal.value)


def test_kto_needs_others_in_the_batch() -> None:
    with pytest.raises(RecipeInvalid, check=carries(check="recipe", field="trainer.kto")):
        kto(trainer={"per_device_train_batch_size": 1})
    alone = {"per_device_train_batch_size": 1, "loss_type": "apo_zero_unpaired"}
    assert kto(trainer=alone).trainer.per_device_train_batch_size == 1
