"""Reinforcement learning: sealed data give the plaintext run's bits, and so does a resumed run."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from carrying import carries
from preference_world import rlhf, write_questions, write_scorer
from training_world import (
    LORA,
    PlainDataset,
    StopsAfter,
    checkpoint_store,
    measured,
    run,
    runs_of,
    seal_records,
    sources_of,
)
from variants import variants

from sealtrain.errors import SealtrainError
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import newest

pytestmark = pytest.mark.long

ADAPTER = LORA | {"lora_dropout": 0.0}
MANY = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "num_mini_batches": 2,
    "num_ppo_epochs": 3,
    "target_kl": 0.002,
    "missing_eos_penalty": 0.5,
}
BEST = {
    "eval_steps": 2,
    "metric_for_best_model": "eval_kl",
    "greater_is_better": False,
    "load_best_model_at_end": True,
}
RECIPES = {
    "ppo": functools.partial(rlhf, "ppo"),
    "ppo-minibatches": functools.partial(rlhf, "ppo", trainer=MANY),
    "ppo-lora": functools.partial(
        rlhf,
        "ppo",
        # Dropout draws random numbers while it learns.
        trainer={"disable_dropout": False, "activation_checkpointing": True, "eval_steps": 2},
        peft=LORA,
    ),
    "ppo-best": functools.partial(rlhf, "ppo", trainer=BEST),
    "rloo": functools.partial(rlhf, "rloo", trainer={"gradient_accumulation_steps": 2}),
    "grpo": functools.partial(rlhf, "grpo", trainer={"eval_steps": 2}),
    "grpo-lora": functools.partial(rlhf, "grpo", peft=ADAPTER),
    # The same answers for three steps: a checkpoint lies between answers.
    "grpo-repeated": functools.partial(rlhf, "grpo", trainer={"num_iterations": 3}),
}

METHODS = ("ppo", "rloo", "grpo")
"""Trained for each change, and one resumed; the other recipes at night."""


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scorer(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_questions(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def sealed(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(seal_records(paths, tmp_path_factory.mktemp("sealed")))


@pytest.fixture(scope="module")
def whole(sealed: dict[str, Any], base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The uninterrupted run over sealed data, by name of its recipe."""
    return runs_of(RECIPES, sealed, tmp_path_factory.mktemp("stores"), base_dir)


@pytest.mark.claim("C23")
@pytest.mark.parametrize("name", variants(RECIPES, each_time=["grpo"]))
def test_a_resumed_run_is_the_uninterrupted_one(
    name: str, whole: Any, sealed: dict[str, Any], base_dir: Path, tmp_path: Path
) -> None:
    recipe = RECIPES[name]()
    sources = sources_of(recipe, sealed)
    store = checkpoint_store(tmp_path)
    first = run(recipe, sources, store, stop_at=3, base_dir=base_dir)
    assert first.trained is None
    second = run(recipe, sources, store, resume=newest(store, None), base_dir=base_dir)
    assert measured(second) == measured(whole(name))
    assert first.history + second.history == whole(name).history
    saved = [ref.step for ref in first.checkpoints + second.checkpoints]
    assert saved == [ref.step for ref in whole(name).checkpoints]
    assert {3, 6, 8} <= set(saved)


@pytest.mark.claim("C23")
@pytest.mark.parametrize(
    ("name", "wanted", "stopped"),
    variants([("ppo", 5, 5), ("grpo-repeated", 4, 6)], each_time=[]),
)
def test_a_run_that_stopped_for_its_lease_is_the_uninterrupted_one(
    name: str,
    wanted: int,
    stopped: int,
    whole: Any,
    sealed: dict[str, Any],
    base_dir: Path,
    tmp_path: Path,
) -> None:
    recipe = RECIPES[name]()
    sources = sources_of(recipe, sealed)
    store = checkpoint_store(tmp_path)
    first = run(recipe, sources, store, base_dir=base_dir, lease_keeper=StopsAfter(wanted))
    # Not between steps on the same answers: those are in no checkpoint.
    assert first.checkpoints[-1].step == stopped
    second = run(recipe, sources, store, resume=newest(store, None), base_dir=base_dir)
    assert measured(second) == measured(whole(name))
    assert first.history + second.history == whole(name).history


@pytest.mark.claim("C24")
@pytest.mark.parametrize("name", ["ppo", "rloo", "grpo"])
def test_sealed_training_is_training_in_the_clear(
    name: str, whole: Any, paths: dict[str, Path], base_dir: Path, tmp_path: Path
) -> None:
    recipe = RECIPES[name]()
    clear = {
        key: PlainDataset([pa.RecordBatch.from_pylist(lines(path))]) for key, path in paths.items()
    }
    store = checkpoint_store(tmp_path)
    over_clear = run(recipe, sources_of(recipe, clear), store, base_dir=base_dir)
    assert measured(over_clear) == measured(whole(name))
    assert over_clear.history == whole(name).history
    assert len(over_clear.history) >= 4


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("name", METHODS)
def test_methods_train_different_weights_and_count(name: str, whole: Any) -> None:
    others = {whole(other).weights for other in METHODS if other != name}
    assert whole(name).weights not in others
    assert whole(name).trained.tokens > 0
    assert whole(name).trained.steps == 8


def test_a_round_takes_every_prompt_once(whole: Any) -> None:
    assert whole("ppo").trained.samples_seen == 8 * 4
    assert whole("ppo-minibatches").trained.samples_seen == 8 * 2 * 2 * 2
    assert whole("grpo").trained.samples_seen == 8 * 4 // 2
    assert whole("grpo-repeated").trained.samples_seen == 3 * 4 // 2


def test_a_checkpoint_of_ppo_holds_all_that_its_loop_needs(
    sealed: dict[str, Any], base_dir: Path, tmp_path: Path
) -> None:
    recipe = RECIPES["ppo"]()
    store = checkpoint_store(tmp_path)
    run(recipe, sources_of(recipe, sealed), store, stop_at=6, base_dir=base_dir)
    ref = newest(store, None)
    assert ref is not None
    kept = checkpoint.load(store, "ab" * 16, ref)
    assert {"value_head.weight", "value_head.bias"} <= kept["model"].keys()
    assert float(kept["model"]["value_head.weight"].abs().max()) > 0
    assert kept["kl_coef"] != recipe.trainer.init_kl_coef
    assert {"optimizer", "scheduler", "random", "mark", "best"} <= kept.keys()


def test_a_checkpoint_of_another_training_is_refused(
    sealed: dict[str, Any], base_dir: Path, tmp_path: Path
) -> None:
    recipe = RECIPES["grpo"]()
    sources, store = sources_of(recipe, sealed), checkpoint_store(tmp_path)
    run(recipe, sources, store, stop_at=3, base_dir=base_dir)
    with pytest.raises(SealtrainError, check=carries(check="checkpoint")):
        run(RECIPES["ppo"](), sources, store, resume=newest(store, None), base_dir=base_dir)


@pytest.mark.nightly
def test_a_finished_run_gives_its_result_again_without_a_step(
    whole: Any, sealed: dict[str, Any], base_dir: Path, tmp_path: Path
) -> None:
    recipe = RECIPES["ppo"]()
    sources, store = sources_of(recipe, sealed), checkpoint_store(tmp_path)
    run(recipe, sources, store, base_dir=base_dir)
    again = run(recipe, sources, store, resume=newest(store, None), base_dir=base_dir)
    assert measured(again) == measured(whole("ppo"))
    assert again.history == []
