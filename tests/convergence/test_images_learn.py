"""Models that read images learn scikit-learn's handwritten digits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from training_world import checkpoint_store, run, sources_of
from vision_world import LLAVA, image_classifier, image_reader, seal_digits

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

TRAINER = {
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 100,
    "learning_rate": 0.005,
    "warmup_steps": 10,
    "save_steps": 1000,
    "logging_steps": 50,
}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return seal_digits(tmp_path_factory.mktemp("digits"), 500)


def trained(make: Any, sealed: dict[str, Any], folder: Path, steps: int, **changed: Any) -> Any:
    """Metrics after so many steps, and of the model as it begins."""
    found = []
    for count, rate in ((steps, TRAINER["learning_rate"]), (1, 1e-12)):
        settings = TRAINER | {"max_steps": count, "learning_rate": rate}
        recipe = make(trainer=settings, **changed)
        store = checkpoint_store(folder / str(count))
        found.append(run(recipe, sources_of(recipe, sealed), store).trained.metrics)
    return found


def test_a_resnet_learns_digits(sealed: dict[str, Any], tmp_path: Path) -> None:
    varied = {"crop": 0.7, "brightness": 0.3}
    after, before = trained(
        image_classifier, sealed, tmp_path, 80, augmentation=varied, calibration_share=0.3
    )
    assert before["accuracy"] < 0.3
    assert after["accuracy"] > 0.85
    assert after["f1"] > before["f1"] + 0.5
    assert after["auroc"] > 0.98
    assert after["brier"] < before["brier"] / 2
    assert after["ece"] < 0.1


def test_a_llava_learns_to_name_digits(sealed: dict[str, Any], tmp_path: Path) -> None:
    config = copy.deepcopy(
        LLAVA
    )  # larger weights to begin with: so few steps move small ones little
    config["text_config"]["initializer_range"] = 0.2
    config["vision_config"] |= {"patch_size": 8, "initializer_factor": 10.0}
    model = {"config": config, "init_seed": 1, "tokenizer": {"kind": "bytes"}}
    after, before = trained(image_reader, sealed, tmp_path, 150, model=model)
    assert before["accuracy"] <= before["majority"]
    assert after["accuracy"] > after["majority"] + 0.2
    assert after["eval_loss"] < before["eval_loss"] / 3
