"""Phases that read images: sealed equals plain, resumed equals uninterrupted, to the last bit."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from training_world import (
    PlainDataset,
    checkpoint_store,
    classify,
    measured,
    run,
    runs_of,
    sft,
    sources_of,
)
from variants import variants
from vision_world import (
    IDEFICS,
    LORA,
    MLLAMA,
    QWEN2,
    QWEN3,
    QWEN25,
    image_classifier,
    image_reader,
    reading,
    seal_digits,
)

from sealtrain.training.checkpoints.checkpoint import newest

VARIED = {
    "horizontal_flip": 0.5,
    "crop": 0.6,
    "brightness": 0.3,
    "contrast": 0.3,
    "saturation": 0.3,
}
CONVOLUTIONS = LORA | {"target_modules": ["convolution"]}
LORA_SEEING = LORA | {"target_modules": ["qkv"]}
TEXT_MODEL = sft().to_dict()["model"]
RECIPES = {
    "classify-image": functools.partial(image_classifier, augmentation=VARIED),
    "classify-image-lora": functools.partial(image_classifier, peft=CONVOLUTIONS),
    "classify-image-accumulated": functools.partial(
        image_classifier,
        augmentation=VARIED,
        calibration_share=0.3,
        trainer={"gradient_accumulation_steps": 2, "eval_steps": 2},
    ),
    "classify-text-varied": functools.partial(
        classify,
        model=TEXT_MODEL,
        columns={"text": "caption", "label": "label"},
        labels=[str(number) for number in range(10)],
        augmentation={"token_dropout": 0.3},
    ),
    "vlm-llava": functools.partial(image_reader, augmentation=VARIED),
    "vlm-llava-lora": functools.partial(image_reader, peft=LORA),
    "vlm-idefics3": functools.partial(
        image_reader,
        model={"config": IDEFICS, "init_seed": 1, "tokenizer": {"kind": "bytes"}},
        parts=["vision", "projector", "language"],
        columns={"image": "image", "text": "caption"},
    ),
    "vlm-qwen2": functools.partial(image_reader, **reading(QWEN2), augmentation=VARIED),
    "vlm-qwen2.5": functools.partial(
        image_reader, **reading(QWEN25), parts=["vision", "projector"], peft=LORA_SEEING
    ),
    "vlm-qwen3-lora": functools.partial(image_reader, **reading(QWEN3), peft=LORA),
    "vlm-mllama": functools.partial(image_reader, **reading(MLLAMA), augmentation=VARIED),
    "vlm-mllama-lora": functools.partial(image_reader, **reading(MLLAMA), peft=LORA),
}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return seal_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def whole(sealed: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Uninterrupted sealed runs, each made once."""

    return runs_of(RECIPES, sealed, tmp_path_factory.mktemp("stores"))


@pytest.mark.claim("C23")
@pytest.mark.slow
@pytest.mark.parametrize("name", variants(RECIPES, each_time=["vlm-qwen2.5"]))
def test_a_resumed_run_is_the_uninterrupted_one(
    name: str, sealed: dict[str, Any], whole: Any, tmp_path: Path
) -> None:
    recipe = RECIPES[name]()
    sources = sources_of(recipe, sealed)
    store = checkpoint_store(tmp_path)
    first = run(recipe, sources, store, stop_at=3)
    assert first.trained is None
    second = run(recipe, sources, store, resume=newest(store, None))
    assert measured(second) == measured(whole(name))
    assert first.history + second.history == whole(name).history


@pytest.mark.claim("C24")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    variants(
        ["classify-image", "vlm-llava", "vlm-qwen2", "vlm-mllama"],
        each_time=["classify-image", "vlm-llava"],
    ),
)
def test_sealed_training_is_training_in_the_clear(
    name: str, sealed: dict[str, Any], whole: Any, tmp_path: Path
) -> None:
    recipe = RECIPES[name]()
    clear = {
        key: PlainDataset([dataset.batch(number) for number in range(len(dataset.batch_rows))])
        for key, dataset in sealed.items()
    }
    over_clear = run(recipe, sources_of(recipe, clear), checkpoint_store(tmp_path))
    assert measured(over_clear) == measured(whole(name))
    assert over_clear.history == whole(name).history
    assert len(over_clear.history) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "unvaried"),
    [("classify-image", image_classifier), ("vlm-llava", image_reader)],
)
def test_augmentation_changes_training(
    name: str, unvaried: Any, sealed: dict[str, Any], whole: Any, tmp_path: Path
) -> None:
    recipe = unvaried(trainer={"max_steps": 2, "save_steps": 2})
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))
    losses = [values["loss"] for _, values in ran.history]
    assert losses[0] != whole(name).history[0][1]["loss"]
