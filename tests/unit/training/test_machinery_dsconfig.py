"""A recipe as DeepSpeed's configuration: every setting said, none left to guess."""

from __future__ import annotations

import json
from typing import Any

import pytest
from language_world import cpt

from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.training.distributed.zero import ds_config


def config(*, trainer: dict[str, Any] | None = None, **backend: Any) -> dict[str, Any]:
    recipe: Any = cpt(
        trainer=trainer, backend={"name": "deepspeed", "zero_stage": 2, "ranks": 2} | backend
    )
    return ds_config(recipe.backend, recipe.trainer)


def test_the_recipe_decides_batch_accumulation_and_clipping() -> None:
    trainer = {
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 5,
        "max_grad_norm": 0.25,
    }
    found = config(trainer=trainer)
    assert found["train_micro_batch_size_per_gpu"] == 3
    assert found["gradient_accumulation_steps"] == 5
    assert found["gradient_clipping"] == 0.25


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_stage_is_the_recipes(stage: int) -> None:
    assert config(zero_stage=stage)["zero_optimization"] == {"stage": stage}


def test_offloading_moves_what_a_stage_shares_out() -> None:
    cpu = {"device": "cpu"}
    assert config(offload="cpu")["zero_optimization"] == {"stage": 2, "offload_optimizer": cpu}
    assert config(zero_stage=3, offload="cpu")["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": cpu,
        "offload_param": cpu,
    }


def test_nothing_is_left_to_guess_and_nothing_reports() -> None:
    found = config()
    assert '"auto"' not in json.dumps(found)
    assert found["zero_allow_untested_optimizer"]
    assert not found["zero_force_ds_cpu_optimizer"]  # it would compile one
    reporting = {"tensorboard", "wandb", "comet", "csv_monitor", "flops_profiler", "checkpoint"}
    assert not reporting & found.keys()
    assert found["steps_per_print"] > 10_000_000


@pytest.mark.parametrize(
    ("trainer", "changed", "why"),
    [
        ({"fp16": True}, {}, "fp16"),
        ({}, {"backend": {"name": "deepspeed", "zero_stage": 0, "offload": "cpu"}}, "zero_stage"),
    ],
)
def test_what_it_cannot_do_is_refused(
    trainer: dict[str, Any], changed: dict[str, Any], why: str
) -> None:
    backend = {"backend": {"name": "deepspeed", "zero_stage": 2}}
    with pytest.raises(RecipeInvalid, match=why):
        cpt(trainer=trainer, **(backend | changed))
