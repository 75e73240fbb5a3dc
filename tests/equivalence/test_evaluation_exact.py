"""Evaluation during training changes nothing, and what it decides survives an interruption.

The same through every kind of training that must resume exactly: mixed precision, accumulated
gradients, activation checkpointing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING
from training_world import (
    LORA,
    RUN_ID,
    Ran,
    checkpoint_store,
    classify,
    measured,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)
from variants import variants

from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import PhaseRecipe
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import newest

if not COLLECTING:
    import torch
    from safetensors.torch import load as load_weights

pytestmark = pytest.mark.long

JUDGED = {"eval_steps": 2, "metric_for_best_model": "eval_loss"}
# Steps this large make the model worse soon, so that patience ends and the best is not the last.
WORSE = {"learning_rate": 0.9, "lr_scheduler_type": "constant", "warmup_steps": 0}


def policy(**changed: Any) -> dict[str, Any]:
    names = ["loss", "accuracy", "eval_loss", "auroc", "f1", "majority"]
    return {"metrics": names, "round_to": 8, "model": {"recipients": ["hospital-a"]}} | changed


def sft_with(**settings: Any) -> PhaseRecipe:
    return sft(trainer=settings, release_policy=policy())


def classify_with(**settings: Any) -> PhaseRecipe:
    return classify(trainer=settings, release_policy=policy())


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("records")
    return dict(seal_records(write_records(folder), folder))


def halves(
    recipe: PhaseRecipe, sealed: dict[str, Any], folder: Path, stop_at: int
) -> tuple[Ran, Ran]:
    sources = sources_of(recipe, sealed)
    store = checkpoint_store(folder)
    first = run(recipe, sources, store, stop_at=stop_at)
    assert first.trained is None
    return first, run(recipe, sources, store, resume=newest(store, None))


@pytest.mark.parametrize("phase", variants(["sft", "classify"], each_time=["classify"]))
def test_evaluating_leaves_weights_and_losses_alone(
    phase: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    made = {"sft": sft_with, "classify": classify_with}[phase]
    # The same steps are logged in both, since an evaluation closes the interval of the mean.
    without, with_it = made(logging_steps=1), made(logging_steps=1, eval_steps=2)
    plain = run(without, sources_of(without, sealed), checkpoint_store(tmp_path / "a"))
    judged = run(with_it, sources_of(with_it, sealed), checkpoint_store(tmp_path / "b"))
    assert measured(judged) == measured(plain)
    losses = [(step, values["loss"]) for step, values in judged.history]
    assert losses == [(step, values["loss"]) for step, values in plain.history]
    at = [step for step, values in judged.history if "accuracy" in values]
    assert at == [2, 4, 6, 8]
    last = judged.history[-1][1]
    # The evaluation of the last step is that of the finished model.
    assert {name: last[name] for name in ("accuracy", "majority")} == {
        name: judged.trained.metrics[name] for name in ("accuracy", "majority")
    }


KINDS: dict[str, dict[str, Any]] = {
    "bf16": {"bf16": True},
    "accumulated": {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2},
    "recomputed": {"activation_checkpointing": True},
    "all": {"bf16": True, "gradient_accumulation_steps": 2, "activation_checkpointing": True},
}


@pytest.mark.claim("C23")
@pytest.mark.parametrize(
    ("phase", "kind"),
    variants(
        [*(("sft", kind) for kind in KINDS), ("lora", "all"), ("classify", "all")],
        each_time=[("lora", "all")],
    ),
)
def test_every_way_to_save_memory_trains_and_resumes_exactly(
    phase: str, kind: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    settings = {"eval_steps": 4, "max_steps": 6, "logging_steps": 1} | KINDS[kind]
    text = {"model": sft().to_dict()["model"], "columns": {"text": "text", "label": "finding"}}
    recipe = {
        "sft": lambda: sft(trainer=settings, release_policy=policy()),
        "lora": lambda: sft(trainer=settings, release_policy=policy(), peft=LORA),
        "classify": lambda: classify(trainer=settings, release_policy=policy(), **text),
    }[phase]()
    whole = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "whole"))
    first, second = halves(recipe, sealed, tmp_path / "parts", stop_at=3)
    assert measured(second) == measured(whole)
    assert first.history + second.history == whole.history
    losses = [values["loss"] for _, values in whole.history]
    assert len(losses) == 6
    if phase == "sft":  # the others learn too little in six steps
        assert max(losses[3:]) < losses[0]  # type: ignore[type-var]


def test_mixed_precision_and_recomputing_do_what_they_say(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    losses = {}
    for kind in ("none", *KINDS):
        recipe = sft_with(max_steps=2, logging_steps=1, **KINDS.get(kind, {}))
        ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / kind))
        losses[kind] = [values["loss"] for _, values in ran.history]
    assert losses["recomputed"] == losses["none"]
    assert losses["bf16"] != losses["none"]
    assert losses["bf16"] == pytest.approx(losses["none"], rel=0.02)
    assert losses["accumulated"] != losses["none"]


@pytest.mark.claim("C23")
@pytest.mark.parametrize("stop_at", variants([2, 4], each_time=[2]))
def test_early_stopping_survives_an_interruption(
    stop_at: int, sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = sft_with(**JUDGED, **WORSE, max_steps=30, save_steps=2, early_stopping_patience=2)
    whole = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "whole"))
    assert 4 <= whole.trained.steps < 30
    assert whole.checkpoints[-1].step == whole.trained.steps
    first, second = halves(recipe, sealed, tmp_path / "parts", stop_at=stop_at)
    assert measured(second) == measured(whole)
    assert first.history + second.history == whole.history


def test_a_run_that_stopped_early_gives_its_result_again(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = sft_with(
        **JUDGED, **WORSE, max_steps=30, early_stopping_patience=1, load_best_model_at_end=True
    )
    sources, store = sources_of(recipe, sealed), checkpoint_store(tmp_path)
    whole = run(recipe, sources, store)
    again = run(recipe, sources, store, resume=newest(store, None))
    assert measured(again) == measured(whole)
    assert again.checkpoints == []


@pytest.mark.claim("C23")
@pytest.mark.parametrize(
    ("peft", "greater"),
    [
        pytest.param(None, None, id="full"),
        pytest.param(LORA, True, id="lora, the worst", marks=pytest.mark.nightly),
    ],
)
def test_the_best_weights_are_the_result(
    peft: dict[str, Any] | None, greater: bool | None, sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = sft(
        trainer=JUDGED | WORSE | {"max_steps": 10, "load_best_model_at_end": True,
                                  "save_total_limit": 1, "save_steps": 5,
                                  "greater_is_better": greater},
        release_policy=policy(),
        peft=peft,
    )  # fmt: skip
    store = checkpoint_store(tmp_path / "whole")
    whole = run(recipe, sources_of(recipe, sealed), store)
    at = {step: values["eval_loss"] for step, values in whole.history if "eval_loss" in values}
    best = (max if greater else min)(at, key=lambda step: at[step] or 0)
    assert best < 10
    assert whole.trained.metrics["eval_loss"] == at[best]
    assert whole.trained.steps == 10
    # The newest and the best are kept; the best holds the weights that came out.
    kept = {ref.step: ref for ref in whole.checkpoints if ref.name in store.names()}
    assert set(kept) == {best, 10}
    weights = checkpoint.load(store, RUN_ID, kept[best], wanted=["model"])["model"]
    (name,) = (name for name in whole.trained.files if name.endswith(".safetensors"))
    result = load_weights(whole.trained.files[name])
    assert all(
        torch.equal(value, weights[name.replace(".weight", ".default.weight") if peft else name])
        for name, value in result.items()
    )
    for stop_at in (best, best + 1):
        first, second = halves(recipe, sealed, tmp_path / str(stop_at), stop_at=stop_at)
        assert measured(second) == measured(whole)
        assert first.history + second.history == whole.history


def test_what_is_not_measured_stops_the_run_by_name(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = classify_with(eval_steps=2, metric_for_best_model="perplexity",
                           early_stopping_patience=1)  # fmt: skip
    with pytest.raises(
        RecipeInvalid, check=carries(check="trainer.metric_for_best_model", got="perplexity")
    ):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))


def test_evaluation_obeys_the_release_policy(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = sft(
        trainer={"eval_steps": 2, "logging_steps": 1},
        release_policy=policy(metrics=["accuracy"], round_to=1, every_n_steps=4),
    )
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))
    assert [step for step, _ in ran.history] == [4, 8]
    assert {name for _, values in ran.history for name in values} == {"accuracy"}
