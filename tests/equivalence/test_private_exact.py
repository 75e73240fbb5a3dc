"""Private training is as repeatable as any: resumed as uninterrupted, sealed as in the clear."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from training_world import (
    RECIPES,
    SECRET,
    PlainDataset,
    Ran,
    checkpoint_store,
    run,
    seal_records,
    sources_of,
    write_records,
)
from variants import variants

from sealtrain.training.checkpoints.checkpoint import newest

STOP_AT = 4


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_records(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def sealed(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(seal_records(paths, tmp_path_factory.mktemp("sealed")))


def measured(ran: Ran) -> tuple[Any, ...]:
    done = ran.trained
    return ran.weights, done.metrics, done.steps, done.samples_seen, done.privacy


@pytest.mark.claim("C37")
@pytest.mark.claim("C554")
@pytest.mark.parametrize("name", variants(RECIPES, each_time=["sft-lora-dp"]))
def test_resumed_equals_uninterrupted_and_sealed_equals_plain(
    name: str, paths: dict[str, Path], sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = RECIPES[name](trainer={"eval_steps": 2, "save_steps": STOP_AT})
    sources = sources_of(recipe, sealed)
    whole = run(recipe, sources, checkpoint_store(tmp_path / "whole"), secret=SECRET)

    store = checkpoint_store(tmp_path / "parts")
    first = run(recipe, sources, store, stop_at=STOP_AT, secret=SECRET)
    assert first.trained is None
    ref = newest(store, None)
    assert ref is not None
    assert ref.step == STOP_AT
    second = run(recipe, sources, store, resume=ref, secret=SECRET)
    assert measured(second) == measured(whole)
    assert first.history + second.history == whole.history

    plain = {
        key: PlainDataset(
            pa.Table.from_pylist([json.loads(row) for row in path.read_text("utf-8").splitlines()])
            .combine_chunks()
            .to_batches()
        )
        for key, path in paths.items()
    }
    clear = run(recipe, sources_of(recipe, plain), checkpoint_store(tmp_path / "x"), secret=SECRET)
    assert measured(clear) == measured(whole)
    assert clear.history == whole.history
