"""A run that stopped after any step for the sake of its lease goes on as the uninterrupted one.

What leaves is the same too: an interval that two processes shared is told once, as a whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_world import (
    Ran,
    StopsAfter,
    checkpoint_store,
    classify,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.recipe.schema import PhaseRecipe
from sealtrain.training.checkpoints.checkpoint import newest

CLASSIFY = classify(trainer={"max_steps": 9, "logging_steps": 3, "save_steps": 6})


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("lease")
    return dict(seal_records(write_records(folder), folder))


@pytest.fixture(scope="module")
def whole(sealed: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Ran:
    store = checkpoint_store(tmp_path_factory.mktemp("whole"))
    return run(CLASSIFY, sources_of(CLASSIFY, sealed), store)


def in_parts(
    recipe: PhaseRecipe, sealed: dict[str, Any], folder: Path, stops: list[int]
) -> list[Ran]:
    """Train, stopped after each of these steps; a resume ends the last part."""
    store, sources = checkpoint_store(folder), sources_of(recipe, sealed)
    parts = []
    for step in [*stops, 10_000]:
        ref = newest(store, None)
        parts.append(run(recipe, sources, store, resume=ref, lease_keeper=StopsAfter(step)))
    assert [part.checkpoints[-1].step for part in parts[:-1]] == stops
    return parts


def told(parts: list[Ran]) -> list[tuple[int, dict[str, float | None]]]:
    return [logged for part in parts for logged in part.history]


@pytest.mark.claim("C23")
@pytest.mark.claim("C64")
@pytest.mark.parametrize("stops", [[3], [4, 5], [7, 8]], ids=str)
def test_training_stopped_anywhere_is_training(
    stops: list[int], sealed: dict[str, Any], whole: Ran, tmp_path: Path
) -> None:
    parts = in_parts(CLASSIFY, sealed, tmp_path, stops)
    last = parts[-1]
    assert last.weights == whole.weights
    assert last.trained.metrics["f1"] == whole.trained.metrics["f1"]
    assert last.trained.samples_seen == whole.trained.samples_seen
    history = told(parts)
    assert [step for step, _ in history] == [step for step, _ in whole.history] == [1, 3, 6, 9]
    if all(step % 3 == 0 for step in stops):
        assert history == whole.history
    for (_, values), (_, expected) in zip(history, whole.history, strict=True):
        assert values == pytest.approx(expected, rel=1e-6)


def test_it_is_told_how_far_a_better_place_to_stop_is(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    lease_keeper = StopsAfter(4, boundaries=True)
    store = checkpoint_store(tmp_path)
    ran = run(CLASSIFY, sources_of(CLASSIFY, sealed), store, lease_keeper=lease_keeper)
    assert lease_keeper.asked == [(1, 0, 2), (2, 1, 1), (3, 0, 3), (4, 2, 2), (5, 1, 1), (6, 0, 3)]
    assert ran.checkpoints[-1].step == 6


@pytest.mark.claim("C23")
def test_tokens_are_counted_over_both_parts(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = sft(trainer={"max_steps": 5, "logging_steps": 4, "save_steps": 5})
    store = checkpoint_store(tmp_path / "whole")
    expected = run(recipe, sources_of(recipe, sealed), store)
    parts = in_parts(recipe, sealed, tmp_path / "parts", [2])
    assert parts[-1].weights == expected.weights
    assert parts[-1].trained.tokens == expected.trained.tokens
    assert [step for step, _ in told(parts)] == [1, 4, 5]
