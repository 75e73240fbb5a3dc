"""Preference training on sealed data: the plaintext run's bits, and resumed the same bits again."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from preference_world import kto, preferring, write_preferences
from training_world import (
    LORA,
    PlainDataset,
    checkpoint_store,
    measured,
    run,
    runs_of,
    seal_records,
    sources_of,
)
from variants import variants

from sealtrain.training.checkpoints.checkpoint import newest

pytestmark = pytest.mark.long

RECIPES = {
    "dpo": functools.partial(preferring, "dpo", trainer={"gradient_accumulation_steps": 2}),
    "dpo-lora": functools.partial(preferring, "dpo", peft=LORA, trainer={"eval_steps": 2}),
    "ipo": functools.partial(preferring, "dpo", trainer={"loss_type": "ipo"}),
    "kto": functools.partial(kto),
    "kto-lora": functools.partial(kto, peft=LORA),
    # Some prompts fill 36 tokens: the trainer drops them, and pairs the others anew.
    "kto-dropping": functools.partial(kto, trainer={"max_length": 36}),
    "orpo": functools.partial(preferring, "dpo", trainer={"loss_type": "orpo"}),
    "orpo-dropping": functools.partial(
        preferring, "dpo", trainer={"loss_type": "orpo", "max_length": 36}, peft=LORA
    ),
    "reward": functools.partial(preferring, "reward"),
    "reward-lora": functools.partial(preferring, "reward", peft=LORA),
}

METHODS = ("dpo", "kto", "orpo", "reward")
"""Trained for each change, and two resumed; the other recipes at night."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_preferences(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def sealed(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(seal_records(paths, tmp_path_factory.mktemp("sealed")))


@pytest.fixture(scope="module")
def whole(sealed: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The uninterrupted run over sealed data, by name of its recipe."""
    return runs_of(RECIPES, sealed, tmp_path_factory.mktemp("stores"))


@pytest.mark.claim("C23")
@pytest.mark.parametrize("name", variants(RECIPES, each_time=["reward"]))
def test_a_resumed_run_is_the_uninterrupted_one(
    name: str, whole: Any, sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = RECIPES[name]()
    sources = sources_of(recipe, sealed)
    store = checkpoint_store(tmp_path)
    first = run(recipe, sources, store, stop_at=3)
    assert first.trained is None
    second = run(recipe, sources, store, resume=newest(store, None))
    assert measured(second) == measured(whole(name))
    assert first.history + second.history == whole(name).history
    assert [ref.step for ref in first.checkpoints + second.checkpoints] == [3, 6]


@pytest.mark.claim("C24")
@pytest.mark.parametrize(
    "name", variants(["dpo", "ipo", "kto", "orpo", "reward"], each_time=["dpo", "kto", "reward"])
)
def test_sealed_training_is_training_in_the_clear(
    name: str, whole: Any, paths: dict[str, Path], tmp_path: Path
) -> None:
    recipe = RECIPES[name]()
    clear = {
        key: PlainDataset([pa.RecordBatch.from_pylist(lines(path))]) for key, path in paths.items()
    }
    over_clear = run(recipe, sources_of(recipe, clear), checkpoint_store(tmp_path))
    assert measured(over_clear) == measured(whole(name))
    assert over_clear.history == whole(name).history
    assert len(over_clear.history) >= 4


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("name", METHODS)
def test_methods_train_different_weights_and_count_tokens(name: str, whole: Any) -> None:
    others = {whole(other).weights for other in METHODS if other != name}
    assert whole(name).weights not in others
    assert whole(name).trained.tokens > 0


@pytest.mark.parametrize("name", ["kto-dropping", "orpo-dropping"])
def test_rows_that_the_trainer_drops_count_as_read(name: str, whole: Any) -> None:
    ran = whole(name)
    assert ran.trained.samples_seen > ran.trained.steps * 4
    assert all(value is not None for _, values in ran.history for value in values.values())


@pytest.mark.nightly
def test_a_finished_run_gives_its_result_again_without_a_step(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = kto(peft=LORA)
    sources, store = sources_of(recipe, sealed), checkpoint_store(tmp_path)
    done = run(recipe, sources, store)
    again = run(recipe, sources, store, resume=newest(store, None))
    assert measured(again) == measured(done)
    assert again.history == []
