"""Trainer settings: one row for each, and a lock leaves a later one out at its default."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from sealtrain.base.canonical import canonical_json
from sealtrain.recipe.fields import later
from sealtrain.recipe.phases.classify import ClassifyRecipe
from sealtrain.recipe.phases.cpt import CptRecipe
from sealtrain.recipe.phases.dpo import DpoRecipe
from sealtrain.recipe.phases.embed import EmbedRecipe
from sealtrain.recipe.phases.evaluate import EvaluateRecipe
from sealtrain.recipe.phases.reward import RewardRecipe
from sealtrain.recipe.phases.rlhf import RlhfRecipe
from sealtrain.recipe.phases.sft import SftArguments, SftRecipe
from sealtrain.recipe.phases.vlm import VlmRecipe
from sealtrain.recipe.schema import PHASES
from sealtrain.recipe.trainers import TrainerArguments
from sealtrain.recipe.trainersettings import SETTINGS

RECIPES = (
    ClassifyRecipe, CptRecipe, DpoRecipe, EmbedRecipe, EvaluateRecipe, RewardRecipe, RlhfRecipe,
    SftRecipe, VlmRecipe,
)  # fmt: skip
WRITTEN = frozenset({
    "activation_checkpointing", "adam_beta1", "adam_beta2", "adam_epsilon", "algorithm",
    "append_eos", "assistant_only_loss", "beta", "bf16", "block_size",
    "center_rewards_coefficient", "cliprange", "cliprange_value", "completion_only_loss",
    "data_seed", "delta", "desirable_weight", "disable_dropout", "discopop_tau",
    "early_stopping_patience", "early_stopping_threshold", "eos_token", "epsilon",
    "epsilon_high", "eval_steps", "f_alpha_divergence_coef", "f_divergence_type", "gamma",
    "gradient_accumulation_steps", "greater_is_better", "importance_sampling_level",
    "init_kl_coef", "kl_horizon", "kl_target", "label_smoothing", "label_smoothing_factor",
    "lam", "ld_alpha", "learning_rate", "load_best_model_at_end", "logging_steps", "loss_type",
    "loss_weights", "lr_scheduler_kwargs", "lr_scheduler_type", "mask_truncated_completions",
    "matryoshka_dims", "max_completion_length", "max_grad_norm", "max_length", "max_steps",
    "metric_for_best_model", "min_p", "mini_batch_size", "missing_eos_penalty",
    "neftune_noise_alpha", "normalize_advantages", "num_generations", "num_iterations",
    "num_mini_batches", "num_ppo_epochs", "optim", "packing", "packing_strategy",
    "pad_to_multiple_of", "pad_token", "padding_free", "per_device_eval_batch_size",
    "per_device_train_batch_size", "repetition_penalty", "reward_clip_range", "save_steps",
    "save_total_limit", "scale", "scale_rewards", "seed", "target_kl", "temperature",
    "token_digest", "top_k", "top_p", "truncation_mode", "undesirable_weight", "use_weighting",
    "vf_coef", "warmup_steps", "weight_decay",
})  # fmt: skip
"""Settings that a lock writes at any value, as it always did. The list never grows."""


def classes() -> list[type[TrainerArguments]]:
    """Of the trainer settings of all phases and methods."""
    found: list[type[TrainerArguments]] = []
    for recipe in RECIPES:
        todo: list[Any] = [recipe.model_fields["trainer"].annotation]
        while todo:
            kind = todo.pop()
            if isinstance(kind, type) and issubclass(kind, TrainerArguments):
                found.append(kind)
            else:
                todo += get_args(kind)
    return found


def test_every_phase_is_looked_at() -> None:
    assert sorted(recipe.__name__ for recipe in RECIPES) == sorted(PHASES.values())
    assert len(classes()) == 13


def test_every_setting_of_all_phases_has_one_row() -> None:
    assert list(SETTINGS) == list(TrainerArguments.model_fields)


@pytest.mark.claim("C654")
def test_a_setting_that_came_later_is_left_out_of_a_lock_at_its_default() -> None:
    for kind in classes():
        for name, field in kind.model_fields.items():
            leaves_out: Any = field.exclude_if
            assert (leaves_out is None) == (name in WRITTEN), (kind.__name__, name)
            if leaves_out is not None:
                assert leaves_out(field.default)


def another(value: Any) -> Any:
    """A value of the same kind as a default, and never equal to it."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}-other"
        case tuple() | list():
            return [*value, 1]
        case dict():
            return {**value, "other": 1}
    return 7


@pytest.mark.claim("C742")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_every_setting_that_is_not_at_its_default_is_in_the_lock() -> None:
    """Over the whole table: no two recipes that differ in one setting have one hash."""
    for kind in classes():
        usual = kind.model_construct(max_steps=3)
        written = {canonical_json(usual.to_dict())}
        for name in kind.model_fields:
            changed = usual.model_copy(update={name: another(getattr(usual, name, None))})
            written.add(canonical_json(changed.to_dict()))
        assert len(written) == len(kind.model_fields) + 1, kind.__name__


@pytest.mark.claim("C654")
def test_a_new_setting_at_its_default_leaves_the_bytes_of_a_lock_as_they_are() -> None:
    class Longer(SftArguments):
        shift: float = later(default=0.5, ge=0, le=1)

    before = canonical_json(SftArguments(max_steps=3).to_dict())
    assert canonical_json(Longer(max_steps=3).to_dict()) == before
    assert canonical_json(Longer(max_steps=3, shift=0.5).to_dict()) == before
    assert Longer(max_steps=3, shift=0.25).to_dict()["shift"] == 0.25
    assert b"fp16" not in before
