"""Classifiers of images, their temperature, and what a recipe may ask of them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_world import png
from sealing_world import CANARY
from training_world import (
    PlainDataset,
    checkpoint_store,
    classify,
    releasing,
    run,
    sft,
    source_of,
    sources_of,
)
from vision_world import LABELS, LORA, RESNET, image_classifier, seal_digits

from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.missing import missing_values
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.training.data.sources import Source

pytestmark = pytest.mark.long

SHORT = {"max_steps": 2, "save_steps": 2}
CONVOLUTIONS = LORA | {"target_modules": ["convolution"]}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return seal_digits(tmp_path_factory.mktemp("digits"), 30)


def trained(recipe: Any, sealed: dict[str, Any], folder: Path, base_dir: Path = Path()) -> Any:
    store = checkpoint_store(folder / "checkpoints")
    return run(recipe, sources_of(recipe, sealed), store, base_dir=base_dir).trained


def logits_of(files: dict[str, bytes], folder: Path, images: Any) -> Any:
    from transformers import AutoModelForImageClassification

    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    model = AutoModelForImageClassification.from_pretrained(folder)
    return model.eval()(pixel_values=images).logits


@pytest.mark.slow
def test_the_model_loads_with_its_labels_and_its_preparation(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    import torch

    done = trained(image_classifier(trainer=SHORT), sealed, tmp_path)
    config = json.loads(done.files["config.json"])
    assert config["id2label"] == {str(index): name for index, name in enumerate(LABELS)}
    assert json.loads(done.files["preprocessor_config.json"])["crop_size"]["height"] == 16
    assert "calibration.json" not in done.files
    assert logits_of(done.files, tmp_path / "m", torch.zeros(2, 3, 16, 16)).shape == (2, 10)
    wanted = {"accuracy", "f1", "auroc", "ece", "brier", "majority", "loss"}
    assert wanted <= done.metrics.keys()


@pytest.mark.slow
def test_a_pretrained_head_of_other_labels_is_replaced(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    first = trained(image_classifier(trainer=SHORT), sealed, tmp_path / "a").files
    base = tmp_path / "base"
    base.mkdir()
    for name, data in first.items():
        (base / name).write_bytes(data)
    changed = {"model": {"path": "base", "tokenizer": None}, "preparation": None}
    even = ["0", "2", "4", "6", "8", "1", "3", "5", "7", "9", "none"]
    recipe = image_classifier(trainer=SHORT, labels=even, **changed)
    runs = [trained(recipe, sealed, tmp_path / name, tmp_path).files for name in ("b", "c")]
    assert runs[0]["model.safetensors"] == runs[1]["model.safetensors"]  # the new head is seeded
    config = json.loads(runs[0]["config.json"])
    assert config["id2label"]["10"] == "none"
    assert runs[0]["preprocessor_config.json"] == first["preprocessor_config.json"]


# One library deprecates what another still calls.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.slow
def test_an_adapter_leaves_statistics_alone_and_carries_the_head(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    import torch
    from peft import PeftModel
    from safetensors.torch import load
    from transformers import AutoModelForImageClassification, ResNetConfig

    recipe = image_classifier(trainer=SHORT, peft=CONVOLUTIONS)
    merging = image_classifier(trainer=SHORT, peft=CONVOLUTIONS | {"merge": True})
    adapter = trained(recipe, sealed, tmp_path / "a").files
    names = set(load(adapter["adapter_model.safetensors"]))
    assert any("classifier" in name for name in names)
    assert not any("running_mean" in name for name in names)
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name, data in adapter.items():
        (folder / name).write_bytes(data)
    torch.manual_seed(1)
    config = ResNetConfig(**{k: v for k, v in RESNET.items() if k != "model_type"}, num_labels=10)
    base = AutoModelForImageClassification.from_config(config)
    put_on = PeftModel.from_pretrained(base, folder).eval()
    images = torch.randn(3, 3, 16, 16)
    merged = trained(merging, sealed, tmp_path / "b").files
    expected = logits_of(merged, tmp_path / "merged", images)
    assert torch.allclose(put_on(pixel_values=images).logits, expected, atol=1e-5)


@pytest.mark.slow
def test_a_share_of_the_test_records_sets_the_temperature(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    done = trained(image_classifier(trainer=SHORT, calibration_share=0.5), sealed, tmp_path / "a")
    temperature = json.loads(done.files["calibration.json"])["temperature"]
    assert done.metrics["temperature"] == pytest.approx(temperature, abs=1e-8)
    plain = trained(image_classifier(trainer=SHORT), sealed, tmp_path / "b")
    assert plain.files["model.safetensors"] == done.files["model.safetensors"]
    assert plain.metrics["majority"] != done.metrics["majority"]  # other records are measured


def with_records(rows: list[dict[str, Any]]) -> list[Source]:
    import pyarrow as pa

    return [source_of(PlainDataset([pa.RecordBatch.from_pylist(rows)]))]


def one_owner(**changed: Any) -> Any:
    document = image_classifier(trainer=SHORT, **changed).to_dict()
    document["datasets"] = document["datasets"][:1]
    from sealtrain.recipe.schema import parse_recipe

    return parse_recipe(document)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"image": CANARY.encode(), "label": "1"}, RecordInvalid),
        ({"image": png(1, 64, 64)[:-99], "label": "1"}, RecordInvalid),
        ({"image": png(), "label": CANARY}, RecordInvalid),
        ({"image": CANARY, "label": "1"}, RecordInvalid),
        ({"image": None, "label": "1"}, DataInvalid),
        ({"label": "1"}, SchemaMismatch),
    ],
)
def test_a_bad_record_stops_training_without_its_content(
    row: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        run(one_owner(), with_records([row] * 8), checkpoint_store(tmp_path))
    told = io.StringIO()
    told.write(repr(vars(caught.value)) + str(caught.value))
    assert CANARY not in told.getvalue()


TOKENS = sft().to_dict()["model"]
FOLDER = {"path": "base", "tokenizer": None}


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"preparation": None}, "preparation"),
        ({"model": FOLDER | {"tokenizer": {"kind": "bytes"}}}, "tokenizer: null"),
        ({"model": {"path": "base"}}, "tokenizer: null"),
        ({"peft": {"method": "ia3", "target_modules": ["convolution"]}}, "lora"),
        ({"peft": LORA | {"quantization": {}}, "model": FOLDER}, "full precision"),
        ({"augmentation": {"token_dropout": 0.1}}, "augmentation"),
        ({"augmentation": {"horizontal_flip": 0.0}}, "changes nothing"),
        ({"augmentation": {"horizontal_flip": 1.5}}, "horizontal_flip"),
        ({"augmentation": {"crop": 0}}, "crop"),
        ({"augmentation": {"rotate": 1}}, "rotate"),
        ({"preparation": {"size": 16, "resize": 8}}, "resize"),
        ({"preparation": {"size": 16, "resize": 20, "stretch": True}}, "stretch"),
        ({"preparation": {"size": 16, "std": [0, 1, 1]}}, "std"),
        ({"preparation": {"size": 16, "mean": [0.5]}}, "mean"),
        ({"calibration_share": 0.6}, "calibration_share"),
        ({"columns": {"image": "image"}}, "label"),
    ],
)
def test_what_a_recipe_for_images_may_not_ask(changed: dict[str, Any], match: str) -> None:
    with pytest.raises(RecipeInvalid) as caught:
        image_classifier(**changed)
    assert match in " ".join(str(part) for part in (caught.value, *vars(caught.value).values()))


@pytest.mark.parametrize(
    "changed",
    [
        {"preparation": {"size": 16}},
        {"augmentation": {"horizontal_flip": 0.5}},
        {"augmentation": {"token_dropout": 0.5}},
    ],
)
def test_numbers_are_neither_prepared_nor_varied(changed: dict[str, Any]) -> None:
    with pytest.raises(RecipeInvalid):
        classify(**changed)


@pytest.mark.slow
def test_text_is_varied_in_training_and_not_in_evaluation(tmp_path: Path) -> None:
    import pyarrow as pa

    source = np.random.default_rng(1)
    rows = [
        {"text": "".join(map(chr, source.integers(97, 122, 30))), "finding": "benign"}
        for _ in range(20)
    ]
    data = PlainDataset([pa.RecordBatch.from_pylist(rows)])
    kept = {"trainer": {"max_steps": 1, "save_steps": 1, "learning_rate": 1e-12}, "model": TOKENS}
    columns = {"text": "text", "label": "finding"}
    found = []
    for augmentation in (None, {"token_dropout": 0.5}):
        recipe = classify(columns=columns, augmentation=augmentation, **kept)
        keys = {f"{dataset.owner}.{dataset.name}": data for dataset in recipe.datasets}
        store = checkpoint_store(tmp_path / str(len(found)))
        found.append(run(recipe, sources_of(recipe, keys), store))
    losses = [ran.history[0][1]["loss"] for ran in found]
    assert losses[0] != losses[1]
    assert found[0].trained.metrics["majority"] == found[1].trained.metrics["majority"]


GAPS: dict[str, Any] = {
    "missing": {"size": "median", "spread": "own-category"},
    "release_policy": releasing("loss", "missing_1"),
    "datasets": [{"owner": "a", "name": "d", "role": "train"}],
}


def table(recipe: Any, **columns: list[Any]) -> list[Source]:
    import pyarrow as pa

    batch = pa.record_batch(columns)
    source = source_of(PlainDataset([batch.slice(0, 3), batch.slice(3)]))
    return [replace(source, missing=missing_values(recipe))]


@pytest.mark.claim("C626")
def test_gaps_are_filled_by_what_training_records_have_and_so_in_the_opened_model(
    tmp_path: Path,
) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    import sealtrain.training.models.tabular  # noqa: F401  # registers the architecture

    recipe = classify(trainer=SHORT | {"per_device_train_batch_size": 4}, **GAPS)
    sources = table(
        recipe,
        size=[1, None, 10, 2, 4, None],
        spread=[0.5, float("nan"), 1.5, None, 2.5, 3.5],
        finding=["benign", "malignant"] * 3,
    )
    done = run(recipe, sources, checkpoint_store(tmp_path / "c")).trained
    assert done.metrics["missing_1"] == 3.0
    for name, data in done.files.items():
        (tmp_path / name).write_bytes(data)
    model: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert model.stand_in.tolist() == [3.0, 2.0]
    assert (model.config.filled, model.config.marked) == ([0, 1], [1])
    nan = float("nan")
    rows = torch.tensor([[nan, 1.0], [3.0, 1.0], [1.0, nan], [1.0, 2.0]])
    gap, median, own, mean = model(features=rows).logits
    assert torch.equal(gap, median)
    assert not torch.equal(own, mean)
    assert torch.isfinite(own).all()


@pytest.mark.claim("C626")
def test_a_constant_trains_as_if_it_stood_in_the_records(tmp_path: Path) -> None:
    constant = {"missing": {"size": {"constant": 7}, "finding": {"constant": "benign"}}}
    said = GAPS | constant | {"release_policy": releasing("loss")}
    recipe = classify(trainer=SHORT | {"per_device_train_batch_size": 4}, **said)
    made = {"spread": [0.5, 1.0, 1.5, 2.0, 2.5, 3.5]}
    gaps = table(recipe, size=[1, None, 10, 2, 4, None], finding=["malignant", None] * 3, **made)
    whole = table(recipe, size=[1.0, 7, 10, 2, 4, 7], finding=["malignant", "benign"] * 3, **made)
    found, wanted = (
        run(recipe, sources, checkpoint_store(tmp_path / name)).trained.files["model.safetensors"]
        for name, sources in (("gaps", gaps), ("whole", whole))
    )
    assert found == wanted


@pytest.mark.claim("C626")
@pytest.mark.parametrize(
    "size", [[None] * 6, [1.0, float("inf"), 2.0, 3.0, 4.0, 5.0]], ids=["none", "infinite"]
)
def test_a_feature_that_no_record_has_or_that_is_infinite_ends_the_run(
    tmp_path: Path, size: list[Any]
) -> None:
    import pyarrow as pa

    recipe = classify(trainer=SHORT | {"per_device_train_batch_size": 4}, **GAPS)
    sources = table(
        recipe,
        size=pa.array(size, pa.float64()),
        spread=[0.5] * 6,
        finding=["benign", "malignant"] * 3,
    )
    with pytest.raises(RecordInvalid):
        run(recipe, sources, checkpoint_store(tmp_path / "c"))
