"""Pre-training, encoders and adapters on sealed data: plaintext's bits, and resumed the same."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from language_world import ADAPTERS, cpt, embed, write_base
from training_world import (
    LORA,
    PlainDataset,
    Ran,
    checkpoint_store,
    classify,
    run,
    runs_of,
    seal_records,
    sft,
    sources_of,
    write_records,
)
from variants import variants

from sealtrain.training.checkpoints.checkpoint import newest

pytestmark = pytest.mark.long

BASE = {"path": "base"}
TEXT_CLASSES = {"model": BASE, "columns": {"text": "text", "label": "finding"}}
BERT_LORA = {"method": "lora", "r": 2, "lora_dropout": 0.2, "target_modules": ["query", "value"]}
RECIPES = {
    "cpt": functools.partial(cpt, trainer={"gradient_accumulation_steps": 2}),
    "cpt-lora": functools.partial(cpt, peft=LORA, trainer={"eval_steps": 2}),
    "cpt-qlora": functools.partial(cpt, model=BASE, peft=ADAPTERS["qlora"]),
    "cpt-one-document-in-many-blocks": functools.partial(cpt, trainer={"block_size": 7}),
    "embed": functools.partial(embed, trainer={"gradient_accumulation_steps": 2}),
    "embed-lora-cached": functools.partial(
        embed,
        peft=BERT_LORA | {"merge": True},
        trainer={"mini_batch_size": 2, "matryoshka_dims": [16, 8], "eval_steps": 2},
        columns={"anchor": "prompt", "positive": "text", "negative": "completion"},
    ),
    **{
        f"sft-{name}": functools.partial(sft, model=BASE, peft=adapter)
        for name, adapter in ADAPTERS.items()
        if name in ("dora", "qlora", "ia3", "p-tuning-v2", "p-tuning")
    },
    **{
        f"classify-{name}": functools.partial(classify, peft=ADAPTERS[name], **TEXT_CLASSES)
        for name in ("qlora", "prompt")
    },
    "sft-conversations": functools.partial(
        sft,
        model=BASE,
        columns={"messages": "messages"},
        trainer={"assistant_only_loss": True, "packing": True, "max_length": 256, "eval_steps": 2},
    ),
}

EACH_TIME = ("cpt", "embed")


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_base(folder / "base")
    return folder


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_records(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def sealed(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(seal_records(paths, tmp_path_factory.mktemp("sealed")))


@pytest.fixture(scope="module")
def whole(sealed: dict[str, Any], base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The uninterrupted run over sealed data, by name of its recipe."""
    return runs_of(RECIPES, sealed, tmp_path_factory.mktemp("stores"), base_dir)


def measured(ran: Ran) -> tuple[Any, ...]:
    done = ran.trained
    counted = done.steps, done.samples_seen, done.tokens, done.tokens_sha256
    return ran.weights, done.metrics, *counted


@pytest.mark.claim("C23")
@pytest.mark.parametrize("name", variants(RECIPES, each_time=EACH_TIME))
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
    assert [ref.step for ref in first.checkpoints + second.checkpoints] == [3, 6, 8]


@pytest.mark.claim("C24")
@pytest.mark.parametrize(
    "name", variants(["cpt", "embed", "sft-dora", "sft-conversations"], each_time=["cpt"])
)
def test_sealed_training_is_training_in_the_clear(
    name: str, whole: Any, paths: dict[str, Path], base_dir: Path, tmp_path: Path
) -> None:
    recipe = RECIPES[name]()
    clear = {
        key: PlainDataset([pa.RecordBatch.from_pylist(lines(path))]) for key, path in paths.items()
    }
    ran = run(recipe, sources_of(recipe, clear), checkpoint_store(tmp_path), base_dir=base_dir)
    assert measured(ran) == measured(whole(name))
    assert ran.history == whole(name).history
    assert len(ran.history) >= 4


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_finished_pre_training_gives_its_result_again_without_a_step(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = RECIPES["cpt"]()
    store = checkpoint_store(tmp_path)
    done = run(recipe, sources_of(recipe, sealed), store)
    again = run(recipe, sources_of(recipe, sealed), store, resume=newest(store, None))
    assert measured(again) == measured(done)
    assert again.history == []
